"""Attention on the command line: compared, drawn, repeated from its protocol, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path

from ended import Command

from stratoscope.results.attention import Attention


def test_attention_is_compared_and_drawn(here: Path, command: Command) -> None:
    how = ("--measure", "js", "--measure", "ckasim", "--causal", "--limit", "8", "--bootstrap", "20", "--workers", "1")
    ended = command("attention", "base", "tuned", "--data", "t.txt", *how, "--out", "run")
    assert ended.code == 0, ended.err
    assert "Most redundant head" in ended.out
    assert "run/attention.json" in ended.out
    result = Attention.load("run")
    assert list(result) == ["js", "ckasim"]
    assert (result.data["sentences"], result.data["causal"]) == (8, True)
    assert (here / "run" / "figures" / "patterns.png").is_file()
    assert (here / "run" / "figures" / "heads-js.svg").is_file()
    assert (here / "run" / "tables" / "redundant.csv").is_file()
    assert not (here / "run" / "parts").exists()


def test_the_study_has_every_measure_and_its_protocol_repeats_it(here: Path, command: Command, undrawn: None) -> None:
    how = ("--limit", "8", "--bootstrap", "20", "--random-init")
    ended = command("study", "attention", "base", "tuned", "--data", "t.txt", *how, "--out", "run")
    assert ended.code == 0, ended.err
    assert len(Attention.load("run")) == 7
    ended = command("study", "attention", "--config", "run/run.yaml", "--out", "again")
    assert ended.code == 0, ended.err
    for name in ("attention.json", "run.yaml"):
        assert (here / "run" / name).read_bytes() == (here / "again" / name).read_bytes()
    assert "already holds this result" in command("study", "attention", "--config", "run/run.yaml", "--out", "run").err


def test_what_cannot_be_compared_is_one_sentence(here: Path, command: Command) -> None:
    for wrong, said in (("--measure=cka", "ckasim"), ("--layers=0-1", "no layer 0"), ("--limit=0", "limit")):
        ended = command("attention", "base", "--data", "t.txt", wrong, "--out", "run")
        assert ended.code == 2
        assert said in ended.err
        assert ended.err.count("\n") == 1
    assert not (here / "run").exists()
