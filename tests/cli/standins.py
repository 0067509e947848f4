"""Studies that do nothing but remember how they were called, and small results of every kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import MISSING, Value
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.cut import Cut
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.cutting.perplexity import Perplexities, Perplexity
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.probing import LayerProbes, Layers, Probing
from stratoscope.results.reproduction import Reproduction
from stratoscope.results.study import Study
from stratoscope.results.weights import Weights
from stratoscope.runs.folder import RunFolder

MODEL = ModelInfo("base", "base", "bert", 3, 8, "0" * 64)
STATEMENTS = tuple(
    Statement(
        id=f"claim-{k}:base",
        claim=f"claim number {k}",
        source="Somebody 2020",
        about={"model": "base", "unit": "cls"},
        value=value,
        margin=0.0,
        verdict=verdict,
        reason=reason,
    )
    for k, (verdict, value, reason) in enumerate(
        [(HOLDS, Value(0.25, 0.125, 0.375), ""), (FAILS, Value(-0.5), ""), (OPEN, MISSING, "too few layers")]
    )
)
COMPARISON = Comparison((), (MODEL,), {"name": "t.txt"}, statements=STATEMENTS, warnings=("beware",))
DEPTH = Depth(MODEL, None, {}, Value(0.9), 0.5, 0.6, (Curve("untuned", (0, 1, 2), np.zeros(3)),))
STUDY = Study({"cls": COMPARISON}, "base", ("tuned",), depth=DEPTH, statements=STATEMENTS)
FLAT = Curve("base", (0, 1), np.array([0.5, 0.5]))
PROBES = LayerProbes("base", "solved", FLAT, FLAT, FLAT, *(np.array([0.1, 0.1]) for _ in range(8)))
PROBING = Probing((MODEL,), {}, ("a", "b"), (1, 1), Value(0.5), Value(0.5), Layers((PROBES,)))
PERPLEXITIES = Perplexities(MODEL, {}, (Perplexity(9.0, 8.0, 10.0, 5, 2, 0),))
WEIGHTS = Weights((MODEL, MODEL), ())
CUT = Cut(
    model={}, loads_with="AutoModel", kept=(1,), dropped=(2,), task={}, metric="accuracy", budget=0.1, confidence=0.95,
    rows={}, whole_on_choice_rows=0.9, candidates=(), tested=(), before=MISSING, after=MISSING, difference=MISSING,
    baselines={}, head={}, length=8, parameters={}, latency={}, reload={},
)  # fmt: skip
REPRODUCTION = Reproduction("wu2020", "fig1", "Layers", "text", (), (), statements=STATEMENTS)
FINETUNED = Finetuned(
    seed=0, base={}, task={}, metric="accuracy", score=Value(0.75, 0.5, 1.0), parts={},
    baselines={"bag_of_words": 0.625, "majority": 0.5}, recipe={}, freeze=None, parameters={}, head="fresh", loss=(),
    early={}, seconds=1.0, weights="",
)  # fmt: skip


@dataclass
class Calls:
    """How studies were called: the arguments, the options, and what the page was written with."""

    of: list[SimpleNamespace] = field(default_factory=list)
    drawn: list[tuple[str, str]] = field(default_factory=list)

    @property
    def last(self) -> Any:
        return self.of[-1]


def install(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Put stand-ins in the place of every study and of the report."""
    calls = Calls()

    def study(command: str, result: Any) -> Callable[..., Any]:
        def run(*args: Any, out: Path, progress: Any, draw: Any = None, **known: Any) -> Any:
            calls.of.append(SimpleNamespace(command=command, args=args, out=out, **known))
            progress.note(f"a note of {command}")
            out.mkdir(parents=True, exist_ok=True)
            if isinstance(result, Finetuned):
                folder = out / "seed-0"
                folder.mkdir(exist_ok=True)
                result.save(folder)
                return [replace(result, folder=folder)]
            with progress.step("working", 2) as advance:
                advance(2)
            with RunFolder.open(out):
                result.save(out)
                if draw is not None:
                    draw(out, result)
            return result

        return run

    def write_report(folder: Path, result: Any, *, style: str = "screen") -> None:
        calls.drawn.append((str(folder), style))
        (folder / "report.html").write_text(style)

    results = "stratoscope.studies"
    modules = {
        f"{results}.compare.study": {
            "compare": study("compare", COMPARISON),
            "study_similarity": study("study similarity", COMPARISON),
        },
        f"{results}.reproduce.study": {"reproduce": study("reproduce", REPRODUCTION)},
        f"{results}.depth.study": {"depth": study("depth", DEPTH)},
        f"{results}.cut.study": {"cut": study("cut", CUT)},
        f"{results}.finetune.study": {"finetune": study("finetune", FINETUNED)},
        f"{results}.prune": {"prune": study("prune", FINETUNED)},
        f"{results}.finetuned.study": {"study_finetuned": study("study finetuned", STUDY)},
        f"{results}.perplexity.study": {"perplexity": study("perplexity", PERPLEXITIES)},
        f"{results}.probing.study": {"probe": study("probe", PROBING)},
        f"{results}.weights.study": {"weights": study("weights", WEIGHTS)},
        "stratoscope.demo.run": {
            "run_demo": lambda out, **known: study("demo", STUDY)(out=out, **known),
            "probe_demo": lambda out, **known: PROBING,
        },
        "stratoscope.report.write": {"write_report": write_report},
        "stratoscope.report.words": {"console_lines": lambda result: [f"the answer of a {result.kind().name}"]},
    }
    for name, names in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**names))
    return calls


RUNS = {
    "compare": "compare base tuned --data t.txt --out run",
    "depth": "depth tuned --data rows.jsonl --out run",
    "cut": "cut tuned --data rows.jsonl --budget 0.02 --out run",
    "finetune": "finetune base --data rows.jsonl --out run",
    "prune": "prune base --drop top:1 --data rows.jsonl --out run",
    "study finetuned": "study finetuned base tuned --data rows.jsonl --out run",
    "perplexity": "perplexity base --data t.txt --out run",
    "study similarity": "study similarity base tuned --data t.txt --out run",
    "reproduce": "reproduce wu2020 fig1 --out run",
    "probe": "probe base tuned --corpus t.jsonl --property upos --out run",
    "weights": "weights base tuned --out run",
    "demo": "demo --out run",
}
"""A line for every command that makes a run."""
