"""Whether a published finding holds, in words; the one place that withholds a verdict which chance may have decided.

With few rows even unrelated layers score up to a chance level (`measures.chance`): reached by layers of full rank, less
by others, while identical layers score 1 whatever the rows. So what a score s says without chance lies anywhere from
(s - level) / (1 - level), and from 0 for a score within the level, to s. A verdict on a difference of averages is given
only if it is the same wherever in these ranges they lie, and at least one of them is above the level. Localization, a
difference of two measures, is judged by `judged_apart`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratoscope.measures.table import WORTH_SAYING, chance_level, known_names, parse
from stratoscope.results.comparison import Comparison

CLEAR = 0.02
"""A difference of two means below this is called no clear difference."""
DEBIASED = {"ckasim": "ckasim-debiased"}
"""Measures without a chance level that may decide in place of one that has it."""


@dataclass(frozen=True)
class Score:
    """An average score, or a difference of such, and where it may lie without what chance added."""

    value: float
    least: float
    most: float
    level: float
    """The measure's chance level."""
    by_chance: bool
    """Whether all scores in it are within the level."""

    def __sub__(self, other: Score) -> Score:
        level, by_chance = max(self.level, other.level), self.by_chance and other.by_chance
        return Score(self.value - other.value, self.least - other.most, self.most - other.least, level, by_chance)

    @property
    def certain(self) -> bool:
        """Whether chance cannot decide if this, a difference, is a clear one."""
        return not self.by_chance and (self.least > CLEAR) == (self.most > CLEAR)


def level_of(comparison: Comparison, measure: str) -> float:
    """The chance level of a measure in this result; 0 where the rows are not known.

    For `measure@fraction` the most it can be: the best fraction f of correlations has at most 1/f times their mean.
    """
    rows, width = comparison.data.get("rows"), max((m.width for m in comparison.models), default=0)
    if not isinstance(rows, int) or rows < 2 or not width or measure.partition("@")[0] not in known_names():
        return 0.0
    asked = parse(measure)
    return min(1.0, chance_level(asked.measure, rows, width) / asked.top)


def score(value: float, level: float) -> Score:
    """An average score under a measure with this chance level; chance only ever adds to one.

    A level that is not worth saying counts only for scores within it.
    """
    by_chance = level > 0 and value <= level
    if by_chance:
        return Score(value, min(value, 0.0), value, level, by_chance)
    least = (value - level) / (1 - level) if level > WORTH_SAYING else value
    return Score(value, least, value, level, by_chance)


def difference(comparison: Comparison, measure: str, one: float, two: float) -> Score:
    """The first average minus the second."""
    level = level_of(comparison, measure)
    return score(one, level) - score(two, level)


def contrast(comparison: Comparison, measure: str, split: Mapping[str, float]) -> Score:
    """The contrast of a model's best split."""
    return difference(comparison, measure, split["within"], split["between"])


def deciding(found: Mapping[str, Score]) -> str | None:
    """The first measure whose difference chance cannot decide; None if there is none."""
    return next((measure for measure, gap in found.items() if gap.certain), None)


def is_clear(found: Mapping[str, Score]) -> bool:
    """Whether a measure that can tell finds the difference clear."""
    by = deciding(found)
    return by is not None and found[by].value > CLEAR


def judged(found: Mapping[str, Score], shown: Mapping[str, str]) -> str:
    """Whether a difference is clear, by the first measure of these that can tell, or that none can.

    `shown` are the numbers of the measures that the sentence does not give anyway.
    """
    first, by = next(iter(found)), deciding(found)
    level = f"{found[first].level:.2f}"
    if by is None:
        return (
            f"cannot be judged here: with so few rows unrelated layers score {first} up to {level}, so chance alone "
            "may decide it"
        )
    verdict = f"{holds(found[by].value > CLEAR)} here"
    return (
        verdict
        if by == first
        else f"{verdict} by {by} ({shown[by]}); {first} alone, up to {level} by chance, cannot tell"
    )


def judged_apart(yes: bool, difference: float, chance: float, what: str) -> str:
    """A verdict on a difference of localization, or that there is none: layers of other rank differ as much by chance.

    Localization is neuronsim minus svsim, and with few rows svsim is the higher by chance the more components a layer
    has, up to the chance level.
    """
    if difference > chance:
        return f"{holds(yes)} here"
    return (
        f"cannot be judged here: {what} {difference:.2f} apart, which is within svsim's chance level with so few rows "
        f"(up to {chance:.2f})"
    )


def holds(yes: bool) -> str:
    return "holds" if yes else "does NOT hold"
