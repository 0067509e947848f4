from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData
from stratoscope.models.open.loading import ModelSpec, open_model


def task(*labels: str, form: str = SINGLE) -> TaskData:
    texts = (("a", "b"), ("a", "c")) if form == CHOICE else (("a", None),)
    rows = tuple(Example(texts, float(k)) for k in range(2))
    return TaskData("toy", rows, rows, labels or None, form, "accuracy" if labels else "correlation")


def tuned(folder: Path, *names: str) -> ModelSpec:
    ids = dict(enumerate(names))
    made = tiny.checkpoint(
        "roberta", folder, head="classification", id2label=ids, label2id={v: k for k, v in ids.items()}
    )
    return ModelSpec(str(made), name="tuned")


@pytest.mark.parametrize("names", [("bad", "good"), ("BAD", "Good"), ("LABEL_0", "LABEL_1"), ("0", "1")])
def test_the_head_is_the_stored_one(names: tuple[str, ...], tmp_path: Path) -> None:
    spec = tuned(tmp_path, *names)
    module = open_model(spec, task("bad", "good")).module
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(module.state_dict()["classifier.out_proj.weight"], stored["classifier.out_proj.weight"])
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize(
    ("names", "data", "words"),
    [
        (("a", "b", "c"), task("bad", "good"), r"has 3 labels \(a, b, c\), toy needs 2 labels \(bad, good\); give a"),
        (("bad", "good"), task(), r"has 2 labels \(bad, good\), toy needs 1 label \(score\)"),
        (("good", "bad"), task("bad", "good"), "labels good, bad, toy has them in the order bad, good; order the"),
        (
            ("bad", "good"),
            task("a", "b"),
            r"has 2 labels \(bad, good\), toy has 2 labels \(a, b\): which is which cannot",
        ),
        (("a", "b"), task("0", "1", form=CHOICE), "is a RobertaForSequenceClassification, toy needs a RobertaForMult"),
    ],
)
def test_another_tasks_head_is_refused(names: tuple[str, ...], data: TaskData, words: str, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=words):
        open_model(tuned(tmp_path, *names), data)


def test_rows_labelled_by_number_are_taken_in_the_order_of_the_head(tmp_path: Path) -> None:
    open_model(tuned(tmp_path, "bad", "good"), task("0", "1"))


def test_a_model_without_head_is_refused(tmp_path: Path) -> None:
    spec = ModelSpec(str(tiny.checkpoint("bert", tmp_path)), name="bare")
    with pytest.raises(StratoscopeError, match="'bare' has no task head; expected a checkpoint fine-tuned on toy, so"):
        open_model(spec, task("bad", "good"))


def test_a_head_without_its_weights_is_refused(tmp_path: Path) -> None:
    spec = tuned(tmp_path, "bad", "good")
    stored = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if "out_proj" not in k}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StratoscopeError, match=r"lacks 2 of its head's weights \(first: classifier.out_proj.bias\)"):
        open_model(spec, task("bad", "good"))
