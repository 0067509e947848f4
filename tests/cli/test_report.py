from __future__ import annotations

import os
from pathlib import Path

import pytest
from ended import Command, Ended
from standins import COMPARISON, CUT, DEPTH, PERPLEXITIES, STUDY, Calls

from stratoscope.results.result import Result
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.kinds import KINDS


def left(folder: Path) -> list[str]:
    return sorted(os.path.relpath(p, folder) for p in folder.rglob("*"))


def refused(ended: Ended, *facts: str) -> None:
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    for fact in facts:
        assert fact in ended.err


@pytest.mark.parametrize("result", [COMPARISON, CUT, DEPTH, PERPLEXITIES, STUDY], ids=lambda r: r.KIND)
def test_every_kind_with_sections_is_drawn_again(plain: Path, studies: Calls, command: Command, result: Result) -> None:
    with RunFolder.open("run"):
        result.save("run")
    for style in ((), ("--style", "paper")):
        ended = command("report", "run", *style)
        assert ended.code == 0, ended.err
        assert f"the answer of a {result.KIND}" in ended.out
        assert "run/report.html" in ended.out
    assert studies.drawn == [("run", "screen"), ("run", "paper")]


def test_the_folder_is_held_meanwhile(plain: Path, studies: Calls, command: Command) -> None:
    with RunFolder.open("run"):
        COMPARISON.save("run")
        ended = command("report", "run")
    refused(ended, "in use")
    assert "--out" not in ended.err, "report has no such option"
    assert not studies.drawn


def test_an_unknown_style(plain: Path, command: Command) -> None:
    refused(command("report", "run", "--style", "papr"), "'paper'")


FOLDERS = {
    "finetune": (["ft/.lock", "ft/seed-0/config.json", "ft/seed-0/finetune.json"], "seed-0/finetune.json"),
    "one seed": (["seed-0/config.json", "seed-0/finetune.json"], "(finetune.json)"),
    "prune": (["less/base/config.json", "less/base/prune.json", "less/seed-0/finetune.json"], "base/prune.json"),
    "model": (["bert/config.json"], "holds no result"),
}


@pytest.mark.parametrize(("files", "fact"), FOLDERS.values(), ids=FOLDERS)
def test_what_has_no_page(plain: Path, command: Command, files: list[str], fact: str) -> None:
    for file in files:
        (plain / file).parent.mkdir(parents=True, exist_ok=True)
        (plain / file).touch()
    folder = files[0].partition("/")[0]
    before = left(plain / folder)
    drawn = [f"'stratoscope {kind.command}'" for kind in KINDS if kind.sections]
    refused(command("report", folder), fact, *drawn)
    assert left(plain / folder) == before


def test_no_result(plain: Path, command: Command) -> None:
    refused(command("report", "nowhere"), "nowhere")
    refused(command("report", "t.txt"), "t.txt", "a file")
    (plain / "other" / "deep").mkdir(parents=True)
    refused(command("report", "other"), "other holds no result")
    assert left(plain / "other") == ["deep"], "a folder that is not a run's is left as it is"
    (plain / "other" / "deep" / "depth.json").touch()
    refused(command("report", "other"), "such as other/deep")


def test_something_damaged(plain: Path, command: Command) -> None:
    with RunFolder.open("run"):
        COMPARISON.save("run")
    path = plain / "run" / "result.json"
    path.write_text(path.read_text().replace("base", "bose"))
    refused(command("report", "run"), "result.json is damaged")
