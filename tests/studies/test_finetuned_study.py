"""How a study hands its models to its parts; the parts have tests of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratoscope.models.open.loading import ModelSpec
from stratoscope.studies import finetuned
from stratoscope.studies.finetuned import StudyOptions, study_finetuned


class Rows:
    """A task as far as a study itself looks at it."""

    def corpus(self, split: str) -> str:
        return split


def test_depth_names_its_models_as_the_study_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders of one name: the study tells them apart by their parents, and so must its depth."""
    given: dict[str, list[ModelSpec]] = {}

    def compare(specs: list[ModelSpec], **how: Any) -> None:
        given["compare"] = specs

    def depth(tuned: ModelSpec, task: Any, *, base: ModelSpec, **how: Any) -> None:
        given["depth"] = [base, tuned]

    monkeypatch.setattr(finetuned, "compare", compare)
    monkeypatch.setattr(finetuned, "depth", depth)
    base, tuned = tmp_path / "before" / "model", tmp_path / "after" / "model"
    for folder in (base, tuned):
        folder.mkdir(parents=True)
    task: Any = Rows()
    study = study_finetuned(base, [tuned], task, out=tmp_path / "out", options=StudyOptions(units=("mean",)))
    assert (study.base, *study.tuned) == ("before/model", "after/model")
    assert given["depth"] == given["compare"][:2]
    assert [spec.label for spec in given["depth"]] == ["before/model", "after/model"]
