"""What must hold for every family in the table, on a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import tiny
from stratoscope.core.names import UNITS
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.families import FAMILIES, Family, blocks, final_norm
from stratoscope.models.open.loading import ModelSpec, OpenedModel, open_model, survey
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.text.rows import Rows, plan_rows

ALL = [f.name for f in FAMILIES]
SEGMENTED = {"bert", "albert", "electra", "xlnet"}
"""Families whose tiny checkpoint reads token_type_ids, written down here apart from the code's own table."""
CLS_LAST = {"xlnet", "openai-gpt", "gpt2", "llama", "qwen2", "qwen3", "gemma2"}
VARIANTS = [(u, s) for u in UNITS for s in (("last", "first", "mean") if u == "word" else ("last",))]
Load = Callable[[str], OpenedModel]


def collect(model: OpenedModel, corpus: Corpus, rows: Rows, **options: Any) -> list[torch.Tensor]:
    """All activations in row order."""
    layers = read_rows(model, corpus, rows, **options)
    assert [(x.shape, x.dtype, x.device.type) for x in layers] == [
        ((len(rows), model.width), torch.float32, "cpu")
    ] * model.layers
    return layers


def reference(folder: Path, family: str, corpus: Corpus, unit: str, subword: str) -> list[torch.Tensor]:
    """One sentence at a time, no padding; words are found by their characters in the joined text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    module = AutoModel.from_pretrained(folder).eval()
    vectors: list[list[torch.Tensor]] = [[] for _ in range(tiny.LAYERS + 1)]
    for sentence in corpus.sentences:
        text = " ".join(sentence.text.split())
        encoding = tokenizer(text, sentence.pair, return_tensors="pt", return_token_type_ids=True)
        raw = encoding.encodings[0]
        inputs = {"input_ids": encoding["input_ids"], "attention_mask": torch.ones_like(encoding["input_ids"])}
        if family in SEGMENTED:
            inputs["token_type_ids"] = encoding["token_type_ids"]
        with torch.no_grad():
            hidden = module(**inputs, output_hidden_states=True).hidden_states
        real = [t for t, special in enumerate(raw.special_tokens_mask) if not special]
        if unit == "cls":
            groups = [[len(raw.ids) - 1 if family in CLS_LAST else 0]]
        elif unit == "mean":
            groups = [real]
        elif unit == "token":
            groups = [[t] for t in real]
        else:
            groups = []
            end = 0
            for word in text.split():
                before, end = end, text.index(word, end) + len(word)
                # A blank that became a token of its own belongs to the word after it.
                group = [t for t in real if raw.sequence_ids[t] == 0 and before < raw.offsets[t][1] <= end]
                groups.append({"last": group[-1:], "first": group[:1], "mean": group}[subword])
        for k, h in enumerate(hidden):
            for group in groups:
                vectors[k].append(torch.stack([h[0, t] for t in group]).mean(0))
    return [torch.stack(v) for v in vectors]


def same(x: list[torch.Tensor], y: list[torch.Tensor]) -> None:
    for a, b in zip(x, y, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.fixture(params=ALL)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def row(name: str) -> Family:
    return next(f for f in FAMILIES if f.name == name)


def test_loads_as_its_family_with_one_layer_more_than_blocks(family: str, model_of: Load) -> None:
    model = model_of(family)
    assert model.family == row(family)
    assert not model.family.detected
    assert (model.layers, model.width) == (tiny.LAYERS + 1, tiny.HIDDEN)
    assert not model.module.training
    assert model.survey.dtype == "float32"


def test_encoder_without_weights_equals_the_loaded_one(family: str, model_of: Load, folder_of: Any) -> None:
    alone, loaded = survey(ModelSpec(str(folder_of(family)))).encoder, model_of(family).encoder
    assert (alone.family, alone.window, alone.segments) == (loaded.family, loaded.window, loaded.segments)
    assert loaded.segments == (family in SEGMENTED)


def test_blocks_and_final_norm_reproduce_hidden_states(family: str, model_of: Load, corpus: Corpus) -> None:
    model = model_of(family)
    applied = blocks(model.module, model.family)
    fired: list[tuple[Any, Any]] = []
    hooks = [b.register_forward_hook(lambda m, i, o: fired.append((m, o))) for b in dict.fromkeys(applied)]
    try:
        encoded = model.encoder.encode(corpus.sentences)
        with torch.no_grad():
            output = model.module(**encoded.batch(np.arange(len(corpus))), output_hidden_states=True, return_dict=True)
    finally:
        for h in hooks:
            h.remove()
    assert [m for m, _ in fired] == applied
    made = [o[0] if isinstance(o, tuple | list) else o for _, o in fired]
    made = [h.transpose(0, 1) for h in made] if model.family.sequence_first else made
    norm = final_norm(model.module, model.family)
    if norm is not None:
        assert not torch.allclose(made[-1], output.hidden_states[-1], atol=1e-3)
        made[-1] = norm(made[-1])
    for k, h in enumerate(made, start=1):
        torch.testing.assert_close(h, output.hidden_states[k])
    torch.testing.assert_close(output.hidden_states[-1], output.last_hidden_state)


def test_accessors_see_through_a_head(family: str, folder_of: Any) -> None:
    from transformers import AutoModelForSequenceClassification

    headed = AutoModelForSequenceClassification.from_pretrained(folder_of(family))
    assert len(blocks(headed, row(family))) == tiny.LAYERS


@pytest.mark.parametrize(("unit", "subword"), VARIANTS)
def test_extraction_equals_one_sentence_at_a_time(
    family: str, unit: str, subword: str, model_of: Load, folder_of: Any, corpus: Corpus
) -> None:
    model = model_of(family)
    rows = plan_rows(corpus, [model.encoder], unit)
    assert rows.dropped == {}
    same(collect(model, corpus, rows, subword=subword), reference(folder_of(family), family, corpus, unit, subword))


@pytest.mark.parametrize("unit", UNITS)
def test_pairs_go_in_as_second_segment(family: str, unit: str, model_of: Load, folder_of: Any, pairs: Corpus) -> None:
    model = model_of(family)
    rows = plan_rows(pairs, [model.encoder], unit)
    got = collect(model, pairs, rows)
    if unit == "word":
        assert len(rows) == sum(len(s.text.split()) for s in pairs.sentences)
    # A decoder reads the second text after the first, whose words cannot see it; the reference tokenises both as texts.
    same(got, reference(folder_of(family), family, pairs, unit, "last"))


@pytest.mark.parametrize("unit", ["word", "cls", "mean"])
def test_batch_size_does_not_matter(family: str, unit: str, model_of: Load, corpus: Corpus) -> None:
    model = model_of(family)
    rows = plan_rows(corpus, [model.encoder], unit)
    longest = int(model.encoder.encode(corpus.sentences, by_word=unit == "word").lengths.max())
    one, seven, all_ = (collect(model, corpus, rows, batch_tokens=n * longest) for n in (1, 7, 64))
    same(one, seven)
    same(one, all_)


def test_training_mode_is_ignored_and_put_back(family: str, model_of: Load, corpus: Corpus) -> None:
    model = model_of(family)
    rows = plan_rows(corpus, [model.encoder], "word")
    expected = collect(model, corpus, rows)
    frozen = next(iter(blocks(model.module, model.family)))
    try:
        model.module.train()
        frozen.eval()
        same(collect(model, corpus, rows), expected)
        assert model.module.training
        assert not frozen.training
    finally:
        model.module.eval()


def test_tokenizer_padding_side_does_not_matter(family: str, model_of: Load, corpus: Corpus) -> None:
    model = model_of(family)
    rows = plan_rows(corpus, [model.encoder], "cls")
    expected = collect(model, corpus, rows)
    before = model.encoder.tokenizer.padding_side
    try:
        model.encoder.tokenizer.padding_side = "left" if before == "right" else "right"
        same(collect(model, corpus, rows), expected)
    finally:
        model.encoder.tokenizer.padding_side = before


def test_random_init_is_seeded_and_differs_from_the_weights(family: str, model_of: Load, folder_of: Any) -> None:
    def fresh(seed: int) -> OpenedModel:
        return open_model(ModelSpec(str(folder_of(family)), device="cpu", random_init=True, seed=seed))

    state = torch.get_rng_state()
    a, b, c = fresh(1), fresh(1), fresh(2)
    assert torch.equal(torch.get_rng_state(), state)
    stored = model_of(family)
    different = 0
    for name, p in a.module.named_parameters():
        assert torch.equal(p, b.module.get_parameter(name)), name
        different += not torch.equal(p, c.module.get_parameter(name))
        assert not torch.equal(p, stored.module.get_parameter(name)), name
    assert different
    assert a.survey.fingerprint == b.survey.fingerprint
    assert len({a.survey.fingerprint, c.survey.fingerprint, stored.survey.fingerprint}) == 3
    assert a.survey.fingerprint.startswith("random-init seed 1 of ")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_models_yield_float32(family: str, dtype: str, folder_of: Any, corpus: Corpus) -> None:
    model = open_model(ModelSpec(str(folder_of(family)), device="cpu", dtype=dtype))
    assert model.survey.dtype == dtype
    for unit in ("cls", "mean"):
        layers = collect(model, corpus, plan_rows(corpus, [model.encoder], unit))
        assert all(x.isfinite().all() for x in layers)


def test_xlnet_may_pad_on_either_side(model_of: Load, corpus: Corpus) -> None:
    model = model_of("xlnet")
    encoder = replace(model.encoder, family=replace(model.family, pads_left=False))
    right = replace(model, survey=replace(model.survey, encoder=encoder))
    for unit in UNITS:
        rows = plan_rows(corpus, [model.encoder], unit)
        same(collect(model, corpus, rows), collect(right, corpus, rows))


def test_pre_split_words_are_tokenised_as_in_their_text(family: str, model_of: Load, corpus: Corpus) -> None:
    encoder = model_of(family).encoder
    split = Corpus("split", tuple(Sentence(s.text, tuple(s.text.split())) for s in corpus.sentences), corpus.positions)
    by_text, by_word = encoder.encode(corpus.sentences), encoder.encode(split.sentences, by_word=True)
    assert np.array_equal(by_text.ids, by_word.ids)
    assert np.array_equal(by_word.word >= 0, by_word.real)
    for sentences in (corpus.sentences, split.sentences):
        found = encoder.encode(sentences, by_word=True, truncate=encoder.window or 500)
        assert np.array_equal(found.ids, by_word.ids)
        assert np.array_equal(found.word, by_word.word), "words found by their place in the text"
        assert not found.truncated.any()


def test_a_truncated_text_has_the_words_that_are_whole_in_it(family: str, model_of: Load, corpus: Corpus) -> None:
    encoder = model_of(family).encoder
    whole = encoder.encode(corpus.sentences, by_word=True)
    cut = encoder.encode(corpus.sentences, by_word=True, truncate=12)
    assert np.array_equal(cut.ids, encoder.encode(corpus.sentences, truncate=12).ids)
    assert np.array_equal(cut.truncated, whole.lengths > 12)
    partial = 0
    for s in range(len(corpus)):
        sizes = np.bincount(whole.word[whole.sentence == s] + 1)[1:]  # tokens of each word
        real = int(cut.real[cut.sentence == s].sum())
        complete = int((np.cumsum(sizes) <= real).sum())
        found = cut.word[cut.sentence == s]
        assert found.max() + 1 == complete
        partial += int((found >= 0).sum()) < real
    assert partial, "some word was cut in two"
