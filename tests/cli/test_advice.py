"""An error advises only options that the command has."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ended import Command

import stratoscope
import tiny
from stratoscope.cli.main import app
from stratoscope.core.errors import OPTION

RAGGED = "text\tlabel\ngood\t1\nbad\n"
NAMELESS = "gj04\tThe sailors slept.\t1\n" * 12


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), {o for p in command.params for o in p.opts + p.secondary_opts}


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("names", [n for n, options in ALL.items() if {"--data", "--out"} <= options], ids=" ".join)
@pytest.mark.parametrize("content", [RAGGED, NAMELESS], ids=["ragged", "no header"])
def test_a_table_that_cannot_be_read(here: Path, command: Command, names: tuple[str, ...], content: str) -> None:
    (here / "rows.tsv").write_text(content)
    needed = {
        "study": ["tuned"],
        "align": ["tuned"],
        "diff": ["tuned"],
        "inject": ["tuned"],
        "cut": ["--budget", "0.1"],
        "prune": ["--drop", "top:1"],
    }.get(names[0], [])
    needed = ["fig1", "--models", "base"] if names[0] == "reproduce" else needed
    model: Any = "wu2020" if names[0] == "reproduce" else "base"
    if names == ("study", "recovery"):
        model, needed = "--model", ["base"]
    model = model if names[0] != "perplexity" else tiny.checkpoint("gpt2", here / "decoder", head="causal")
    ended = command(*names, model, *needed, "--data", "rows.tsv", "--out", "run")
    assert ended.code == 2
    (sentence,) = ended.err.splitlines()
    advice = sentence.rpartition("; ")[2]
    assert ("fix the line" in advice) == (content == RAGGED)
    assert set(OPTION.findall(advice)) <= ALL[names]
    assert ("--columns" in advice) == ("--columns" in ALL[names])


def test_a_folder_without_weights(here: Path, home: Path, command: Command) -> None:
    shutil.copytree(home / "base", here / "hollow", ignore=shutil.ignore_patterns("*.safetensors"))
    (here / "rows.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 10)
    fact = "stratoscope: hollow has no weights (model.safetensors); give a checkpoint folder written by save_pretrained"
    for more in ((), ("--random-init",)):  # which adds a control to the model, and does not stand for it
        ended = command("compare", "hollow", *more, "--data", "t.txt", "--out", "run")
        assert ended.err == f"{fact}\n"
    for names in (("finetune", "hollow"), ("study", "finetuned", "base", "hollow")):
        ended = command(*names, "--data", "rows.csv", "--out", "run")
        assert ended.err.splitlines()[-1] == fact


def test_the_columns_of_a_published_task_cannot_be_named(here: Path, command: Command) -> None:
    folder = here / "SST-2"
    folder.mkdir()
    for train, words in {
        "text\tlabel\ngood\t1\n": "columns sentence, label, got no sentence; rename the columns (text, label)\n",
        "sentence\tlabel\ngood\t1\nbad\n": "line 3: expected 2 columns (sentence, label), got 1; fix the line\n",
        "sentence\tlabel\n1\t1\n": "got the number 1 and numbers only in the whole column\n",
        "sentence\tlabel\ngood\tyes\n": "labels negative, positive or 0, 1, got 'yes'; fix the row\n",
    }.items():
        for name in ("train.tsv", "dev.tsv"):
            (folder / name).write_text(train)
        ended = command("finetune", "base", "--task", "sst2", "--task-folder", "SST-2", "--out", "run")
        assert ended.code == 2
        assert words in ended.err
        assert not {"--text", "--pair", "--label", "--columns"} & set(OPTION.findall(ended.err))


def test_advice_names_options_that_some_command_has() -> None:
    """In the source, what follows the fact in a StratoscopeError is advice."""
    known = set().union(*ALL.values())
    seen: set[str] = set()
    for path in Path(stratoscope.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error"):
                words = [c.value for way in node.args[1:] for c in ast.walk(way) if isinstance(c, ast.Constant)]
                seen |= {option for word in words for option in OPTION.findall(str(word))}
    assert {"--columns", "--text", "--overwrite", "--dtype"} <= seen, "the search finds what is there"
    assert seen <= known
