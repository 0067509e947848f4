"""A published claim judged on the user's own models: data first, one sentence second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratoscope.core.value import Value

HOLDS, FAILS, OPEN = VERDICTS = ("holds", "does not hold", "cannot tell")
PREMISE = "premise"
"""What of `Statement.about` must be true for the claim to apply."""


@dataclass(frozen=True)
class Statement:
    """Whether one claim of a paper holds here."""

    id: str
    """Claim and subject, such as `wu2020-top-changes-more:base:tuned`: stable, unique in a result."""
    claim: str
    """The claim in one sentence, as the paper makes it."""
    source: str
    """Paper and place, such as `Wu et al. 2020, section 6`."""
    about: Mapping[str, str]
    """What it is judged on: models, measure, unit."""
    value: Value
    """The tested number D with the interval of the tested difference; NaN where there is none."""
    margin: float
    """D must lie above this for the claim to hold."""
    verdict: str
    """One of `VERDICTS`."""
    reason: str = ""
    """Why it cannot be told; empty otherwise."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What D is made of, such as the means of both halves."""
    text: str = ""
    """The finding as one sentence with its numbers."""

    def __repr__(self) -> str:
        """One line: verdict, claim, what it is about but premises, D with its interval against the margin, reason."""
        about = " · ".join(f"{k} {v}" for k, v in sorted(self.about.items()) if k != PREMISE)
        tested = f"D {self.value}, margin {self.margin:.3g}" if self.value.known else ""
        said = "; ".join(filter(None, [tested, self.reason]))
        line = f"{self.verdict}: {self.claim}{f' ({about})' if about else ''} {said}"
        return "".join(c if c.isprintable() else "\ufffd" for c in line)

    @property
    def claim_id(self) -> str:
        """The claim alone, such as `wu2020-top-changes-more`."""
        return self.id.partition(":")[0]

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: expected one of {', '.join(VERDICTS)}, got '{self.verdict}'")
