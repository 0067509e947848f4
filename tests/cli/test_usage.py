"""A wrong command line: one sentence on stderr, exit code 2, nothing on stdout, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from ended import Command

COMPARE = "compare base --data t.txt --out run"
LINES = [
    ("compar base", "unknown command 'compar'; did you mean 'compare'? choose from: "),
    ("xyzzy", "unknown command 'xyzzy'; choose from: "),
    ("study fine", "unknown command 'fine'; did you mean 'finetuned'? choose from: "),
    (f"{COMPARE} --limt 3", "unknown option '--limt'; did you mean '--limit'? see 'stratoscope compare --help'\n"),
    (f"{COMPARE} --limt=3", "unknown option '--limt'; did you mean '--limit'? see 'stratoscope compare --help'\n"),
    (f"{COMPARE} --nonsense", "unknown option '--nonsense'; see 'stratoscope compare --help'\n"),
    (f"{COMPARE} -z", "unknown option '-z'; see 'stratoscope compare --help'\n"),
    ("depth base --no-skp", "unknown option '--no-skp'; did you mean '--no-skip'? see 'stratoscope depth --help'\n"),
    ("--foo", "unknown option '--foo'; see 'stratoscope --help'\n"),
    (
        "perplexity base",
        "expected --data (Text: a text file, JSONL, CSV, TSV, Parquet or hub data set), got none; see"
        " 'stratoscope perplexity --help'\n",
    ),
    (
        "compare --data t.txt --out run",
        "expected MODEL... (Checkpoint or adapter folders, .gguf files, saved activations or hub ids), got none; see"
        " 'stratoscope compare --help'\n",
    ),
    (
        "study finetuned base --out run",
        "expected TUNED... (Checkpoints fine-tuned from it, one or more), got none; see 'stratoscope study finetuned",
    ),
    (f"{COMPARE} --limit x", "expected --limit as a number, got 'x'; see 'stratoscope compare --help'\n"),
    (f"{COMPARE} --limit 3 --limit=2.5", "expected --limit as a whole number, got '2.5'; see 'stratoscope compare "),
    ("finetune base --out run --lr fast", "expected --lr as a number, got 'fast'; see 'stratoscope finetune --help'\n"),
    (f"{COMPARE} --limit", "expected a value after --limit, got none\n"),
    (f"{COMPARE} --keep=3", "expected --keep without a value, got '3'; leave the value out\n"),
    ("measures all of them", "expected no further argument, got 'all of them'; see 'stratoscope measures --help'\n"),
    ("--", "missing command; see 'stratoscope --help'\n"),
]


@pytest.mark.parametrize(("line", "sentence"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_is_one_sentence(here: Path, command: Command, line: str, sentence: str) -> None:
    ended = command(*line.split())
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith(f"stratoscope: {sentence}")
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")
    assert not (here / "run").exists()


@pytest.mark.parametrize(("args", "name"), [((), "compare"), (("study",), "finetuned")])
def test_a_group_alone_shows_its_help(command: Command, args: tuple[str, ...], name: str) -> None:
    alone, asked = command(*args), command(*args, "--help")
    assert (alone.code, alone.out) == (2, "")
    assert (asked.code, asked.err) == (0, "")
    assert alone.err == asked.out
    assert f"\n  {name}  " in alone.err
