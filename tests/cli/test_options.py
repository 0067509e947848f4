"""Commands made from dataclasses of options, and what every command has."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from ended import Command
from standins import RUNS, Calls

from stratoscope.cli.answer import Answer
from stratoscope.cli.main import COMMANDS, app
from stratoscope.cli.options import command as as_command
from stratoscope.core.options import option, read_options, typed
from stratoscope.studies.compare.options import CompareOptions, SimilarityOptions
from stratoscope.studies.cut.options import CutOptions
from stratoscope.studies.depth.options import DepthOptions
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetuned.options import StudyOptions
from stratoscope.studies.perplexity.options import PerplexityOptions
from stratoscope.studies.reproduce.options import ReproduceOptions
from stratoscope.studies.weights.options import WeightsOptions

OPTIONS = {
    "compare": CompareOptions,
    "depth": DepthOptions,
    "cut": CutOptions,
    "finetune": FinetuneOptions,
    "prune": TrainingOptions,
    "study finetuned": StudyOptions,
    "perplexity": PerplexityOptions,
    "study similarity": SimilarityOptions,
    "reproduce": ReproduceOptions,
    "weights": WeightsOptions,
}


def parameters(name: str) -> dict[str, Any]:
    found: Any = typer.main.get_command(app)
    for word in name.split():
        found = found.commands[word]
    return {p.name: p for p in found.params}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_four_common_flags_and_help_for_all(name: str) -> None:
    params = parameters(name)
    assert {"--config", "--json", "--quiet", "--verbose"} <= {o for p in params.values() for o in p.opts}
    assert all(p.help for p in params.values())


@pytest.mark.parametrize(("name", "options"), OPTIONS.items())
def test_defaults_are_those_of_the_dataclass(
    name: str, options: type, plain: Path, studies: Calls, command: Command
) -> None:
    ended = command(*RUNS[name].split())
    assert ended.code == 0, ended.err
    assert studies.last.command == name
    assert studies.last.options == options()
    assert type(studies.last.options) is options


FLAGS = {
    "compare": (
        "--unit cls -m cca --measure svsim@0.5 --layers 0,2-3 --limit 7 --seed 3 --bootstrap 20 --random-init --text a"
        " --pair b --label c --columns 'a b c' --split dev --standardise --batch-tokens 99 --memory 2GB --workers 1"
        " --store float16 --keep --overwrite --subword first --save-activations x.hdf5 --engine ray --shard 3/8",
        CompareOptions(
            "cls", ("cca", "svsim@0.5"), "first", (0, 2, 3), 7, 3, 20, True, "a", "b", "c", "a b c", "dev", True, 99,
            2e9, "float16", True, True, "x.hdf5", workers=1, engine="ray", shard="3/8",
        ),
    ),
    "depth": ("--no-skip --seed 1 --length 9", DepthOptions(1, 9, None, False)),
    "cut": (
        "--head --confidence 0.9 --blocks any --keep 2",
        CutOptions(head=True, confidence=0.9, blocks="any", keep=2),
    ),
    "finetune": (
        "--recipe quick --lr 3e-5 --epochs 0.5 --freeze top:1 --seeds 2 --first-seed 4",
        FinetuneOptions("quick", 3e-5, epochs=0.5, freeze="top:1", seeds=2, first_seed=4),
    ),
    "prune": ("--batch 4 --max-steps 7 --warmup 0.1", TrainingOptions(batch=4, max_steps=7, warmup=0.1)),
    "study finetuned": (
        "--unit cls --no-control --no-depth --localization --limit 5",
        StudyOptions(("cls",), 5, control=False, depth=False, localization=True),
    ),
    "weights": ("--no-rank --workers 2", WeightsOptions(rank=False, workers=2)),
    "perplexity": ("--limit 5 --length 7", PerplexityOptions(limit=5, length=7)),
    "study similarity": ("--random-init --limit 5", SimilarityOptions(limit=5, random_init=True)),
    "reproduce": (
        "--models a --models base=b --data t --task rte --task sst2 --task-folder f --rows r --validation v --set x=1",
        ReproduceOptions(("a", "base=b"), "t", ("rte", "sst2"), "f", "r", "v", ("x=1",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_flags_become_options_and_options_flags(name: str, plain: Path, studies: Calls, command: Command) -> None:
    flags, options = FLAGS[name]
    assert command(*RUNS[name].split(), *shlex.split(flags)).code == 0
    assert studies.last.options == options
    assert command(*RUNS[name].split(), *typed(options)).code == 0
    assert studies.last.options == options, "as typed again"


def test_models_are_loaded_as_asked(plain: Path, studies: Calls, command: Command) -> None:
    how = ("--device", "cpu", "--dtype", "float16", "--revision", "v1", "--name", "a", "--name", "b", "--allow-pickle")
    assert command(*RUNS["compare"].split(), *how).code == 0
    (specs,) = studies.last.args
    assert [(s.source, s.name) for s in specs] == [("base", "a"), ("tuned", "b")]
    assert {(s.device, s.dtype, s.revision, s.allow_pickle, s.trust_remote_code) for s in specs} == {
        ("cpu", "float16", "v1", True, False)
    }
    assert command(*RUNS["depth"].split(), "--base", "base", "--revision", "v1").code == 0
    assert (studies.last.args[0].revision, studies.last.base.revision) == ("v1", None), "a revision of TUNED only"
    ended = command(*RUNS["compare"].split(), "--name", "a")
    assert ended.code == 2
    assert "--name" in ended.err


def test_the_rows_of_a_task_remember_where_they_came_from(plain: Path, studies: Calls, command: Command) -> None:
    assert command(*RUNS["depth"].split(), "--text", "text", "--train-rows", "9").code == 0
    task = studies.last.args[1]
    given = {k: v for k, v in task.source.items() if v is not None}
    assert given == {"task": "rows", "data": "rows.jsonl", "text": "text", "train_rows": 9}
    assert (task.name, len(task.train)) == ("rows", 9)


@dataclass(frozen=True)
class Some:
    """Options."""

    level: int = option(1, "How high.")


def test_an_option_is_spelled_once() -> None:
    def twice(some: Some, level: int = 2) -> Answer: ...

    twice.__annotations__ = {"some": Some, "level": int, "return": Answer}
    with pytest.raises(ValueError, match="level"):
        as_command(twice)


@pytest.mark.parametrize("name", RUNS)
def test_after_a_run_the_answer_the_page_and_the_next_command(
    name: str, plain: Path, studies: Calls, command: Command
) -> None:
    ended = command(*RUNS[name].split())
    assert ended.code == 0, ended.err
    *answer, last = ended.out.splitlines()
    assert any(("answer of" in line or "accuracy 0.750 [0.500, 1.000]" in line) for line in answer)
    made_models = name in ("finetune", "prune")
    assert any("run/report.html" in line for line in answer) != made_models
    assert (studies.drawn == [("run", "screen")]) != made_models
    assert f"a note of {name}" in ended.err
    assert last.startswith("next: stratoscope ")
    follow = command(*shlex.split(last)[2:])
    assert follow.code == 0, f"{last}: {follow.err}"


def test_the_next_command_has_the_same_rows_and_models(plain: Path, studies: Calls, command: Command) -> None:
    how = ("--label", "label", "--device", "cpu", "--trust-remote-code")
    assert "'rows 1.jsonl'" not in command(*RUNS["finetune"].split(), *how).out
    (plain / "rows 1.jsonl").write_text((plain / "rows.jsonl").read_text())
    ended = command("prune", "base", "--drop", "top:1", "--data", "rows 1.jsonl", *how, "--out", "my run")
    words = shlex.split(ended.out.splitlines()[-1])
    assert words == [
        "next:", "stratoscope", "study", "finetuned", "my run/base", "my run/seed-0", "--data", "rows 1.jsonl",
        "--label", "label", "--device", "cpu", "--trust-remote-code", "--out", "my run-study",
    ]  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_json_is_one_document_and_nothing_else(name: str, plain: Path, studies: Calls, command: Command) -> None:
    ended = command(*RUNS[name].split(), "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["folder"] == "run"
    assert document["kind"] == {"compare": "comparison", "study finetuned": "study", "demo": "study",
                                "finetune": "finetuned", "prune": "finetuned", "study similarity": "comparison",
                                "reproduce": "reproduction", "probe": "probing"}.get(name, name)  # fmt: skip
    assert document["answer"]
    assert document["next"].startswith("stratoscope ")
    if name == "compare":
        assert {"result.json", "report.html"} <= set(document["files"])
        assert document["warnings"] == ["beware"]
        assert [s["verdict"] for s in document["statements"]] == ["holds", "does not hold", "cannot tell"]
        assert document["statements"][0]["value"] == {"value": 0.25, "low": 0.125, "high": 0.375}
        assert document["statements"][2]["value"]["value"] is None


@pytest.mark.parametrize("name", ["measures", "families", "tasks"])
def test_lists_for_machines(name: str, command: Command) -> None:
    document = json.loads(command(name, "--json").out)
    assert all(row["reference"] for row in document[name])


@pytest.mark.parametrize(
    "line",
    [
        "compare base --json",
        "compare base --data t.txt --out run --limt 3 --json",
        "compare base --data t.txt --out run --name a --name b --json",
        "findings nowhere --json",
        "compar --json",
    ],
)
def test_an_error_for_machines(line: str, plain: Path, studies: Calls, command: Command) -> None:
    ended = command(*line.split())
    assert ended.code == 2
    document = json.loads(ended.out)
    assert list(document) == ["error"]
    assert ended.err == f"stratoscope: {document['error']}\n"


def test_quiet_and_verbose(plain: Path, studies: Calls, command: Command) -> None:
    line = RUNS["compare"].split()
    quiet, usual, verbose = (command(*line, *more) for more in (["--quiet"], [], ["--verbose"]))
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out == usual.out.splitlines()[0] + "\n", "the answer only"
    assert verbose.out == usual.out
    assert set(usual.err.splitlines()) < set(verbose.err.splitlines())
    assert command(*line, "--quiet", "--verbose").code == 2


def test_control_characters_in_a_name_stay_out_of_the_sentence(plain: Path, command: Command) -> None:
    ended = command("findings", "no\x1b[2J\nwhere")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert ended.err.count("\n") == 1


def test_keywords_are_read_as_flags_are() -> None:
    assert read_options(CompareOptions, {"layers": "0,2-3", "memory": "1GB", "measures": "cca"}) == CompareOptions(
        layers=(0, 2, 3), memory=1e9, measures=("cca",)
    )
    assert read_options(CompareOptions, {"layers": [1, 2], "measures": ["a", "b"]}).layers == (1, 2)
    assert read_options(CompareOptions, {"layers": None}).layers is None


def test_a_probing_study_ranks_neurons_too(plain: Path, studies: Calls, command: Command) -> None:
    line = ["base", "tuned", "--corpus", "t.jsonl", "--property", "upos", "--out", "run"]
    assert command("study", "probing", *line).code == 0
    assert studies.last.options.neurons
    assert [m.source for m in studies.last.args[0]] == ["base", "tuned"]
    assert (studies.last.corpus, studies.last.property) == ("t.jsonl", "upos")
    assert command("probe", *line, "--solver", "published").code == 0
    assert not studies.last.options.neurons
    assert studies.last.options.solver == "published"
