from __future__ import annotations

import pytest

from stratoscope.report.references import to_cite


@pytest.mark.parametrize(
    ("measure", "sources"),
    [
        ("ckasim", ["Kornblith"]),
        ("svsim@0.1", ["Raghu"]),
        ("mixedsim-heldout", ["Bau"]),
        ("procrustes", ["Schönemann (1966)", "Williams"]),
        ("of another version", []),
    ],
)
def test_only_what_is_present_is_cited(measure, sources):
    found = to_cite([measure])
    assert len(found) == 2 + len(sources)
    assert all(r.startswith(first) for r, first in zip(found, ["Wu", "Phang", *sources], strict=True))


def test_a_work_behind_two_measures_is_cited_once():
    assert [r.split(",")[0] for r in to_cite(["ckasim", "cca", "linreg"])] == ["Wu", "Phang", "Kornblith"]
