"""`stratoscope diff`, and where runs go that were given no folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ended import Command

from stratoscope.cli.folders import default_folder

QUICK = ("--bootstrap", "0")


def test_two_models_to_a_page_in_a_dozen_lines(here: Path, command: Command) -> None:
    ended = command("diff", "base", "tuned", "--data", "t.txt", *QUICK)
    assert ended.code == 0, ended.err
    lines = ended.out.strip().splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("tuned against base on t.txt (")
    assert lines[1].startswith("changed most     layer")
    assert "runs/diff-tuned/report.html" in ended.out
    assert lines[-1].startswith("next: stratoscope ")
    assert command(*lines[-1].removeprefix("next: stratoscope ").split()).code == 0
    told = json.loads(command("diff", "base", "tuned", "--data", "t.txt", *QUICK, "--json").out)
    assert (told["kind"], told["folder"]) == ("diff", "runs/diff-tuned")
    assert told["answer"] == lines[: len(told["answer"])]
    again = command("diff", "--config", "runs/diff-tuned/run.yaml")
    assert "already holds this result" in again.err


@pytest.mark.usefixtures("undrawn")
def test_another_request_goes_beside_and_each_is_found_again(here: Path, command: Command) -> None:
    def folder(*how: str) -> str:
        return str(json.loads(command("compare", "base", "--data", "t.txt", *how, "--json").out)["folder"])

    assert folder() == "runs/compare-base"
    assert folder("--seed", "7") == "runs/compare-base-2"
    assert folder("--seed", "8") == "runs/compare-base-3"
    assert folder("--seed", "7") == "runs/compare-base-2"
    assert folder() == "runs/compare-base"
    assert folder("--seed", "9", "--overwrite") == "runs/compare-base"


def test_names_of_default_folders() -> None:
    assert default_folder("diff", {"base": "a", "tuned": "x/b"}) == Path("runs/diff-b")
    assert default_folder("diff", {"base": "my-lora/", "tuned": None, "task": None}) == Path("runs/diff-my-lora")
    assert default_folder("diff", {"base": "a", "tuned": "b"}, ("old", "n w")) == Path("runs/diff-n-w")
    assert default_folder("depth", {"tuned": "a", "base": "b"}, ("t", "b")) == Path("runs/depth-t")
    assert default_folder("compare", {"models": ["a", "org/b@v1"]}) == Path("runs/compare-a-b-at-v1")
    assert default_folder("study finetuned", {"base": "a", "tuned": ["b", "c"]}) == Path("runs/study-finetuned-b-c")
    assert default_folder("finetune", {"base": "a", "task": "sst2"}) == Path("runs/finetune-a-sst2")
    assert default_folder("reproduce", {"paper": "wu2020", "item": "fig1", "models": ["a"]}) == Path(
        "runs/reproduce-wu2020-fig1"
    )
    assert default_folder("study recovery", {"model": None}) == Path("runs/study-recovery")
    assert len(default_folder("compare", {"models": ["m" * 300, "../..", "\udcff"]}).name) <= 80


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("diff base --data t.txt", "alone, which is no adapter"),
        ("diff base tuned", "expected --data"),
        ("diff base tuned --data t.txt --base base", "with an adapter alone"),
        ("compare base tuned --data t.txt --base base", "no model given is one"),
        ("diff base tuned --data t.txt --unit nonsense", "nonsense"),
    ],
)
def test_bad_input_is_one_sentence(here: Path, command: Command, line: str, words: str) -> None:
    ended = command(*line.split())
    assert ended.code == 2
    assert words in ended.err
    assert not Path("runs").exists()
