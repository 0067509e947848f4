"""Published claims, judged on the user's own results: one module per paper."""

from stratoscope.claims.ren2023 import judge_alignment, judge_injection, judge_recovery
from stratoscope.claims.statements import (
    CLAIMS,
    judge_attention,
    judge_comparison,
    judge_depth,
    judge_freezing,
    judge_study,
)

__all__ = [
    "CLAIMS",
    "judge_alignment",
    "judge_attention",
    "judge_comparison",
    "judge_depth",
    "judge_freezing",
    "judge_injection",
    "judge_recovery",
    "judge_study",
]
