"""A statement has one of three verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.result_cases import STATEMENTS
from stratoscope.core.statement import VERDICTS


def test_there_are_three_verdicts_and_no_other() -> None:
    assert len(set(VERDICTS)) == 3
    for verdict in VERDICTS:
        assert replace(STATEMENTS[0], verdict=verdict).verdict == verdict
    for wrong in ("Holds", "", "maybe"):
        with pytest.raises(ValueError, match=f"'{wrong}'"):
            replace(STATEMENTS[0], verdict=wrong)
