"""A statement has one of three verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.result_cases import COMPARISON, STATEMENTS
from stratoscope.core.statement import HOLDS, OPEN, PREMISE, VERDICTS, Statement
from stratoscope.core.value import Value


def test_there_are_three_verdicts_and_no_other() -> None:
    assert len(set(VERDICTS)) == 3
    for verdict in VERDICTS:
        assert replace(STATEMENTS[0], verdict=verdict).verdict == verdict
    for wrong in ("Holds", "", "maybe"):
        with pytest.raises(ValueError, match=f"'{wrong}'"):
            replace(STATEMENTS[0], verdict=wrong)


def test_a_statement_is_one_readable_line() -> None:
    about = {"tuned": "t\x1b[31m\n", "base": "b", PREMISE: "b is the base of t"}
    said = Statement("c:b:t", "Tops change.", "Wu", about, Value(0.25, 0.1, 0.4), 0.05, HOLDS)
    assert repr(said) == "holds: Tops change. (base b · tuned t\ufffd[31m\ufffd) D 0.250 [0.100, 0.400], margin 0.05"
    withheld = replace(said, verdict=OPEN, reason="too few layers", value=Value(float("nan")), about={})
    assert repr(withheld) == "cannot tell: Tops change. too few layers"


def test_the_statements_of_a_result_are_lines_and_a_table() -> None:
    result = replace(COMPARISON, statements=STATEMENTS)
    assert repr(result.statements).splitlines() == [repr(s) for s in STATEMENTS]
    assert result.statements == STATEMENTS
    assert replace(result, statements=()).statements == ()
    assert repr(replace(result, statements=()).statements) == "no statements"
    assert result.statements._repr_html_().count("<tr>") == 1 + len(STATEMENTS)  # type: ignore[attr-defined]
