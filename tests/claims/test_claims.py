"""The table of claims."""

from __future__ import annotations

import pytest

from stratoscope.claims import CLAIMS, INTERVALS_COVER, claim_named
from stratoscope.claims.works import WORKS, works
from stratoscope.core.errors import StratoscopeError


def test_claims_are_told_apart_and_cite_a_work_that_is_known() -> None:
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert all(w in WORKS for w in works(claim.source))
        assert claim.claim.endswith(".")
        assert "{D}" in claim.text
        assert claim.margin_meaning
        assert claim.value


def test_a_claim_is_found_by_the_id_of_its_statement() -> None:
    assert claim_named("wu2020-top-changes-more:cls:base:tuned").id == "wu2020-top-changes-more"
    with pytest.raises(StratoscopeError) as error:
        claim_named("wu2020-top-changes")
    assert "wu2020-top-changes-more" in str(error.value)


def test_what_intervals_cover_is_said() -> None:
    assert "sample size" in INTERVALS_COVER
