from __future__ import annotations

import pytest

from stratoscope.claims.works import WORKS, works
from stratoscope.measures.measure import Measure
from stratoscope.measures.table import MEASURES


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)
def test_every_work_a_measure_is_from_is_given_in_full(measure: Measure) -> None:
    assert set(works(measure.reference)) <= set(WORKS)


def test_the_short_form_is_that_of_the_full_one() -> None:
    for short, full in WORKS.items():
        assert full.startswith(short.split()[0])
        assert f"({short.split()[-1]}). " in full
