"""The index of a study, and its parts read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.results.comparison import Comparison
from stratoscope.TODO.study import STUDY
from stratoscope.results.study import Study


def comparison() -> Comparison:
    axis = (Layer("base", 0), Layer("ft", 0))
    models = tuple(ModelInfo(name, name, "bert", 1, 4, "x") for name in ("base", "ft"))
    return Comparison((Matrix("ckasim", axis, axis, np.eye(2)),), models, {"rows": 9})


def saved(folder: Path) -> Study:
    study = Study({"cls": comparison(), "mean": comparison()}, "base", ("ft",), None, None, {"refused": "all matter"})
    for unit, found in study.comparisons.items():
        (folder / unit).mkdir()
        found.save(folder / unit)
    study.save(folder)
    return study


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    want, got = saved(tmp_path), Study.load(tmp_path)
    assert list(got.comparisons) == ["cls", "mean"]
    np.testing.assert_array_equal(got.comparisons["mean"]["ckasim"].values, np.eye(2))
    assert (got.base, got.tuned, got.control, got.depth, got.cut) == ("base", ("ft",), None, None, want.cut)
    assert [m.name for m in got.models] == ["base", "ft"]


def test_models_across_are_read_back_and_an_index_without_them_is_read_too(tmp_path: Path) -> None:
    replace(saved(tmp_path), across=("other",)).save(tmp_path)
    assert Study.load(tmp_path).across == ("other",)
    plain = json.loads((tmp_path / STUDY).read_text())
    del plain["across"]
    (tmp_path / STUDY).write_text(json.dumps(plain))
    assert Study.load(tmp_path).across == ()


def test_localization_is_read_back_only_where_the_index_has_it(tmp_path: Path) -> None:
    study = replace(saved(tmp_path), localization=comparison())
    (tmp_path / "localization").mkdir()
    comparison().save(tmp_path / "localization")
    assert Study.load(tmp_path).localization is None
    study.save(tmp_path)
    got = Study.load(tmp_path)
    assert got.localization is not None
    np.testing.assert_array_equal(got.localization["ckasim"].values, np.eye(2))
    assert list(got.compared) == ["cls", "mean", "localization"]
    assert list(got.comparisons) == ["cls", "mean"]


def test_missing_foreign_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"no study\.json in .*; run 'stratoscope study finetuned"):
        Study.load(tmp_path)
    saved(tmp_path)
    plain = json.loads((tmp_path / STUDY).read_text())
    for text in ("{", json.dumps(plain | {"format": 99}), json.dumps({"kind": "study", "format": 1})):
        (tmp_path / STUDY).write_text(text)
        with pytest.raises(StratoscopeError, match=r"study\.json is damaged"):
            Study.load(tmp_path)


def test_a_study_is_of_something_tuned() -> None:
    with pytest.raises(StratoscopeError, match="expected at least one fine-tuned model, got none"):
        Study({}, "base", ())
