from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from standins import COMPARISON, PERPLEXITIES, STATEMENTS

from stratoscope.claims.judge import UNRESAMPLED
from stratoscope.cli.answer import answer_of, beside, files_in, judge_next, look_closer, shell_line


@pytest.mark.parametrize(
    "word", ["plain", "two words", "it's", "a\\b", "new\nline", "\x1b[31m", "\u202eabc", "\udcff'"]
)
def test_a_shell_reads_the_next_command_as_it_was_meant(word: str) -> None:
    line = shell_line(["printf", "%s", word])
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout == word.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(("folder", "name"), [("runs/a", "runs/a-cut"), ("runs/a/", "runs/a-cut"), ("/x", "/x-cut")])
def test_what_comes_next_goes_beside(folder: str, name: str) -> None:
    assert beside(Path(folder), "cut") == name


@pytest.mark.parametrize("folder", [".", ".."])
def test_what_comes_next_goes_beside_where_a_folder_has_no_name(folder: str, tmp_path: Path) -> None:
    assert beside(Path(folder), "cut") == f"{Path(folder).resolve()}-cut"


def test_the_files_of_a_run(tmp_path: Path) -> None:
    for name in ("result.json", "report.html", ".lock", "figures/a.png", "parts/x", "cache/big"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_in(tmp_path) == ["figures/a.png", "report.html", "result.json"]
    assert files_in(tmp_path / "nowhere") == []


def test_a_page_is_named_only_where_there_is_one(tmp_path: Path) -> None:
    assert answer_of(tmp_path, COMPARISON, lines=[]).where == ""
    (tmp_path / "report.html").touch()
    where = answer_of(tmp_path, COMPARISON, lines=[]).where
    assert str(tmp_path / "report.html") in where
    assert str(tmp_path / "result.json") in where


def test_who_has_statements_looks_at_them_next(tmp_path: Path) -> None:
    assert look_closer(tmp_path, COMPARISON)[1] == "findings"
    assert look_closer(tmp_path, PERPLEXITIES)[1] == "report"


def test_statements_without_intervals_are_judged_next(tmp_path: Path) -> None:
    assert judge_next(tmp_path, COMPARISON, "compare") == look_closer(tmp_path, COMPARISON)
    bare = [replace(s, verdict="cannot tell", reason=f"no interval: {UNRESAMPLED}") for s in STATEMENTS]
    some = replace(COMPARISON, statements=(*bare[1:], STATEMENTS[0]))
    assert judge_next(tmp_path, some, "compare") == look_closer(tmp_path, some)
    words = judge_next(tmp_path / "a", replace(COMPARISON, statements=tuple(bare)), "study similarity")
    assert words[:3] == ["stratoscope", "study", "similarity"]
    assert words[3:] == ["--config", str(tmp_path / "a/run.yaml"), "--bootstrap", "20",
                         "--out", str(tmp_path / "a-intervals")]  # fmt: skip
