from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ended import Command

import stratoscope
from stratoscope.cli.main import COMMANDS
from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.attention.table import MEASURES as ATTENTION
from stratoscope.measures.table import MEASURES
from stratoscope.models.families import FAMILIES
from stratoscope.models.read.store import PART
from stratoscope.results.comparison import Comparison
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import part_prefix

HEAVY = ("torch", "transformers", "matplotlib", "pandas", "numpy", "scipy", "plotly", "safetensors", "rich", "yaml")


@pytest.mark.parametrize("args", [["--help"], *([*name.split(), "--help"] for name in COMMANDS), ["--version"]])
def test_help_imports_nothing_heavy(args: list[str], environment: dict[str, str]) -> None:
    script = (
        "import sys\nfrom stratoscope.cli.main import run\n"
        f"sys.argv = ['stratoscope', *{args!r}]\n"
        "try:\n    run()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stratoscope" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "near"),
    [("compare a --data b -m ckasm", "ckasim"), ("compare a --data b --unit mena", "mean"),
     ("diff a b --data c --unit wrod", "word"), ("study finetuned a b --task sst2 --unit clss", "cls"),
     ("study similarity a b --data c -m svsm@0.5", "svsim")],
)  # fmt: skip
def test_a_misspelt_name_is_refused_before_anything_heavy_is_imported(
    words: str, near: str, environment: dict[str, str]
) -> None:
    script = (
        f"import sys\nfrom stratoscope.cli.main import run\nsys.argv = ['stratoscope', *{words.split()!r}]\n"
        "try:\n    run()\nexcept SystemExit as e:\n    assert e.code == 2\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"did you mean '{near}'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [("stratoscope per", {"perplexity"}), ("stratoscope compare --measure knn", {"knn", "knn-jaccard"}),
     ("stratoscope study fine", {"finetuned"}), ("stratoscope diff --no-ex", {"--no-examples"})],
)  # fmt: skip
def test_shells_complete_commands_options_and_names(words: str, offered: set[str], environment: dict[str, str]) -> None:
    asked = {
        "_STRATOSCOPE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "stratoscope"], env=environment | asked, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == offered, done.stderr


def test_the_package_runs_as_a_module(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stratoscope", "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["stratoscope", stratoscope.__version__]


def test_measures_lists_every_measure_with_its_reference(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    ended = command("measures")
    assert ended.code == 0
    every: list[tuple[str, Any]] = [("layers", m) for m in MEASURES] + [("attention", m) for m in ATTENTION]
    for of, measure in every:
        (line,) = [row for row in ended.out.splitlines() if row.split()[::2][:2] == [measure.name, of]]
        assert measure.summary in line
        assert measure.reference in line
        assert line.split()[1] == ("yes" if measure.symmetric else "no")


def test_families_lists_every_family(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    ended = command("families")
    assert ended.code == 0
    for family in FAMILIES:
        (line,) = [row for row in ended.out.splitlines() if row.split() and row.split()[0] == family.name]
        assert family.description in line
        assert family.reference in line


def test_compare_then_report_without_any_model(here: Path, home: Path, command: Command) -> None:
    shutil.copytree(home / "tuned", here / "mine")
    ended = command(
        *("compare", "base", "mine", "--data", "t.txt", "--out", "run", "--unit", "mean", "--name", "a", "--name", "b"),
        *("--measure", "svsim", "--measure", "neuronsim@0.5", "--layers", "1-3", "--limit", "8", "--seed", "3"),
        *("--memory", "1GB", "--workers", "1", "--batch-tokens", "99", "--device", "cpu", "--keep", "--standardise"),
    )
    assert ended.code == 0, ended.err
    assert "run/report.html" in ended.out
    assert "run/result.json" in ended.out
    assert "Traceback" not in ended.err
    assert re.search(
        r"^reading with 2 models: [\d,]+ to do\nreading with 2 models: done in ", ended.err, flags=re.MULTILINE
    )
    assert re.search(r"^drawing: done in ", ended.err, flags=re.MULTILINE)
    result = Comparison.load("run")
    assert list(result) == ["svsim", "neuronsim@0.5"]
    assert [str(r) for r in result["svsim"].rows] == ["a:1", "a:2", "a:3", "b:1", "b:2", "b:3"]
    assert (result.data["sentences"], result.data["unit"]) == (8, "mean")
    assert result.provenance["request"]["options"]["seed"] == 3
    kept = [p.name for p in (here / "run" / "parts").rglob("*.safetensors")]
    assert kept
    assert all(name.startswith(part_prefix(PART)) for name in kept), "activations and nothing else"

    before = {p: p.read_bytes() for p in (here / "run").rglob("*") if p.suffix in (".html", ".png", ".json")}
    assert {p.suffix for p in before} == {".html", ".png", ".json"}
    for path in before:
        if path.suffix != ".json":
            path.unlink()
    shutil.rmtree(here / "mine")
    (here / "base").unlink()
    ended = command("report", "run")
    assert ended.code == 0, ended.err
    assert {p: p.read_bytes() for p in before} == before

    again = command("report", "run")
    assert again.out == ended.out


def test_the_protocol_of_a_run_repeats_it(here: Path, command: Command, undrawn: None) -> None:
    how = ("--unit", "mean", "--layers", "1-3", "--limit", "8", "--seed", "3", "--memory", "1GB", "--random-init")
    ended = command("compare", "base", "tuned", "--name", "a", "--name", "b", "--data", "t.txt", *how, "--out", "run")
    assert ended.code == 0, ended.err
    ended = command("compare", "--config", "run/run.yaml", "--out", "again")
    assert ended.code == 0, ended.err
    for name in ("result.json", "run.yaml"):
        assert (here / "run" / name).read_bytes() == (here / "again" / name).read_bytes()
    assert "already holds this result" in command("compare", "--config", "run/run.yaml", "--out", "run").err


def test_a_second_run_has_nothing_to_do(here: Path, command: Command, undrawn: None) -> None:
    args = ("compare", "base", "--data", "t.txt", "--out", "run")
    assert command(*args).code == 0
    before = (here / "run" / "result.json").stat().st_mtime_ns
    ended = command(*args)
    assert ended.code == 0
    assert "already holds this result" in ended.err
    assert (here / "run" / "result.json").stat().st_mtime_ns == before


def test_the_report_is_written_while_the_folder_is_held(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratoscope.report import write as report

    held: list[str] = []

    def write(folder: Path, *args: object, **options: object) -> None:
        with pytest.raises(StratoscopeError, match="in use by another run"), RunFolder.open(folder):
            pass
        held.append(str(folder))

    monkeypatch.setattr(report, "write_report", write)
    assert command("compare", "base", "--data", "t.txt", "--out", "run").code == 0
    assert command("report", "run").code == 0
    assert held == ["run", "run"]


def test_a_killed_run_that_only_had_to_tidy_up_is_tidied(here: Path, command: Command, undrawn: None) -> None:
    args = ("compare", "base", "--data", "t.txt", "--out", "run")
    command(*args)
    (here / "run" / "parts").mkdir()
    (here / "run" / "parts" / "basis-1.safetensors").touch()
    assert command(*args).code == 0
    assert not (here / "run" / "parts").exists()


def test_json_on_disk_is_plain(here: Path, command: Command, undrawn: None) -> None:
    assert command("compare", "base", "--random-init", "--data", "t.txt", "--unit", "cls", "--out", "run").code == 0
    plain = json.loads((here / "run" / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert plain["matrices"][0]["values"][0] == [None] * 8
    assert [m["name"] for m in plain["models"]] == ["base", "base-random"]
