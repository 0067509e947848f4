from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ended import Command
from standins import COMPARISON, FINETUNED, STATEMENTS

from stratoscope.core.statement import FAILS, Statement
from stratoscope.core.value import Value


@pytest.fixture
def run(plain: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    for name, result in (("run", COMPARISON), ("ft", FINETUNED)):
        (plain / name).mkdir()
        result.save(plain / name)
    return plain / "run"


def test_every_statement_is_a_row(run: Path, command: Command) -> None:
    ended = command("findings", "run", "--verbose")
    assert ended.code == 0
    tally, header, *rows = ended.out.splitlines()
    assert tally == "1 holds · 1 does not hold · 1 cannot tell"
    assert header.split() == ["verdict", "claim", "about", "D", "(margin)", "reason"]
    for statement, row in zip(STATEMENTS, rows, strict=True):
        assert row.startswith(statement.verdict)
        for cell in (statement.claim, "model base · unit cls", statement.reason):
            assert cell in row
    assert "0.250 [0.125, 0.375]" in rows[0]
    assert "−0.500" in rows[1]
    assert "nan" not in ended.out


@pytest.mark.parametrize(
    ("verdicts", "left"), [(["holds"], [0]), (["does-not-hold"], [1]), (["cannot tell", "holds"], [0, 2])]
)
def test_by_verdict(run: Path, command: Command, verdicts: list[str], left: list[int]) -> None:
    chosen = [word for v in verdicts for word in ("--verdict", v)]
    document = json.loads(command("findings", "run", *chosen, "--json").out)
    assert [s["id"] for s in document["statements"]] == [STATEMENTS[k].id for k in left]
    assert len(command("findings", "run", *chosen, "--quiet").out.splitlines()) == 2 + len(left)


@pytest.fixture
def large(run: Path) -> list[Statement]:
    """A run of 42 statements on 14 claims, the last of which fails once, on a premise."""
    premise = {"premise": "b was fine-tuned from a"}
    many = [
        replace(
            STATEMENTS[0], id=f"paper-claim-{c}:{k}", claim=f"Claim {c}: {'very ' * 20}long.", value=Value(c + 0.1 * k)
        )
        for c in range(14)
        for k in range(3)
    ]
    many[-1] = replace(many[-1], verdict=FAILS, value=Value(-0.5, -0.75, -0.25), about=premise, reason="because")
    replace(COMPARISON, statements=tuple(many)).save(run)
    return many


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 50)])
def test_a_large_study_is_one_screen_with_a_line_per_claim(
    large: list[Statement], command: Command, monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = command("findings", "run").out.splitlines()
    assert len(shown) < lines
    assert all(len(line) <= columns for line in shown)
    assert shown[:2] == ["Assumed, not checked: b was fine-tuned from a.", "41 hold · 1 does not hold"]
    assert [line.split()[0] for line in shown[3:17]] == [str(k) for k in range(1, 15)]
    assert shown[3].split()[:3] == ["1", "✓3", "0.000"], "the case nearest to the margin, not the first or the mean"
    assert shown[16].split()[:6] == ["14", "✓2", "✗1", "−0.500", "[−0.750,", "−0.250]"]
    assert shown[-1] == "next: stratoscope findings run 14"


@pytest.mark.parametrize("name", ["14", "paper-claim-13", "paper-claim-13:2"])
def test_one_claim_in_detail_by_number_or_id(large: list[Statement], command: Command, name: str) -> None:
    out = command("findings", "run", name).out
    assert out.startswith("Claim 13: very ")
    assert "Assumed, not checked: b was fine-tuned from a." in out
    assert out.count("holds ") == 2
    assert "because" in out
    document = json.loads(command("findings", "run", name, "--json").out)
    assert [s["id"] for s in document["statements"]] == [f"paper-claim-13:{k}" for k in range(3)]
    unknown = command("findings", "run", "paper-claim-14")
    assert unknown.code == 2
    assert "did you mean 'paper-claim-" in unknown.err


def test_the_answer_for_a_program_has_every_claim(large: list[Statement], command: Command) -> None:
    premise, tally, *claims = json.loads(command("findings", "run", "--json").out)["answer"]
    assert (premise, tally) == ("Assumed, not checked: b was fine-tuned from a.", "41 hold · 1 does not hold")
    assert len(claims) == 14
    assert claims[0].startswith("3 hold: Claim 0: ")
    assert claims[-1].startswith("2 hold · 1 does not hold: Claim 13: ")
    assert claims[-1].endswith("D −0.500 [−0.750, −0.250]")


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
