"""Published claims, judged on the user's own results: one module per paper."""

from stratoscope.claims.statements import (
    CLAIMS,
    judge_attention,
    judge_comparison,
    judge_depth,
    judge_freezing,
    judge_study,
)

__all__ = ["CLAIMS", "judge_attention", "judge_comparison", "judge_depth", "judge_freezing", "judge_study"]
