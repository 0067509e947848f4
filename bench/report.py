"""What was measured, as Markdown tables: figures, goals beside them, and whether they are met."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from inputs import Rows
from peers import PEERS
from plain import WU2020
from trials import Outcome

GRAM, SVD, RBF, EXTRACTION, ACCURACY, HELP, GROWTH = 2.5, 6.0, 100.0, 0.9, 1e-6, 0.5, 1.1
"""Goals of the issue; memory that "does not grow" may differ by a tenth from run to run."""


@dataclass(frozen=True)
class Findings:
    """Everything one run of the benchmark found."""

    command: str
    small: bool
    machine: Mapping[str, str]
    words: Rows
    cls: Sequence[Rows]
    rounds: int
    pairs: Sequence[tuple[int, int]]
    absent: Mapping[str, str]
    """Peers that could not be installed or used, and why."""
    outcomes: Mapping[str, Sequence[Outcome]]
    """One outcome a round, by contender."""
    reference: Mapping[str, Outcome]
    """Float64 scores by number of rows."""
    memory: Mapping[int, Outcome]
    """Our engine by number of rows."""
    extraction: Sequence[Outcome]
    help_seconds: float

    def reason(self, name: str) -> str | None:
        """Why a contender has no figures."""
        if name in self.absent:
            return self.absent[name]
        if name not in self.outcomes:
            return "not run"
        failed = [o["failed"] for o in self.outcomes[name] if "failed" in o]
        return f"failed: {failed[0]}" if failed else None

    def mid(self, name: str, figure: Callable[[Outcome], float]) -> float:
        """Median over the rounds; NaN for a contender that failed."""
        return math.nan if self.reason(name) else median(figure(o) for o in self.outcomes[name])

    def ratio(self, top: str, bottom: str, of: Callable[[Outcome], float], over: Callable[[Outcome], float]) -> float:
        """Median over the rounds of one contender's figure over another's in the same round."""
        if self.reason(top) or self.reason(bottom):
            return math.nan
        turns = zip(self.outcomes[top], self.outcomes[bottom], strict=True)
        return median(of(a) / over(b) for a, b in turns)


def write(f: Findings) -> str:
    """The whole page."""
    rows = f.words
    title = ["# Benchmark of the similarity engine", ""]
    if f.small:
        title += ["**A `--small` run: it shows that every part runs. Its figures mean nothing.**", ""]
    facts = {"command": f"`{f.command}`", **f.machine, "rows": f"{rows.source}; {_size(rows)}"}
    facts |= {"rounds": f"{f.rounds}, contenders taking turns; figures are medians"}
    facts |= {"sample of pairs": f"layers {', '.join(f'{i}–{j}' for i, j in f.pairs)} (second model from {rows.first})"}
    parts = [
        *title,
        *[f"- {name}: {value}" for name, value in facts.items()],
        "\n## Goals\n",
        _table(("what", "measured", "goal", "met"), _goals(f)),
        "\n## Time and memory, all layers\n",
        _table(("run", "wall s", "CPU s", "peak GB", "GFLOP/s", "of peak"), _times(f)),
        "\nGFLOP/s counts the operations of the joint Gram matrix only, over the whole wall time.",
        "\n## Peers, CPU seconds for all pairs\n",
        _table(("peer, one thread", "our measures", "pairs timed", "peer, scaled", "ours", "ratio"), _peers(f)),
        "\nScaled from the sample to all pairs. Ours is measured on all pairs: CPU seconds of all its processes, their"
        " start included.",
        "\n## Worst difference from float64\n",
        _table(("measure", "ours", "per-pair SVD, float32", "peer"), _accuracy(f, str(rows.n))),
        "\nckasim-minibatch estimates ckasim-debiased of all rows, and its difference is mostly that of an estimate;"
        " ckasim-rbf takes its bandwidth from 2,048 rows, the reference from all.",
        "\n## Few rows ([CLS])\n",
        _table(("rows", "ours, wall s", "ours, CPU s", "per-pair SVD, scaled", "ratio", "worst difference"), _few(f)),
        "\nWith fewer rows than neurons, measures that are 1 for any two layers are left out of ours, and pwsim is not"
        " unique where correlations repeat: its difference is shown apart.",
        "\n## Memory\n",
        _table(("rows", "peak GB", "wall s"), _memory(f)),
    ]
    return "\n".join(parts) + "\n"


def _goals(f: Findings) -> list[tuple[str, ...]]:
    over_gram = f.ratio("linear", "gram", _wall, _wall)
    six = f.ratio("six", "gram", _wall, _wall)
    shared = f.ratio("plain", "linear", _cost(f.words.stored.layers, f.words.pairs), _cpu)
    apart = f.ratio("plain", "linear", _cost(2 * f.words.pairs, f.words.pairs), _cpu)
    twice = _cost(2 * f.words.stored.layers, f.words.pairs)
    authors, all_apart = f.ratio("authors", "wu2020", twice, _cpu), f.ratio("authors all", "linear", twice, _cpu)
    worst = max(_deviations(f, "linear", str(f.words.n)).values(), default=math.nan)
    small, large = (f.memory[k].get("peak", math.nan) for k in sorted(f.memory))
    few, many = sorted(f.memory)
    found = [
        ("all nine linear measures, wall, over the joint Gram alone", over_gram, "×", f"≤ {GRAM}", over_gram <= GRAM),
        ("the prototype's six linear measures, wall, over the joint Gram", six, "×", f"≤ {GRAM}", six <= GRAM),
        (
            "per-pair SVD code in the manner of Wu et al., all nine, CPU, over ours",
            all_apart,
            "×",
            f"≥ {SVD:g}",
            all_apart >= SVD,
        ),
        (
            "per-pair SVD code of Wu et al., their five measures, CPU, over ours",
            authors,
            "×",
            f"≥ {SVD:g}",
            authors >= SVD,
        ),
        ("per-pair SVD (each layer's shared), all linear, CPU, over ours", shared, "×", f"≥ {SVD:g}", shared >= SVD),
        ("per-pair SVD (nothing shared), all linear, CPU, over ours", apart, "×", f"≥ {SVD:g}", apart >= SVD),
    ]
    kernels = {
        "published kernels": "the work of Kornblith et al.'s code, float32",
        "kernels": "float32, in place",
        "ckatorch rbf": "ckatorch",
    }
    for name, label in kernels.items():
        value = f.ratio(name, "ckasim-rbf", _cost(0, f.words.pairs), _cpu)
        found.append((f"RBF CKA pair by pair ({label}), CPU, over ours", value, "×", f"≥ {RBF:g}", value >= RBF))
    share = median(o["bare"] / o["ours"] for o in f.extraction) if _whole(f.extraction) else math.nan
    found += [
        (
            "extraction, of a bare model(**batch) loop",
            100 * share,
            " %",
            f"≥ {100 * EXTRACTION:g}",
            share >= EXTRACTION,
        ),
        (f"peak memory, {many} over {few} words", large / small, "×", f"≤ {GROWTH}", large / small <= GROWTH),
        ("linear measures, worst difference from float64", worst, "", f"≤ {ACCURACY:g}", worst <= ACCURACY),
        ("stratoscope --help", f.help_seconds, " s", f"< {HELP}", f.help_seconds < HELP),
    ]
    return [
        (what, _number(value, unit), goal, "not measured" if math.isnan(value) else "yes" if met else "**no**")
        for what, value, unit, goal, met in found
    ]


def _times(f: Findings) -> list[tuple[str, ...]]:
    peak = max((o["flops"] for o in f.outcomes["peak"] if "flops" in o), default=math.nan)
    flop = f.mid("gram", lambda o: o["flop"])
    linear = [m for m in ("gram", "linear", "six", "wu2020", "ckasim", "ckasim-debiased") if m in f.outcomes]
    shown = [*linear, *(m for m in ("ckasim-minibatch", "ckasim-rbf", "rsa") if m in f.outcomes)]
    labels = {
        "gram": "joint Gram alone",
        "linear": "ours, all linear measures",
        "six": "ours, the prototype's six",
        "wu2020": "ours, Wu et al.'s five",
    }
    rows = [("square float32 product (the peak)", "", "", "", f"{peak / 1e9:.0f}", "100 %")]
    for name in shown:
        wall = f.mid(name, _wall)
        rate = (f"{flop / wall / 1e9:.0f}", f"{100 * flop / wall / peak:.0f} %") if name in linear else ("", "")
        spent = (_spread(f, name), f"{f.mid(name, _cpu):.1f}", f"{f.mid(name, lambda o: o['peak']) / 1e9:.2f}")
        rows.append((labels.get(name, f"ours, {name} alone"), *spent, *rate))
    started = f.mid("linear", lambda o: o["started"])
    return [*rows, ("of which starting the workers", f"{started:.1f}", "", "", "", "")]


def _peers(f: Findings) -> list[tuple[str, ...]]:
    pairs = f.words.pairs
    layers = f.words.stored.layers
    shared, authors, apart = _cost(layers, pairs), _cost(2 * layers, pairs), _cost(2 * pairs, pairs)
    scaled = _cost(0, pairs)
    rows = [
        _peer(f, "authors", "per-pair SVD, measure by measure as Wu et al. (float32)", "wu2020", authors),
        _peer(f, "authors all", "the same for all linear measures (float32)", "linear", authors),
        _peer(f, "plain", "per-pair SVD, each layer's shared (float32)", "linear", shared),
        _peer(f, "plain", "per-pair SVD, nothing shared (float32)", "linear", apart),
        _peer(f, "kernels", "RBF kernels per pair, in place (float32)", "ckasim-rbf", scaled),
        _peer(f, "published kernels", "RBF kernels per pair, as published (float32)", "ckasim-rbf", scaled),
    ]
    rows += [_peer(f, p.name, f"{p.name} ({p.note})", p.measure, scaled) for p in PEERS]
    known = {p.name for p in PEERS}
    return rows + [(name, "–", "–", why, "–", "–") for name, why in f.absent.items() if name not in known]


def _peer(f: Findings, name: str, label: str, own: str, cost: Callable[[Outcome], float]) -> tuple[str, ...]:
    if reason := f.reason(name):
        return (label, own, "–", reason, "–", "–")
    timed = len(next(iter(f.outcomes[name][0]["scores"].values())))
    measures = {"linear": "all linear", "wu2020": ", ".join(WU2020)}.get(own, own)
    ratio = f.ratio(name, own, cost, _cpu)
    return (label, measures, f"{timed}", f"{f.mid(name, cost):.0f}", f"{f.mid(own, _cpu):.1f}", f"{ratio:.1f}×")


def _accuracy(f: Findings, n: str) -> list[tuple[str, ...]]:
    mine = {
        m: d for name in f.outcomes if not name.startswith("cls") for m, d in _deviations(f, name, n, own=True).items()
    }
    mine |= _deviations(f, "linear", n)
    plain = _deviations(f, "plain", n) | _deviations(f, "kernels", n)
    others = {p.measure: f"{_small(_deviations(f, p.name, n).get(p.measure))} ({p.name})" for p in PEERS}
    return [(m, _small(mine.get(m)), _small(plain.get(m)), others.get(m, "–")) for m in mine]


def _few(f: Findings) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for rows in f.cls:
        own, plain = f"cls {rows.n} linear", f"cls {rows.n} plain"
        cost = _cost(len(rows.varying), rows.pairs)
        if reason := f.reason(own) or f.reason(plain):
            found.append((f"{rows.n}", reason, "", "", "", ""))
            continue
        off = _deviations(f, own, str(rows.n))
        apart = off.pop("pwsim", math.nan)
        worst = f"{_small(max(off.values(), default=None))} (pwsim {_small(apart)})"
        spent = (_spread(f, own), f"{f.mid(own, _cpu):.1f}", f"{f.mid(plain, cost):.0f}")
        found.append((f"{rows.n}", *spent, f"{f.ratio(plain, own, cost, _cpu):.1f}×", worst))
    return found


def _memory(f: Findings) -> list[tuple[str, ...]]:
    runs = {**f.memory, f.words.n: f.outcomes["linear"][0]}
    return [
        (f"{n}", o["failed"], "") if "failed" in o else (f"{n}", f"{o['peak'] / 1e9:.2f}", f"{o['wall']:.1f}")
        for n, o in sorted(runs.items())
    ]


def _deviations(f: Findings, name: str, n: str, *, own: bool | None = None) -> dict[str, float]:
    """Worst difference from float64 by measure, over the sample of pairs and both directions."""
    outcome = next((o for o in f.outcomes.get(name, ()) if "scores" in o), None)
    exact = f.reference[n].get("scores", {})
    if outcome is None or (own and "started" not in outcome):
        return {}
    found = {}
    for measure, values in outcome["scores"].items():
        pairs = [tuple(int(k) for k in key.split(",")) for key in exact.get(measure, {})]
        if isinstance(values, list):
            values = {f"{i},{j}": (values[i][j], values[j][i]) for i, j in pairs}
        common = [key for key in values if key in exact.get(measure, {})]
        if common:
            found[measure] = _worst({key: values[key] for key in common}, exact[measure])
    return found


def _worst(values: Mapping[str, Sequence[float]], exact: Mapping[str, Sequence[float]]) -> float:
    """Largest difference over pairs and directions; a score that is not a number is infinitely wrong."""
    off = [abs(a - b) for key in values for a, b in zip(values[key], exact[key], strict=True)]
    return max(math.inf if math.isnan(d) else d for d in off)


def _cost(layers: int, pairs: int) -> Callable[[Outcome], float]:
    """CPU seconds for so many preparations of a layer and comparisons of a pair."""
    return lambda o: layers * float(o.get("layer", 0)) + pairs * float(o["pair"])


def _wall(outcome: Outcome) -> float:
    return float(outcome["wall"])


def _cpu(outcome: Outcome) -> float:
    return float(outcome["cpu"])


def _whole(outcomes: Sequence[Outcome]) -> bool:
    return bool(outcomes) and not any("failed" in o for o in outcomes)


def _spread(f: Findings, name: str) -> str:
    """Median and range of the wall time."""
    if reason := f.reason(name):
        return reason
    walls = sorted(_wall(o) for o in f.outcomes[name])
    return f"{median(walls):.1f} ({walls[0]:.1f}–{walls[-1]:.1f})"


def _size(rows: Rows) -> str:
    return f"2 models × {rows.first} layers × {rows.width} neurons × {rows.n} rows, {rows.pairs} pairs of layers"


def _number(value: float, unit: str) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1e}{unit}" if abs(value) < 1e-2 else f"{value:.2f}{unit}" if value < 100 else f"{value:.0f}{unit}"


def _small(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.1e}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
