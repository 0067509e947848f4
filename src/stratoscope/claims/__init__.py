"""Published claims, judged on the user's own results: one module per paper."""

from __future__ import annotations

from typing import Any


def judge_comparison(comparison: Any) -> tuple[()]:
    return ()


judge_depth = judge_study = judge_comparison
