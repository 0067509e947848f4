"""The table of measures: the one place where a measure becomes public."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.names import ALIASES, ALL
from stratoscope.measures import linear
from stratoscope.measures.heldout import MIXEDSIM_HELDOUT
from stratoscope.measures.kernels.kernel import CKASIM_MINIBATCH, CKASIM_RBF, MEDIAN_ROWS
from stratoscope.measures.kernels.knn import KNN, KNN_JACCARD
from stratoscope.measures.kernels.rsa import ROWS, RSA
from stratoscope.measures.measure import Measure

MEASURES: tuple[Measure, ...] = (
    linear.NEURONSIM,
    linear.MIXEDSIM,
    linear.SVSIM,
    linear.PWSIM,
    linear.CKASIM,
    linear.CKASIM_DEBIASED,
    CKASIM_RBF,
    CKASIM_MINIBATCH,
    linear.CCA,
    linear.LINREG,
    linear.PROCRUSTES,
    RSA,
    KNN,
    KNN_JACCARD,
    MIXEDSIM_HELDOUT,
)

QUADRATIC_ROWS = 20_000
"""Beyond so many rows, `all` leaves out measures whose cost grows with their square."""
WORTH_SAYING = 0.1
"""Chance level above which the reader is told."""


@dataclass(frozen=True)
class Request:
    """A measure asked for, and over which fraction of its neurons or correlations to average."""

    measure: Measure
    top: float = 1.0

    @property
    def name(self) -> str:
        """Public name, `measure` or `measure@fraction`."""
        return self.measure.name if self.top == 1 else f"{self.measure.name}@{self.top:g}"


def parse(name: str) -> Request:
    """Read `measure` or `measure@fraction`."""
    base, at, fraction = name.partition("@")
    base = ALIASES.get(base, base)
    known = {m.name: m for m in MEASURES}
    if base not in known:
        raise unknown_name("measure", base, (*known, ALL))
    if not at:
        return Request(known[base])
    if not known[base].averages:
        allowed = ", ".join(m.name for m in MEASURES if m.averages)
        raise StratoscopeError(f"{base} is not a mean, so '@{fraction}' has no meaning; it goes with {allowed}")
    try:
        top = float(fraction)
    except ValueError:
        top = -1
    if not 0 < top <= 1:
        raise StratoscopeError(f"expected a fraction above 0 and at most 1 after '@', got '{fraction}' in '{name}'")
    return Request(known[base], top)


def requests(names: list[str] | tuple[str, ...], *, n: int, width: int) -> tuple[list[Request], list[str]]:
    """Requests for the names, `all` being those that fit n rows and the widest layer; and what the reader must know."""
    if not names:
        raise StratoscopeError(f"expected at least one measure, got none; choose from: {', '.join(known_names())}")
    requested: dict[str, Request] = {}
    notes: list[str] = []
    for name in names:
        for request in [Request(m) for m in MEASURES] if name == ALL else [parse(name)]:
            why = _why_left_out(request.measure, n, width) if name == ALL else None
            if why is None:
                requested[request.name] = request
            else:
                notes.append(why)
    measures = list(dict.fromkeys(r.measure for r in requested.values()))
    notes += [text for m in measures if (text := _saturated(m, n, width))]
    notes += [text] if (text := _chance(requested.values(), n, width)) else []
    notes += [text for m in measures if (text := _sampled(m, n))]
    return list(requested.values()), notes


def known_names() -> tuple[str, ...]:
    """Names of all measures, in the table's order."""
    return tuple(m.name for m in MEASURES)


def chance_level(measure: Measure, n: int, width: int) -> float:
    """What unrelated layers of full rank score on average; those of lower rank score less."""
    return 0.0 if measure.chance is None else measure.chance(n, width)


def caution(request: Request, n: int, width: int) -> str | None:
    """What a reader must know of a measure when rows are few."""
    return _saturated(request.measure, n, width) or _chance([request], n, width)


def _saturated(measure: Measure, n: int, width: int) -> str | None:
    if not measure.saturates or n > width:
        return None
    few = f"while rows ({n}) do not outnumber neurons ({width})"
    return f"{measure.name} is 1 for any two layers {few}; add rows, or use mixedsim-heldout"


def _chance(wanted: Iterable[Request], n: int, width: int) -> str | None:
    """One sentence with the chance level of every measure that has one worth saying."""
    levels = {r: chance_level(r.measure, n, width) for r in wanted if not _saturated(r.measure, n, width)}
    said = {r: level for r, level in levels.items() if level > WORTH_SAYING}
    if not said:
        return None
    each = ", ".join(f"{'above' if r.top < 1 else 'up to'} {level:.2f} ({r.name})" for r, level in said.items())
    text = (
        f"with {n} rows and {width} neurons, unrelated layers already score {each}; only higher scores are meaningful"
    )
    if any(r.measure.name == "pwsim" for r in said) and n < 2 * width:
        text += "; pwsim is not unique where correlations repeat"
    return f"{text}; ckasim-debiased is about 0 for them if rows are independent"


def _sampled(measure: Measure, n: int) -> str | None:
    if measure.name == RSA.name and n > ROWS:
        return f"rsa compares {ROWS} rows drawn with the seed, not all {n}"
    if measure.name == CKASIM_RBF.name and n > MEDIAN_ROWS:
        return f"the bandwidth of ckasim-rbf is from {MEDIAN_ROWS} rows drawn with the seed, not all {n}"
    return None


def _why_left_out(measure: Measure, n: int, width: int) -> str | None:
    """Why `all` does not take a measure; None where it does."""
    if measure.quadratic and n > QUADRATIC_ROWS:
        why = f"its cost grows with the square of {n} rows; name it to have it anyway"
    elif measure.saturates and n <= width:
        why = f"it is 1 for any two layers with {n} rows for {width} neurons"
    elif measure.for_few_rows and n > width:
        why = "it is for rows that do not outnumber neurons; name it to have it anyway"
    else:
        return None
    return f"{measure.name} left out of 'all': {why}"


if len(set(known_names())) != len(MEASURES):
    raise ValueError("two measures share a name")
