"""What statistics read: scores of one measure on the estimate and every resample, halves by depth, and chance.

With few rows even unrelated layers score up to a chance level (`measures.chance`): reached by layers of full rank, less
by others, while identical layers score 1 whatever the rows. So what a score s says without chance lies anywhere from
(s - level) / (1 - level), and from 0 for a score within the level, to s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stratoscope.claims.claim import CONSTANT, EMPTY_HALF, FEW_LAYERS, FEWEST_LAYERS, CannotTellError, Evidence
from stratoscope.core.matrix import Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Values
from stratoscope.measures.structure import best_splits, stacked
from stratoscope.measures.table import WORTH_SAYING, chance_level, known_names, parse
from stratoscope.results.comparison import Comparison

BIASED, DEBIASED = "ckasim", "ckasim-debiased"
"""What both papers show, and its estimator without a chance level for independent rows, which decides in its place."""


class Half(NamedTuple):
    """Blocks of one half of a model that were compared."""

    positions: list[int]
    """Along the axis of the matrix."""
    layers: str
    """Their numbers, such as `7-12`."""


@dataclass(frozen=True)
class Scores:
    """One measure's scores, with the models they are of."""

    matrix: Matrix
    models: Mapping[str, ModelInfo]
    level: float = 0.0
    """Chance level of the measure here."""

    @classmethod
    def of(cls, comparison: Comparison, measure: str) -> Scores:
        """The scores of a measure in a comparison."""
        models = {m.name: m for m in comparison.models}
        return cls(comparison[measure], models, level_of(comparison, measure))

    def layers(self, model: str) -> tuple[int, ...]:
        """Numbers of the model's layers that were compared."""
        return tuple(layer.index for layer in self.matrix.rows if layer.model == model)

    def halves(self, model: str) -> tuple[Half, Half]:
        """Lower and upper half of the model's blocks."""
        return halves(self.models[model], self.layers(model))

    def between(self, first: str, second: str) -> Values:
        """(1 + resamples, first's layers, second's layers)."""
        block = self.matrix.between(first, second)
        return stacked(block.values, block.replicates)

    def splits(self, model: str) -> tuple[Values, Values]:
        """Mean within and mean between the blocks of the model's best split, (1 + resamples,) each."""
        splits = best_splits(self.matrix.between(model, model))
        if splits is None:
            raise CannotTellError(FEW_LAYERS, f"two blocks need {FEWEST_LAYERS} layers of {model} that vary")
        return splits[1:]

    def mean_between(self, first: str, second: str, *halves: tuple[int, int]) -> Values:
        """Mean similarity of halves of two models (0 lower, 1 upper), over all pairs of halves that are given."""
        block, mine, theirs = self.between(first, second), self.halves(first), self.halves(second)
        cells = [block[:, mine[a].positions][:, :, theirs[b].positions] for a, b in halves]
        flat = np.concatenate([c.reshape(len(c), -1) for c in cells], axis=1)
        which = [" or ".join(dict.fromkeys(own[h[k]].layers for h in halves)) for k, own in enumerate((mine, theirs))]
        return average(flat, f"layers {which[0]} of {first} or {which[1]} of {second}")

    def evidence(
        self,
        *,
        raising: Mapping[str, Values],
        lowering: Mapping[str, Values],
        difference: Callable[[Mapping[str, Values]], Values] | None = None,
        numbers: Mapping[str, float] | None = None,
        anchored: bool = False,
        **further: Any,
    ) -> Evidence:
        """Evidence whose D rises with some averages of scores and falls with others; by default the sums' difference.

        Chance only ever adds to a score, so D lies between its value with the raising ones reduced and with the
        lowering ones reduced. An `anchored` D, a score against a constant, is told from chance though it is within it.
        What D is made of are these averages, unless other `numbers` are given.
        """

        def summed(s: Mapping[str, Values]) -> Values:
            return np.asarray(sum(s[k] for k in raising) - sum(s[k] for k in lowering))

        difference = difference or summed
        both = {**raising, **lowering}
        here = {k: v[0] for k, v in both.items()}
        reduced = {k: np.asarray(without_chance(float(v), self.level)) for k, v in here.items()}
        value, least, most = (
            float(difference({**here, **{k: reduced[k] for k in less}})) for less in ((), raising, lowering)
        )
        return Evidence(
            d=difference(both),
            interval=self.matrix.interval,
            chance=(least - value, most - value),
            all_by_chance=not anchored and self.level > 0 and all(v <= self.level for v in here.values()),
            chance_level=self.level,
            numbers={k: float(v) for k, v in here.items()} if numbers is None else numbers,
            **further,
        )


def average(values: Values, what: str) -> Values:
    """(1 + resamples, ...) to (1 + resamples,): the mean over the cells that exist on the estimate."""
    known = ~np.isnan(values[0])
    if not known.any():
        raise CannotTellError(CONSTANT, f"{what} do not vary over these rows")
    return np.asarray(values[:, known].mean(axis=-1), dtype=np.float64)


def halves(model: ModelInfo, layers: Sequence[int]) -> tuple[Half, Half]:
    """Blocks at depth up to ½ of the model and above it, of those that were compared; layer 0 is no block."""
    blocks = [(k, layer) for k, layer in enumerate(layers) if layer > 0]
    if len(blocks) < FEWEST_LAYERS:
        detail = f"{len(blocks)} of {model.name}'s blocks were compared, {FEWEST_LAYERS} are needed"
        raise CannotTellError(FEW_LAYERS, detail)
    upper = [(k, layer) for k, layer in blocks if model.depth(layer) > 0.5]
    lower = [b for b in blocks if b not in upper]
    for name, half in (("lower", lower), ("upper", upper)):
        if not half:
            detail = f"none of the layers compared is in the {name} half of {model.name}'s {model.layers - 1} blocks"
            raise CannotTellError(EMPTY_HALF, detail)
    first, second = (Half([k for k, _ in half], spans([layer for _, layer in half])) for half in (lower, upper))
    return first, second


def spans(layers: Sequence[int]) -> str:
    """Layer numbers, neighbours joined: `1-3, 6`."""
    groups: list[list[int]] = []
    for layer in layers:
        if groups and layer == groups[-1][-1] + 1:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def level_of(comparison: Comparison, measure: str) -> float:
    """The chance level of a measure in this result; 0 where neither it nor the number of rows is known.

    A level found by permuting sentences is in the findings, under `chance`. Otherwise it is that of independent rows;
    for `measure@fraction` the most it can be: the best fraction f of correlations has at most 1/f times their mean.
    """
    permuted = comparison.findings.get("chance", {}).get(measure)
    if permuted is not None:
        return float(permuted)
    rows, width = comparison.data.get("rows"), max((m.width for m in comparison.models), default=0)
    if not isinstance(rows, int) or rows < 2 or not width or measure.partition("@")[0] not in known_names():
        return 0.0
    asked = parse(measure)
    return min(1.0, chance_level(asked.measure, rows, width) / asked.top)


def debiased_is_free_of_chance(comparison: Comparison) -> bool:
    """Whether the level of debiased CKA is known: rows of one sentence are not independent, which lifts it above 0."""
    rows, sentences = (comparison.data.get(k) for k in ("rows", "sentences"))
    several = isinstance(rows, int) and isinstance(sentences, int) and rows > sentences
    return not several or DEBIASED in comparison.findings.get("chance", {})


def deciders(comparison: Comparison, only: str = "") -> list[str]:
    """Measures that may decide a claim, in turn: the next one where chance keeps the one before from it."""
    if only:
        return [only] if only in comparison else []
    first = BIASED if BIASED in comparison else comparison.matrices[0].measure
    stand_in = first == BIASED and DEBIASED in comparison and debiased_is_free_of_chance(comparison)
    return [first, DEBIASED] if stand_in else [first]


def without_chance(score: float, level: float) -> float:
    """The least a score may be without what chance added; a level not worth saying counts for scores within it only."""
    if level > 0 and score <= level:
        return min(score, 0.0)
    return (score - level) / (1 - level) if WORTH_SAYING < level < 1 else score
