from __future__ import annotations

import dataclasses

import pytest
import report_cases as cases

from stratoscope.report.words import MOST_LINES, console_lines


@pytest.mark.parametrize("kind", cases.KINDS)
def test_the_console_has_the_answer_first_in_a_dozen_lines(kind):
    lines = console_lines(cases.KINDS[kind]())
    assert 0 < len(lines) <= MOST_LINES
    assert not lines[0].startswith((" ", "warning", "published"))


def test_statements_follow_their_count_and_contradictions_come_first():
    lines = console_lines(cases.comparison())
    start = next(k for k, line in enumerate(lines) if "1 holds · 1 does not hold · 2 cannot tell" in line)
    assert [line.split(" – ")[0].strip() for line in lines[start + 1 : start + 5]] == [
        *("does not hold", "holds", "cannot tell", "cannot tell")
    ]
    assert "D −0.031 [−0.052, −0.008]" in lines[start + 1]
    assert lines[-1].startswith("warning: ")


def test_a_premise_is_said_once_before_the_claims_and_not_within_them():
    premise = {"premise": "tuned was fine-tuned from base"}
    made = cases.comparison()
    assumed = tuple(dataclasses.replace(s, about={**s.about, **premise}) for s in made.statements)
    lines = console_lines(dataclasses.replace(made, statements=assumed))
    said = [k for k, line in enumerate(lines) if "tuned was fine-tuned from base" in line]
    assert said == [next(k for k, line in enumerate(lines) if line.startswith("published claims")) - 1]
    assert lines[said[0]] == "Assumed, not checked: tuned was fine-tuned from base."
    assert not any("Assumed" in line for line in console_lines(made))


def test_what_does_not_fit_is_counted():
    many = tuple(dataclasses.replace(s, id=f"{k}") for k in range(10) for s in cases.statements())
    lines = console_lines(dataclasses.replace(cases.comparison(), statements=many))
    assert len(lines) == MOST_LINES
    told = sum(" – " in line for line in lines)
    assert any(f"and {40 - told} more" in line for line in lines)


def test_names_cannot_control_the_terminal():
    name = "evil\x1b[2J\x07\nwarning: all is lost\r"
    result = dataclasses.replace(cases.comparison(("base", name, "mini"), depths=(4, 4, 4)), warnings=(f"a {name}",))
    text = "\n".join(console_lines(result))
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert all(line.startswith(("evil", " ", "published", "warning: a evil")) for line in text.split("\n"))
