"""Attention heads of every layer of every model under every measure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pandas as pd

from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer
from stratoscope.core.value import Array, Values, spread
from stratoscope.results.comparison import Comparison


@dataclass(frozen=True)
class Pattern:
    """What every head attends to in one sentence, kept to look at."""

    words: tuple[str, ...]
    targets: tuple[str, ...]
    """The words, with one target for special tokens before them where those were kept."""
    weights: Array = field(metadata={"stored": "arrays"})
    """(heads, words, targets), in 255ths; rows are source words."""


@dataclass(frozen=True, repr=False)
class Attention(Comparison):
    """Attention of all layers compared: a mapping from measure to the matrix of layers, and the heads behind it.

    `arrays` hold the similarity of every pair of heads, by measure; layers have no number 0, block k is layer k.
    """

    KIND = "attention"

    heads_of: tuple[int, ...] = ()
    """Heads of each layer, in the order of the axes."""
    patterns: tuple[Pattern, ...] = ()
    """A few sentences as all heads see them."""

    def __repr__(self) -> str:
        return f"Attention({', '.join(self)} of {', '.join(m.name for m in self.models)})"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers on both axes."""
        return self.matrices[0].rows

    @property
    def head_measures(self) -> tuple[str, ...]:
        """Measures that compare heads, not whole layers."""
        return tuple(name for name in self if name in self.arrays)

    def heads(self, first: str, layer: int, second: str, other: int, *, measure: str | None = None) -> pd.DataFrame:
        """Similarity of each head of a layer (rows) with each of another layer; heads are numbered from 1."""
        name = self.head_measure(measure)
        rows, columns = (self._span(*of) for of in ((first, layer), (second, other)))
        sides = [[f"{m}:{k} head {h + 1}" for h in range(s.stop - s.start)]
                 for (m, k), s in (((first, layer), rows), ((second, other), columns))]  # fmt: skip
        return pd.DataFrame(self.arrays[name][rows, columns].tolist(), index=sides[0], columns=sides[1])

    def partners(self, measure: str | None = None) -> pd.DataFrame:
        """The most similar head of every model for each head, itself left out; one row per head and model."""
        name = self.head_measure(measure)
        values = np.array(self.arrays[name], dtype=np.float64)
        np.fill_diagonal(values, np.nan)
        model = np.array([layer.model for layer, _ in self._heads])
        parts = []
        for of in dict.fromkeys(model):
            within = np.flatnonzero(model == of)
            block = np.where(np.isnan(values[:, within]), -np.inf, values[:, within])
            best = within[block.argmax(axis=1)]
            known = np.isfinite(block.max(axis=1))
            table = self._table(np.flatnonzero(known), best[known])
            table["similarity"] = values[np.flatnonzero(known), best[known]]
            parts.append(table)
        return pd.concat(parts, ignore_index=True)

    def redundant(self, measure: str | None = None) -> pd.DataFrame:
        """Heads by how similar another head of their own model is, the most redundant first; controls left out."""
        table, controls = self.partners(measure), [m.name for m in self.models if m.is_control]
        own = table[(table["model"] == table["partner_model"]) & ~table["model"].isin(controls)]
        return own.sort_values("similarity", ascending=False, kind="stable").reset_index(drop=True)

    def columns(self, measure: str | None = None) -> dict[tuple[str, str], Curve]:
        """Mean over a first model's layers of their similarity to each layer of a second: the stripes of a heatmap.

        A layer is not compared with itself.
        """
        name = self.head_measure(measure) if measure is None else self[measure].measure
        matrix, means = self[name], {}
        for first in matrix.models:
            for second in matrix.models:
                block = matrix.between(first, second)
                own = np.eye(len(block.rows), len(block.columns), dtype=np.bool_) & (first == second)
                values = _column_means(block.values[None], own)[0]
                curve = Curve(f"{first} → {second}", tuple(c.index for c in block.columns), values)
                if block.replicates is not None and block.interval is not None:
                    drawn = _column_means(block.replicates, own)
                    low, high = spread(values, drawn, block.interval)
                    curve = Curve(curve.name, curve.layers, values, low, high, block.interval, drawn)
                means[first, second] = curve
        return means

    @property
    def _heads(self) -> list[tuple[Layer, int]]:
        """Every head: its layer, and its number in the layer from 1."""
        pairs = zip(self.layers, self.heads_of, strict=True)
        return [(layer, k + 1) for layer, count in pairs for k in range(count)]

    def _table(self, heads: Array, partners: Array) -> pd.DataFrame:
        known = self._heads
        rows = [(*_named(known[a]), *_named(known[b])) for a, b in zip(heads.tolist(), partners.tolist(), strict=True)]
        names = ("model", "layer", "head", "partner_model", "partner_layer", "partner_head")
        return pd.DataFrame(rows, columns=list(names))

    def _span(self, model: str, layer: int) -> slice:
        ends = list(accumulate(self.heads_of))
        k = self.matrices[0].position(model, layer)
        return slice(ends[k] - self.heads_of[k], ends[k])

    def head_measure(self, name: str | None = None) -> str:
        """A measure of heads by name; js, or else the first one, unless named."""
        known = self.head_measures
        if name is None and known:
            return "js" if "js" in known else known[0]
        if name is None or (name in self and name not in known):
            got = f"got '{name}'" if name else f"this result has {', '.join(self)} only"
            raise StratoscopeError(f"expected a measure of heads ({', '.join(known) or 'such as js'}), {got}")
        return self[name].measure


def _named(head: tuple[Layer, int]) -> tuple[str, int, int]:
    layer, number = head
    return layer.model, layer.index, number


def _column_means(values: Values, left_out: Array) -> Values:
    """(..., rows, columns) to (..., columns); NaN where nothing is left."""
    kept = ~np.isnan(values) & ~left_out.astype(np.bool_)
    n = kept.sum(axis=-2)
    return np.asarray(np.where(n > 0, np.where(kept, values, 0).sum(axis=-2) / np.maximum(n, 1), np.nan))
