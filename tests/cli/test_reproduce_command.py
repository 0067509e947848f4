"""`stratoscope reproduce`: listed, planned, run; and `study similarity`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ended import Command
from standins import Calls

import stratoscope as ss


def test_models_follow_one_flag(plain: Path, studies: Calls, command: Command) -> None:
    ended = command("reproduce", "wu2020", "fig4", "--models", "a", "b", "c", "--data", "t.txt", "--out", "run")
    assert ended.code == 0, ended.err
    assert studies.last.args == ("wu2020", "fig4")
    assert studies.last.options.models == ("a", "b", "c")
    assert studies.last.options.data == "t.txt"


def test_what_there_is_is_listed(command: Command) -> None:
    found = json.loads(command("reproduce", "--list", "--json").out)["protocols"]
    assert {(p["paper"], p["item"]) for p in found} >= {("wu2020", "fig1"), ("wu2020", "table1"), ("phang2021", "fig7")}
    only = json.loads(command("reproduce", "phang2021", "--list", "--json").out)["protocols"]
    assert {p["paper"] for p in only} == {"phang2021"}
    ended = command("reproduce", "wu2019", "--list")
    assert ended.code == 2
    assert "did you mean 'wu2020'" in ended.err


def test_a_dry_run_shows_commands_and_cost_and_runs_nothing(here: Path, command: Command) -> None:
    words = ("reproduce", "wu2020", "fig8", "--models", "base", "tuned", "--data", "t.txt", "--out", "run", "--dry-run")
    ended = command(*words)
    assert ended.code == 0, ended.err
    assert "stratoscope compare base tuned --data t.txt" in ended.out
    assert "--out run/compare" in ended.out
    assert "FLOP" in ended.out
    assert not Path("run").exists()
    (job,) = json.loads(command(*words, "--json").out)["jobs"]
    assert set(job) == {"command", "cost"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reproduce", "expected a paper and an item"),
        ("reproduce wu2020", "expected a paper and an item"),
        ("reproduce wu2020 figg1 --out run", "unknown item of wu2020 'figg1'; did you mean 'fig1'"),
        ("reproduce wu2020 fig1 --out run", "give yours with --data"),
    ],
)
def test_what_is_missing_is_one_sentence(here: Path, command: Command, line: str, words: str) -> None:
    ended = command(*line.split())
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert words in ended.err
    assert not Path("run").exists()


def test_a_figure_from_the_command_line(here: Path, command: Command, undrawn: None) -> None:
    words = ("--models", "base", "--data", "t.txt", "--set", "bootstrap=0")
    ended = command("reproduce", "wu2020", "fig1", *words, "--out", "run")
    assert ended.code == 0, ended.err
    assert [d.folder for d in ss.load("run").done] == ["compare"]
    again = command("reproduce", "--config", "run/run.yaml", "--out", "again")
    assert again.code == 0, again.err
    assert list(ss.load("again/compare")) == ["neuronsim", "ckasim"]


def test_similarity_is_five_measures_localization_and_a_control_each(
    here: Path, command: Command, undrawn: None
) -> None:
    ended = command("study", "similarity", "base", "tuned", "--data", "t.txt", "--random-init", "--out", "run")
    assert ended.code == 0, ended.err
    result = ss.load("run")
    assert list(result) == ["neuronsim", "mixedsim", "svsim", "pwsim", "ckasim"]
    assert [(m.name, m.role, m.base) for m in result.models] == [
        ("base", "model", None),
        ("tuned", "model", None),
        ("base-random", "control", "base"),
        ("tuned-random", "control", "tuned"),
    ]
    assert len({m.fingerprint for m in result.models}) == 4, "controls of one shape are drawn apart"
    assert set(result.findings["localization"]) == {"base", "tuned"}
    assert set(result.findings["localization_alone"]) >= {"base-random", "tuned-random"}
    said = yaml.safe_load(Path("run/run.yaml").read_text())
    assert (said["command"], said["models"], said["random_init"]) == ("study similarity", ["base", "tuned"], True)
    again = command("study", "similarity", "--config", "run/run.yaml", "--out", "again")
    assert again.code == 0, again.err
    assert ss.load("again").provenance["digest"] == result.provenance["digest"]
