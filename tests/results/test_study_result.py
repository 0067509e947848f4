"""A study: comparisons by unit, depth and cut in one record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from results.result_cases import COMPARISON, CUT, DEPTH, STUDY, assert_same
from stratoscope.core.errors import StratoscopeError
from stratoscope.results.study import Study


def test_parts_of_a_study_are_found_by_unit() -> None:
    assert STUDY["cls"] is COMPARISON
    assert list(STUDY.comparisons) == ["cls", "mean"]
    assert list(STUDY.compared) == ["cls", "mean", "localization"]
    assert STUDY["localization"] is STUDY.localization
    with pytest.raises(StratoscopeError, match=r"'clz'.*'cls'"):
        STUDY["clz"]


def test_without_localization_there_is_none() -> None:
    study = replace(STUDY, localization=None)
    assert list(study.compared) == ["cls", "mean"]
    with pytest.raises(StratoscopeError, match="localization"):
        study["localization"]


def test_models_come_once() -> None:
    assert [m.name for m in STUDY.models] == ["base", "tuned"]


def test_each_part_of_a_loaded_study_has_its_own_arrays(tmp_path: Path) -> None:
    STUDY.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.arrays.safetensors", "study.json"]
    got = Study.load(tmp_path)
    assert_same(got["cls"], COMPARISON)
    assert_same(got.localization, STUDY.localization)
    assert got["mean"].arrays == {}
    assert_same(got.depth, DEPTH)
    assert_same(got.cut, CUT)


def test_a_study_is_of_something_tuned() -> None:
    with pytest.raises(StratoscopeError, match="at least one fine-tuned model"):
        Study({}, "base", ())
