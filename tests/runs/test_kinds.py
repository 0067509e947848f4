"""One table says what a folder may hold; whoever needs to know reads it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratoscope.results.result import Result
from stratoscope.runs.kinds import KINDS, Kind, kind_in, kind_named


@pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])
def test_a_row_leads_to_its_class_and_back(kind: Kind, tmp_path: Path) -> None:
    cls = kind.load_class()
    assert issubclass(cls, Result)
    assert kind.name == cls.KIND
    assert cls.kind() is kind is kind_named(kind.name)
    assert kind_in(tmp_path) is None
    (tmp_path / kind.file).touch()
    assert kind_in(tmp_path) is kind


def test_names_and_files_are_unique() -> None:
    for field in ("name", "file", "result"):
        assert len({getattr(k, field) for k in KINDS}) == len(KINDS)


def test_a_folder_in_the_place_of_a_result_is_none(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    assert kind_in(tmp_path) is None


@pytest.mark.parametrize("kind", [k for k in KINDS if k.name != "study"], ids=lambda k: k.name)
def test_a_folder_of_two_kinds_is_a_study_first(kind: Kind, tmp_path: Path) -> None:
    for file in (kind.file, "study.json"):
        (tmp_path / file).touch()
    found = kind_in(tmp_path)
    assert found is not None
    assert found.name == "study"


def test_a_kind_that_is_not_there_names_its_command() -> None:
    assert "stratoscope study finetuned" in str(kind_named("study").missing("x"))
    assert "study.json" in str(kind_named("study").missing("x"))


@pytest.mark.parametrize("kind", [k for k in KINDS if k.sections], ids=lambda k: k.name)
def test_the_sections_of_a_page_are_a_function(kind: Kind) -> None:
    assert callable(kind.load_sections())
