"""The worked example of ARCHITECTURE.md is code that runs: a whole analysis in at most 60 lines."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import stratoscope as ss
import tiny
from stratoscope.core.statement import OPEN
from stratoscope.report.write import write_report
from stratoscope.runs import kinds

ARCHITECTURE = Path(__file__).parents[1] / "ARCHITECTURE.md"
BLOCKS = re.findall(r"```python\n# (\S+?)\.py[^\n]*\n(.*?)```", ARCHITECTURE.read_text(encoding="utf-8"), re.S)
IMPORTS = """
from dataclasses import dataclass
import numpy as np
import torch
from stratoscope.claims.claim import Claim, Evidence
from stratoscope.claims.judge import statement, weigh
from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.options import answering
from stratoscope.core.progress import Silent
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Curves, Line
from stratoscope.results.result import Result
from stratoscope.runs.run import Request, run
from stratoscope.runs.kinds import Kind
from stratoscope.statistics.rows import chunks
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import make_plan
from stratoscope.studies.compare.study import read_plan
"""


def test_the_example_is_at_most_sixty_lines() -> None:
    assert [name for name, _ in BLOCKS] == [
        "results/norms",
        "claims/norms",
        "studies/norms",
        "report/sections/norms",
        "runs/kinds",
    ]
    assert sum(len([line for line in code.splitlines() if line.strip()]) for _, code in BLOCKS) <= 60


def test_the_example_runs_resumes_loads_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = types.ModuleType("stratoscope_example")
    monkeypatch.setitem(sys.modules, "stratoscope_example", example)
    future = "from __future__ import annotations\n"
    *code, row = (block for _, block in BLOCKS)
    exec(compile(future + IMPORTS + "\n".join(code), "ARCHITECTURE.md", "exec"), example.__dict__)
    kind = eval(row, example.__dict__)
    kind = kinds.Kind(
        **{**vars(kind), "result": "stratoscope_example:Norms", "sections": "stratoscope_example:sections"}
    )
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, kind))

    model = tiny.checkpoint("bert", tmp_path / "base")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(tiny.SENTENCES), encoding="utf-8")
    made = example.norms([str(model)], data=str(text), out=tmp_path / "run", draw=write_report)
    assert made.curves[0].layers == (0, 1, 2, 3)
    assert (made.curves[0].values > 0).all()
    assert [s.verdict for s in made.statements] == [OPEN], "no replicates, so no interval and no verdict"
    assert ss.load(tmp_path / "run").curves[0].values.tolist() == made.curves[0].values.tolist()
    assert "Mean length of a row." in (tmp_path / "run/report.html").read_text(encoding="utf-8")

    def not_again(*_: object) -> None:
        raise AssertionError("a finished result is computed again")

    monkeypatch.setattr(example, "compute", not_again)
    example.norms([str(model)], data=str(text), out=tmp_path / "run")
