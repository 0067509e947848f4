"""A value for every layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from stratoscope.core.value import Interval, Value, Values


@dataclass(frozen=True)
class Curve:
    """One value per layer, with its interval; NaN where a layer has none."""

    name: str
    layers: tuple[int, ...]
    """Layer numbers; not 0, 1, 2 ... where only some layers were chosen."""
    values: Values
    low: Values | None = None
    high: Values | None = None
    interval: Interval | None = None
    replicates: Values | None = field(default=None, repr=False, metadata={"stored": "arrays"})
    """(resamples, layers): the values on every resample; the curves of one result share their resamples."""

    def __post_init__(self) -> None:
        for name in ("values", "low", "high"):
            got = getattr(self, name)
            if got is not None and got.shape != (len(self.layers),):
                raise ValueError(f"{name} of curve {self.name}: expected {len(self.layers)} values, got {got.shape}")

    @property
    def points(self) -> tuple[Value, ...]:
        """The values with their intervals, layer by layer."""
        gap = np.full(len(self.layers), np.nan)
        low, high = (gap if edge is None else edge for edge in (self.low, self.high))
        return tuple(Value(*map(float, p)) for p in zip(self.values, low, high, strict=True))

    @property
    def known(self) -> list[int]:
        """Positions that hold a value."""
        return [k for k, v in enumerate(self.values) if not np.isnan(v)]

    def to_frame(self) -> pd.DataFrame:
        """One row per layer: value, low, high."""
        return pd.DataFrame(
            [(p.value, p.low, p.high) for p in self.points],
            index=pd.Index(self.layers, name="layer"),
            columns=["value", "low", "high"],
        )
