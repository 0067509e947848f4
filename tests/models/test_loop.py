"""One pass serves every reader; what a reader is handed has the shapes of the inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData
from stratoscope.models.families import FAMILIES
from stratoscope.models.open.loading import ModelSpec, OpenedModel, open_model
from stratoscope.models.read.head import HeadInputReader, LogitReader, head_scores, predict
from stratoscope.models.read.hidden import RowReader, read_rows
from stratoscope.models.read.loop import (
    ATTENTION,
    BATCH_BYTES,
    HIDDEN,
    Batch,
    Output,
    Reader,
    batches,
    hidden_bytes,
    read,
    token_budget,
)
from stratoscope.models.text.examples import tokenise
from stratoscope.models.text.rows import encode_for, plan_rows


class Attention(Reader):
    """Keeps the weights of every batch, and the shapes of the batches."""

    needs = frozenset({ATTENTION})

    def __init__(self) -> None:
        self.weights: list[list[torch.Tensor]] = []
        self.shapes: list[tuple[int, ...]] = []

    def update(self, batch: Batch, output: Output) -> None:
        self.weights.append([a.clone() for a in output.attention])
        self.shapes.append(tuple(batch.inputs["input_ids"].shape))


class Hidden(Reader):
    needs = frozenset({HIDDEN})

    def update(self, batch: Batch, output: Output) -> None:
        self.first = output.hidden[0]


def passes(model: OpenedModel) -> list[int]:
    """Texts of every forward pass of the encoder from now on."""
    seen: list[int] = []
    model.module.base_model.encoder.layer[0].register_forward_pre_hook(lambda m, args: seen.append(len(args[0])))
    return seen


def test_batches_are_longest_first_within_budget_and_complete() -> None:
    lengths = np.array([3, 9, 1, 9, 4, 30, 2])
    got = list(batches(lengths, lambda length: 18 // length))
    assert sorted(np.concatenate(got).tolist()) == list(range(7))
    sizes = [(len(b), int(lengths[b].max())) for b in got]
    assert all(n * longest <= 18 or n == 1 for n, longest in sizes)
    assert [longest for _, longest in sizes] == sorted((longest for _, longest in sizes), reverse=True)
    assert got[0].tolist() == [5]


def test_the_budget_shrinks_with_depth_and_width(model_of: Any) -> None:
    model = model_of("bert")
    assert token_budget(model, hidden_bytes(model)) == 1024
    assert token_budget(model, hidden_bytes(model), 9) == 9
    wide = replace(model, survey=replace(model.survey, width=10**6))
    assert token_budget(wide, hidden_bytes(wide)) == BATCH_BYTES // (model.layers * 10**6 * 4)
    assert token_budget(model, 10**12) == 1


@pytest.mark.parametrize("form", [SINGLE, CHOICE])
def test_several_readers_share_one_pass(form: str, tmp_path: Path) -> None:
    texts, c = tiny.SENTENCES, 2 if form == CHOICE else 1
    rows = tuple(
        Example(tuple((t, texts[k - j] if c > 1 else None) for j in range(c)), float(k % 2))
        for k, t in enumerate(texts)
    )
    task = TaskData("toy", rows, rows, ("0", "1"), form, "accuracy")
    model = open_model(ModelSpec(str(tiny.checkpoint("bert", tmp_path))), task, seed=0)
    corpus, inputs = task.corpus("validation"), tokenise(task, "validation", model.encoder, length=20)
    units = {unit: plan_rows(corpus, [model.encoder], unit, truncate=20) for unit in ("cls", "mean", "word", "token")}
    encoded = encode_for(model.encoder, corpus.sentences, list(units), truncate=20)
    kinds = {unit: RowReader(encoded, corpus, r) for unit, r in units.items()}
    vectors, scores = HeadInputReader(model, len(rows), choices=c), LogitReader(len(rows))
    seen = passes(model)
    read(model, encoded, [*kinds.values(), vectors, scores], choices=c, batch_tokens=60)
    assert sum(seen) == len(texts) * c
    assert len(seen) > 1
    seen.clear()
    for unit, reader in kinds.items():
        alone = read_rows(model, corpus, units[unit])
        for a, b in zip(reader.layers, alone, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    np.testing.assert_allclose(scores.scores.numpy(), predict(model, inputs), atol=1e-5)
    np.testing.assert_allclose(head_scores(model.module, vectors.layers[-1], choices=c), scores.scores, atol=1e-5)


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_attention_is_given_and_the_models_own_way_put_back(family: str, model_of: Any, corpus: Corpus) -> None:
    model = model_of(family)
    encoded = model.encoder.encode(corpus.sentences)
    own = model.module.config._attn_implementation
    before = read_rows(model, corpus, plan_rows(corpus, [model.encoder], "mean"))
    reader = Attention()
    read(model, encoded, [reader], batch_tokens=100)
    assert model.module.config._attn_implementation == own
    assert sum(n for n, _ in reader.shapes) == len(corpus)
    for weights, (texts, tokens) in zip(reader.weights, reader.shapes, strict=True):
        assert [tuple(a.shape) for a in weights] == [(texts, 4, tokens, tokens)] * tiny.LAYERS
    whole = [a[0].sum(dim=-1) for a in reader.weights[0]]  # the longest text, whose batch pads it not
    assert all(torch.allclose(rows, torch.ones_like(rows), atol=1e-4) for rows in whole)
    after = read_rows(model, corpus, plan_rows(corpus, [model.encoder], "mean"))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_batches_of_attention_shrink_with_the_square_of_the_length(
    model_of: Any, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratoscope.models.read import loop

    model, reader = model_of("bert"), Attention()
    encoded = model.encoder.encode(corpus.sentences)
    limit = 3 * 4 * 4 * 2 * int(encoded.lengths.max()) ** 2  # two of the longest
    monkeypatch.setattr(loop, "ATTENTION_BYTES", limit)
    read(model, encoded, [reader], batch_tokens=10_000)
    assert reader.shapes[0][0] == 2
    assert all(3 * 4 * 4 * n * t * t <= limit for n, t in reader.shapes)


def test_a_model_that_gives_no_attention_is_refused(
    model_of: Any, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("bert")
    encoded = model.encoder.encode(corpus.sentences)
    monkeypatch.setattr(model.module, "set_attn_implementation", lambda name: None)
    with pytest.raises(StratoscopeError, match="'bert' returned attention weights of 0 blocks, expected 3"):
        read(model, encoded, [Attention()])
    assert model.module.config._attn_implementation == "sdpa"


def test_states_longer_than_the_text_are_refused(tmp_path: Path, texts: Any) -> None:
    tokens = tiny.tokenizer("bert")
    config = transformers.AutoConfig.for_model(
        "big_bird", vocab_size=len(tokens), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, block_size=4, num_random_blocks=1, attention_type="block_sparse",
    )  # fmt: skip
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tokens.save_pretrained(tmp_path)
    model = open_model(ModelSpec(str(tmp_path), name="bird", device="cpu"))
    corpus = texts("a " * 35)
    rows = plan_rows(corpus, [model.encoder], "token")
    assert len(read_rows(model, corpus, rows)[0]) == 35, "short texts switch it to full attention, which pads nothing"
    model.module.set_attention_type("block_sparse")
    with pytest.raises(StratoscopeError, match=r"'bird' was given 1 texts of 37 tokens.*shape \(1, 40, 16\)"):
        read_rows(model, corpus, rows)


@pytest.mark.parametrize("unit", ["word", "mean"])
def test_what_is_read_can_be_trained_on(unit: str, model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    layers = read_rows(model, corpus, plan_rows(corpus, [model.encoder], unit))
    assert not torch.is_inference_mode_enabled()
    weight = torch.zeros(model.width, requires_grad=True)
    (layers[0] @ weight).sum().backward()
    assert weight.grad is not None


def test_chosen_layers_are_those_of_all(model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "cls")
    whole, some = read_rows(model, corpus, rows), read_rows(model, corpus, rows, layers=(3, 1))
    assert [torch.equal(a, b) for a, b in zip(some, (whole[3], whole[1]), strict=True)] == [True, True]


def test_progress_counts_every_text(model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    seen: list[int] = []
    encoded = model.encoder.encode(corpus.sentences)
    reader = RowReader(encoded, corpus, plan_rows(corpus, [model.encoder], "cls"))
    read(model, encoded, [reader], batch_tokens=60, advance=seen.append)
    assert len(seen) > 1
    assert sum(seen) == len(corpus)


def test_rows_of_another_corpus_are_refused(model_of: Any, corpus: Corpus, texts: Any) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "cls")
    with pytest.raises(StratoscopeError, match=r"planned for corpus .*; plan the rows again"):
        read_rows(model, texts("Yes."), rows)


def test_rows_planned_without_this_model_are_refused(model_of: Any) -> None:
    corpus = Corpus("c", (Sentence("It \u200b rains", ("It", "\u200b", "rains")),), (0,))
    rows = plan_rows(corpus, [model_of("gpt2").encoder], "word")
    with pytest.raises(StratoscopeError, match=r"'bert' has no word 1 in sentence 0"):
        read_rows(model_of("bert"), corpus, rows)


def test_a_sentence_over_the_window_is_refused_here_too(model_of: Any, texts: Any) -> None:
    long = texts("a " * 300)
    rows = plan_rows(long, [model_of("xlnet").encoder], "cls")
    with pytest.raises(StratoscopeError, match=r"sentence 0 has 302 tokens, 'bert' reads 128"):
        read_rows(model_of("bert"), long, rows)


def test_unknown_subword_names_the_nearest(model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "word")
    with pytest.raises(StratoscopeError, match="unknown subword 'frist'; did you mean 'first'"):
        read_rows(model, corpus, rows, subword="frist")


@pytest.mark.parametrize(
    ("unit", "where"),
    [("word", r"sentence 7, word 2 \('birds'\)"), ("cls", "sentence 7, unit cls"), ("token", "sentence 7, token")],
)
def test_values_that_are_not_finite_name_model_layer_and_row(unit: str, where: str, model_of: Any) -> None:
    model = model_of("bert")
    corpus = Corpus("c", (Sentence("Yes"), Sentence("so warm birds")), (3, 7))
    rows = plan_rows(corpus, [model.encoder], unit)
    last = model.encoder.encode(corpus.sentences, by_word=unit == "word").lengths[1] - 1

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        if unit == "cls":
            output[0, 0, 5] = torch.inf
        else:
            output[0, last - 1, 5] = torch.nan
        return output

    hook = model.module.encoder.layer[1].output.register_forward_hook(spoil)
    try:
        with pytest.raises(StratoscopeError, match=f"'bert' gives a value that is not finite at layer 2, {where}"):
            read_rows(model, corpus, rows)
    finally:
        hook.remove()


def test_a_model_with_other_layers_than_configured_is_reported(
    model_of: Any, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "cls")
    monkeypatch.setattr(model.module.config, "num_hidden_layers", 8)
    with pytest.raises(StratoscopeError, match="'bert' returned 4 layers, expected 9 from its configuration"):
        read_rows(model, corpus, rows)
