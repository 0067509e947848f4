"""`--config`: a run's `run.yaml` repeats it, flags win, and what is not understood is refused."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ended import Command
from standins import RUNS, Calls
from test_options import FLAGS

from stratoscope.core.options import changed
from stratoscope.runs.protocol import write_protocol

ARGUMENTS: dict[str, dict[str, Any]] = {
    "compare": {"models": ["base", "tuned"], "data": "t.txt", "name": ["a", "b"], "dtype": "float16"},
    "depth": {"tuned": "tuned", "data": "rows.jsonl", "base": "base", "revision": "v1"},
    "cut": {"tuned": "tuned", "data": "rows.jsonl", "budget": 0.02},
    "finetune": {"base": "base", "data": "rows.jsonl", "train_rows": 9, "trust_remote_code": True},
    "prune": {"base": "base", "data": "rows.jsonl", "drop": "top:1"},
    "study finetuned": {"base": "base", "tuned": ["tuned", "other"], "data": "rows.jsonl", "across": ["away"]},
    "weights": {"base": "base", "tuned": "tuned", "name": ["a", "b"]},
    "perplexity": {"model": "base", "data": "t.txt", "device": "cpu"},
}
TYPED = {
    "compare": "--name a --name b --dtype float16",
    "depth": "--base base --revision v1",
    "finetune": "--train-rows 9 --trust-remote-code",
    "weights": "--name a --name b",
    "perplexity": "--device cpu",
}


def plain_call(call: SimpleNamespace) -> dict[str, Any]:
    return {k: v for k, v in vars(call).items() if k != "out"}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_protocol_repeats_the_run(name: str, plain: Path, studies: Calls, command: Command) -> None:
    flags, options = FLAGS[name]
    line = RUNS[name] if name != "study finetuned" else RUNS[name].replace(" tuned", " tuned other") + " --across away"
    assert command(*line.split(), *shlex.split(TYPED.get(name, "")), *shlex.split(flags)).code == 0
    write_protocol(plain / "run", {"command": name, **ARGUMENTS[name], **changed(options)})
    ended = command(*name.split(), "--config", "run/run.yaml", "--out", "again")
    assert ended.code == 0, ended.err
    first, second = studies.of
    assert plain_call(first) == plain_call(second)
    assert (first.out, second.out) == (Path("run"), Path("again"))


def test_flags_and_arguments_win(plain: Path, studies: Calls, command: Command) -> None:
    told = {"models": ["base", "tuned"], "data": "t.txt", "limit": 5, "measures": ["cca", "svsim"], "out": "there"}
    (plain / "c.yaml").write_text(yaml.safe_dump(told))
    assert command("compare", "other", "--config", "c.yaml", "--limit", "7", "-m", "rsa").code == 0
    call = studies.last
    assert [spec.source for spec in call.args[0]] == ["other"]
    assert (call.options.limit, call.options.measures) == (7, ("rsa",))
    assert (call.data, call.out) == ("t.txt", Path("there"))
    assert command("compare", "--limit", "7", "--config", "c.yaml").code == 0, "in any order"
    assert studies.last.options.limit == 7


def test_yaml_as_people_write_it(plain: Path, studies: Calls, command: Command) -> None:
    (plain / "c.yaml").write_text(
        "models: base\ndata: t.txt\nmeasures: cca\nlayers: [0, 2]\nmemory: 2GB\nlimit:\ncolumns: 5\nrandom_init: yes\n"
    )
    assert command("compare", "--config", "c.yaml", "--out", "run").code == 0
    told = {k: v for k, v in asdict(studies.last.options).items() if k in changed(studies.last.options)}
    assert told == {"measures": ("cca",), "layers": (0, 2), "memory": 2e9, "columns": "5", "random_init": True}
    (plain / "c.yaml").write_text("base: base\ndata: rows.jsonl\nlr: 3e-5\nepochs: 2\n")
    assert command("finetune", "--config", "c.yaml", "--out", "run").code == 0
    assert (studies.last.options.lr, studies.last.options.epochs) == (3e-5, 2)


REFUSED = {
    "unknown key": ("limt: 3", "'limit'"),
    "a flag's spelling": ("measure: cca", "'measures'"),
    "not for YAML": ("quiet: true", "'quiet'"),
    "another command": ("command: depth", "stratoscope depth"),
    "no whole number": ("limit: 2.5", "limit"),
    "no number": ("limit: many", "limit"),
    "true for a number": ("limit: true", "limit"),
    "text for a flag": ("random_init: 3", "random_init"),
    "true for a text": ("label: yes", "label"),
    "several for one": ("label: [a, b]", "label"),
    "keys for one": ("label: {a: b}", "label"),
    "no keys": ("- a", "list"),
    "no YAML": ("a: [", "YAML"),
}


@pytest.mark.parametrize(("text", "fact"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood(text: str, fact: str, plain: Path, studies: Calls, command: Command) -> None:
    (plain / "c.yaml").write_text(text)
    ended = command(*RUNS["compare"].split(), "--config", "c.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert fact in ended.err
    assert not studies.of


def test_no_such_file(plain: Path, studies: Calls, command: Command) -> None:
    ended = command(*RUNS["compare"].split(), "--config", "none.yaml")
    assert ended.code == 2
    assert "none.yaml" in ended.err


def test_what_neither_says_is_still_missing(plain: Path, studies: Calls, command: Command) -> None:
    (plain / "c.yaml").write_text("data: t.txt")
    ended = command("compare", "--config", "c.yaml", "--out", "run")
    assert ended.code == 2
    assert "MODEL..." in ended.err
