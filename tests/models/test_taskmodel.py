from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, PAIR, SINGLE, Example, TaskData
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read.head import predict
from stratoscope.models.text.examples import text_length, tokenise


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def step(self, label: str, total: int) -> Any:
        yield lambda n: None

    def note(self, message: str) -> None:
        self.notes.append(message)


def task(*labels: str, form: str = SINGLE, texts: tuple[str, ...] = tiny.SENTENCES) -> TaskData:
    names = labels or None
    rows = tuple(
        Example(((text, texts[-k - 1] if form == PAIR else None),), float(k % max(2, len(labels))))
        for k, text in enumerate(texts)
    )
    return TaskData("toy", rows, rows, names, form, "accuracy" if names else "correlation")


def multiple(counts: tuple[int, ...]) -> TaskData:
    rows = tuple(Example(tuple(("a film", f"is {k}") for k in range(n)), float(i % 2)) for i, n in enumerate(counts))
    return TaskData("pick", rows, rows, ("0", "1"), CHOICE, "accuracy")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a head of three labels."""
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    names = {0: "no", 1: "maybe", 2: "yes"}
    return tiny.checkpoint(
        "roberta", folder, head="classification", id2label=names, label2id={"no": 0, "maybe": 1, "yes": 2}
    )


def head(module: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in module.state_dict().items() if k.startswith("classifier.")}


def test_a_head_for_the_same_labels_is_kept(tuned: Path) -> None:
    told = Told()
    loaded = open_model(ModelSpec(str(tuned)), task("no", "maybe", "yes"), seed=1, progress=told)
    stored = load_file(tuned / "model.safetensors")
    assert loaded.head == "kept"
    assert all(torch.equal(v, stored[k]) for k, v in head(loaded.module).items())
    assert told.notes == ["'tuned' already has a head for toy; training continues from it"]


@pytest.mark.parametrize("labels", [("bad", "good"), ("entailment", "neutral", "contradiction"), ()])
def test_a_head_for_other_labels_gives_way_whole_to_a_fresh_one(tuned: Path, labels: tuple[str, ...]) -> None:
    told = Told()
    one, two = (open_model(ModelSpec(str(tuned)), task(*labels), seed=s, progress=told) for s in (1, 2))
    stored = load_file(tuned / "model.safetensors")
    assert one.head == "fresh"
    weights = "classifier.dense.weight"  # of the same shape in the old head: the tempting one to keep
    assert not torch.equal(head(one.module)[weights], stored[weights])
    assert not torch.equal(head(one.module)[weights], head(two.module)[weights])
    encoder = {k: v for k, v in one.module.state_dict().items() if k.startswith("roberta.")}
    assert all(torch.equal(v, stored[k]) for k, v in encoder.items())
    assert told.notes[0].startswith("the head of 'tuned' has 3 labels (no, maybe, yes), toy needs ")
    assert told.notes[0].endswith("; a fresh head takes its place")
    assert one.module.config.num_labels == max(1, len(labels))


def test_labels_without_names_are_told_apart_by_number_only(tmp_path: Path) -> None:
    nameless = tiny.checkpoint("bert", tmp_path / "nameless", head="classification")
    assert open_model(ModelSpec(str(nameless)), task("bad", "good"), seed=0).head == "kept"
    assert open_model(ModelSpec(str(nameless)), task("a", "b", "c"), seed=0).head == "fresh"


def test_a_head_of_another_kind_gives_way(tuned: Path) -> None:
    told = Told()
    loaded = open_model(ModelSpec(str(tuned)), multiple((2, 2)), seed=0, progress=told)
    assert loaded.head == "fresh"
    assert told.notes == [
        "the head of 'tuned' (RobertaForSequenceClassification) is not of the kind pick needs; a fresh head takes its"
        " place"
    ]


def test_a_pooler_is_kept_where_stored_and_drawn_from_the_seed_where_not(tmp_path: Path) -> None:
    whole = tiny.checkpoint("bert", tmp_path / "whole")
    stored = load_file(whole / "model.safetensors")
    name = "pooler.dense.weight"
    one, two = (open_model(ModelSpec(str(whole)), task("a", "b"), seed=s).module for s in (1, 2))
    assert all(torch.equal(m.bert.pooler.dense.weight, stored[name]) for m in (one, two))
    lacking = {k: v for k, v in stored.items() if not k.startswith("pooler.")}
    save_file(lacking, whole / "model.safetensors", metadata={"format": "pt"})
    one, two = (open_model(ModelSpec(str(whole)), task("a", "b"), seed=s).module for s in (1, 2))
    assert not torch.equal(one.bert.pooler.dense.weight, two.bert.pooler.dense.weight)


def test_an_encoder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    broken = tiny.checkpoint("bert", tmp_path / "broken")
    stored = load_file(broken / "model.safetensors")
    del stored["encoder.layer.1.output.dense.weight"]
    save_file(stored, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StratoscopeError, match=r"lacks 1 of the encoder's weights .*; give a complete bert checkpoint"):
        open_model(ModelSpec(str(broken)), task("a", "b"), seed=0)


def test_a_family_without_such_a_head_is_refused(tmp_path: Path) -> None:
    gpt2 = tiny.checkpoint("gpt2", tmp_path / "gpt2")
    with pytest.raises(
        StratoscopeError, match="for which transformers has no multiple-choice head, and pick needs one"
    ):
        open_model(ModelSpec(str(gpt2)), multiple((2, 2)), seed=0)


@pytest.mark.parametrize("family", ["bert", "xlnet", "gpt2"])
@pytest.mark.parametrize("form", [SINGLE, PAIR])
def test_scores_are_those_of_one_example_at_a_time(tmp_path: Path, family: str, form: str) -> None:
    given = task("a", "b", form=form)
    loaded = open_model(ModelSpec(str(tiny.checkpoint(family, tmp_path / family))), given, seed=0)
    inputs = tokenise(given, "validation", loaded.encoder, length=40)
    together = predict(loaded, inputs)
    alone = np.concatenate([predict(loaded, inputs, rows=np.array([k])) for k in range(len(inputs))])
    np.testing.assert_allclose(together, alone, atol=2e-5)
    tokenizer = loaded.encoder.tokenizer
    for k, example in enumerate(given.validation):
        plain = tokenizer(*(t for t in example.texts[0] if t), truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            np.testing.assert_allclose(loaded.module(**plain).logits[0], together[k], atol=2e-5)


def test_long_texts_are_cut_and_counted(tmp_path: Path) -> None:
    loaded = open_model(ModelSpec(str(tiny.checkpoint("bert", tmp_path / "b"))), task("a", "b"), seed=0)
    full = tokenise(task("a", "b"), "train", loaded.encoder, length=128)
    cut = tokenise(task("a", "b"), "train", loaded.encoder, length=12)
    assert full.truncated == 0
    assert cut.truncated == int((full.lengths > 12).sum()) > 0
    assert cut.lengths.max() == 12
    ends = cut.encoded.ids[cut.encoded.starts[1:] - 1]
    assert (ends == loaded.encoder.tokenizer.sep_token_id).all(), "the closing token stays"


def test_lengths_the_model_cannot_take_are_refused(tmp_path: Path) -> None:
    encoder = open_model(ModelSpec(str(tiny.checkpoint("bert", tmp_path / "b"))), task("a", "b"), seed=0).encoder
    assert [text_length(encoder, None), text_length(encoder, None, otherwise=64), text_length(encoder, 9)] == [
        128,
        64,
        9,
    ]
    assert text_length(encoder, None, otherwise=500) == 128
    with pytest.raises(StratoscopeError, match="expected --length of at most 128, the tokens 'b' reads; got 129"):
        text_length(encoder, 129)
    with pytest.raises(StratoscopeError, match="expected --length of at least 8 tokens, got 3"):
        text_length(encoder, 3)


def test_examples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    encoder = open_model(ModelSpec(str(tiny.checkpoint("bert", tmp_path / "b"))), task("a", "b"), seed=0).encoder
    with pytest.raises(StratoscopeError, match="pick: expected 2 choices in every example, got 3 in example 3"):
        tokenise(multiple((2, 2, 3)), "train", encoder, length=20)
    encoder.tokenizer.add_tokens(["zebra"])
    with pytest.raises(StratoscopeError, match=r"gives token id \d+, but the model has \d+ embeddings"):
        tokenise(task("a", "b", texts=("a zebra", "a dog")), "train", encoder, length=20)
