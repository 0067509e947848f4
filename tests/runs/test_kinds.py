"""One table says what a folder may hold; whoever needs to know reads it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratoscope.cli.show import PAGES
from stratoscope.core.errors import StratoscopeError
from stratoscope.runs.kinds import CUT, KINDS, MODEL, STUDY, TUNED, Kind, kind_in
from stratoscope.runs.folder import RunFolder


@pytest.mark.parametrize("kind", KINDS, ids=[k.file for k in KINDS])
def test_a_folder_of_any_kind_is_told_and_refused_to_another(kind: Kind, tmp_path: Path) -> None:
    assert kind_in(tmp_path) is None
    (tmp_path / kind.file).touch()
    assert kind_in(tmp_path) is kind
    words = rf"holds {kind.what} \({kind.file}\); choose another --out"
    with pytest.raises(StratoscopeError, match=words), RunFolder.open(tmp_path, makes="another.json"):
        pass
    with RunFolder.open(tmp_path, makes=kind.file):
        pass


@pytest.mark.parametrize("kind", [CUT, TUNED, STUDY])
def test_a_folder_of_two_kinds_is_the_more_special(kind: Kind, tmp_path: Path) -> None:
    for file in (MODEL.file, kind.file):
        (tmp_path / file).touch()
    assert kind_in(tmp_path) is kind


def test_a_kind_that_is_not_there_names_its_command() -> None:
    assert str(STUDY.missing("x")) == "no study.json in x; run 'stratoscope study finetuned ... --out x' first"


def test_pages_are_of_kinds_in_the_table() -> None:
    assert {page.kind for page in PAGES.values()} <= set(KINDS)
