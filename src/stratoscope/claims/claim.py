"""What a published claim is: a sentence, its source, the number D that tests it, and the margin D must exceed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stratoscope.core.value import Interval, Values

CLEAR_DIFFERENCE = 0.02
"""Two means of similarities closer than this are not called different."""
ONE_POINT = 0.01
"""One point of a task's metric: the loss that counts as little."""
FEWEST_LAYERS = 4
"""Blocks that must be compared before lower and upper ones are told apart."""


@dataclass(frozen=True)
class Evidence:
    """The tested number D on the estimate and on every resample, and what a reader needs to see behind it."""

    d: Values
    """(1 + resamples,): the estimate, then each resample."""
    interval: Interval | None
    """How the interval of D is made from the resamples; None where there are none."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What D is made of."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Layers and other text for the sentence."""
    note: str = ""
    """A further finding, said after the sentence."""
    chance: tuple[float, float] = (0.0, 0.0)
    """How far chance may have moved D: what it may lack downwards (at most 0) and upwards (at least 0) without."""
    all_by_chance: bool = False
    """Whether every score in D is within its chance level."""
    chance_level: float = 0.0
    """The chance level behind both, for the reason."""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    """Limits of D."""
    least_of: Values | None = None
    """(1 + resamples, layers or pairs): what D is the least of, for a claim about all of them."""
    control: Evidence | None = None
    """The same number beside a random initialisation: a claim only holds if this exceeds the margin too."""


@dataclass(frozen=True)
class Claim:
    """One published claim: a row of its paper's module."""

    id: str
    """Paper and claim, such as `wu2020-top-changes-more`."""
    claim: str
    """The claim in one sentence, as the paper makes it."""
    source: str
    """Paper and place."""
    value: str
    """What the tested number D is."""
    margin: float
    """The claim holds if D is above this."""
    margin_meaning: str
    text: str
    """Template of the finding in one sentence: `about`, `numbers` and `words` by name, and `D` with its interval."""
    statistic: Callable[..., Evidence]
    """The evidence from scores, curves or a depth result, and the models by their role; raises `CannotTellError`."""
    only: str = ""
    """The one measure that can decide it; empty for any."""


class Reason(NamedTuple):
    """Why a claim cannot be told: one of a few kinds, and the particulars."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class CannotTellError(Exception):
    """Raised by a statistic that cannot be computed on this result."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.reason = Reason(kind, detail)


MODEL_AT_CHANCE = "model at chance"
FEW_LAYERS = "too few layers"
EMPTY_HALF = "no layer in one half"
OTHER_LAYERS = "different layers"
CONSTANT = "constant layers"
MISSING = "not measured"
NO_INTERVAL = "no interval"
BY_CHANCE = "chance level"
CONTROL = "random initialisation"
INCLUDES_MARGIN = "interval includes the margin"
"""The kinds of reasons: `Statement.reason` begins with one of them."""
