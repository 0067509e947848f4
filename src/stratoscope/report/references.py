"""What to cite for a result: the two studies it follows, and the source of each measure in it."""

from __future__ import annotations

from collections.abc import Iterable

from stratoscope.measures.table import MEASURES
from stratoscope.claims.works import WORKS, works

FOLLOWED = ("Wu et al. 2020", "Phang et al. 2021")
"""What every comparison follows."""


def to_cite(measures: Iterable[str]) -> list[str]:
    """The works behind these measures; `@fraction` does not change what a measure is."""
    plain = {measure.partition("@")[0] for measure in measures}
    wanted = {*FOLLOWED, *(work for m in MEASURES if m.name in plain for work in works(m.reference))}
    return [text for work, text in WORKS.items() if work in wanted]
