"""The table of claims."""

from __future__ import annotations

from stratoscope.claims import CLAIMS
from stratoscope.claims.works import WORKS, works


def test_claims_are_told_apart_and_cite_a_work_that_is_known() -> None:
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert all(w in WORKS for w in works(claim.source))
        assert claim.claim.endswith(".")
        assert "{D}" in claim.text
        assert claim.margin_meaning
        assert claim.value
