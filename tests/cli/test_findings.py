from __future__ import annotations

import json
from pathlib import Path

import pytest
from ended import Command
from standins import COMPARISON, FINETUNED, STATEMENTS


@pytest.fixture
def run(plain: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    for name, result in (("run", COMPARISON), ("ft", FINETUNED)):
        (plain / name).mkdir()
        result.save(plain / name)
    return plain / "run"


def test_every_statement_is_a_row(run: Path, command: Command) -> None:
    ended = command("findings", "run")
    assert (ended.code, ended.err) == (0, "")
    header, *rows = ended.out.splitlines()
    assert header.split() == ["verdict", "claim", "about", "D", "(margin)", "reason"]
    for statement, row in zip(STATEMENTS, rows, strict=True):
        assert row.startswith(statement.verdict)
        for cell in (statement.claim, "model base, unit cls", statement.reason):
            assert cell in row
    assert "0.250 [0.125, 0.375]" in rows[0]
    assert "-0.500" in rows[1]
    assert "nan" not in ended.out


@pytest.mark.parametrize(
    ("verdicts", "left"), [(["holds"], [0]), (["does-not-hold"], [1]), (["cannot tell", "holds"], [0, 2])]
)
def test_by_verdict(run: Path, command: Command, verdicts: list[str], left: list[int]) -> None:
    chosen = [word for v in verdicts for word in ("--verdict", v)]
    document = json.loads(command("findings", "run", *chosen, "--json").out)
    assert [s["id"] for s in document["statements"]] == [STATEMENTS[k].id for k in left]
    assert len(command("findings", "run", *chosen).out.splitlines()) == 1 + len(left)


def test_an_unknown_verdict(run: Path, command: Command) -> None:
    ended = command("findings", "run", "--verdict", "hold")
    assert ended.code == 2
    assert "'holds'" in ended.err


def test_no_statements_are_one_sentence(run: Path, command: Command) -> None:
    ended = command("findings", "ft")
    assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1)
    assert json.loads(command("findings", "ft", "--json").out)["statements"] == []


def test_a_folder_without_a_result(run: Path, command: Command) -> None:
    assert command("findings", "nowhere").code == 2
    ended = command("findings", ".")
    assert ended.code == 2
    assert "such as ft" in ended.err
