"""Published claims, judged on the user's own results: one module per paper."""

from stratoscope.claims.claim import INTERVALS_COVER
from stratoscope.claims.statements import (
    CLAIMS,
    claim_named,
    judge_attention,
    judge_comparison,
    judge_depth,
    judge_study,
)

__all__ = [
    "CLAIMS",
    "INTERVALS_COVER",
    "claim_named",
    "judge_attention",
    "judge_comparison",
    "judge_depth",
    "judge_study",
]
