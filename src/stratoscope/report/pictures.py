"""What a picture shows, as frozen data: drawn by matplotlib (`draw`) and by the browser (`web/page.js`) alike."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.value import Value, Values
from stratoscope.report.labels import number, printable, ranges, shorten, shown

PALETTE = ("#2f86c8", "#d9652b", "#129a72", "#c46fa2", "#a5831a", "#4fa9de", "#9660ba", "#858585")
"""After Okabe and Ito's colour-blind safe set, each seen as a thin line both on white and on a dark page."""
SCALE = (
    *("#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c"),
    *("#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725"),
)
"""Viridis, low to high."""
ROUNDING = 1e-6
"""A similarity of 1 may be computed as 1 + 1e-9; that does not stretch the colour scale."""

Range = tuple[float, float]
Cell = str | int | float | Value


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """What every picture has."""

    id: str
    """Unique on a page."""
    title: str
    caption: str = ""
    """One line: what a reader must know to read it."""
    file: str = ""
    """Name of its figure, without suffix; pictures of one file are drawn together. Its id unless given."""
    when: Mapping[str, str] = field(default_factory=dict)
    """By name of a switch, the choice under which the page shows it; always shown unless given."""

    @property
    def stem(self) -> str:
        """Name of its figure."""
        return self.file or self.id

    def tidy(self) -> pd.DataFrame:
        """The data in long format, one row per value."""
        raise NotImplementedError


@dataclass(frozen=True)
class Group:
    """Consecutive positions on an axis that belong to one model."""

    name: str
    start: int
    stop: int
    """One past the last position."""


@dataclass(frozen=True)
class Axis:
    """One axis of a heatmap."""

    names: tuple[str, ...]
    """What each position is called in full, such as `base:3`."""
    ticks: tuple[str, ...]
    """Label of each position on the axis, such as `3`."""
    groups: tuple[Group, ...] = ()
    title: str = ""
    """What the positions are, where no group says it."""

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Axis:
        """Layers, grouped by model."""
        groups, start = [], 0
        for model, members in groupby(layers, key=lambda layer: layer.model):
            stop = start + sum(1 for _ in members)
            groups.append(Group(printable(model), start, stop))
            start = stop
        return cls(tuple(printable(x) for x in layers), tuple(str(x.index) for x in layers), tuple(groups))

    def columns(self, side: str) -> dict[str, list[str]]:
        """Columns of a tidy table that say where on this axis a value is."""
        if not self.groups:
            return {side: list(self.ticks)}
        models = [g.name for g in self.groups for _ in range(g.start, g.stop)]
        return {f"{side}_model": models, f"{side}_layer": list(self.ticks)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap(Picture):
    """A value per pair; the first row is lowest."""

    rows: Axis
    columns: Axis
    values: Values
    low: Values | None = None
    high: Values | None = None
    range: Range
    """Values of the first and of the last colour."""
    unit: str
    """What is coloured: a measure or a metric."""
    joint: str = " × "
    """Between the names of a row and of a column, in what is said of a cell."""
    missing: str = "no value"
    """What is said of a cell without a value."""
    strip: str = ""
    """Written into a lowest row that has no value."""
    hatched: bool = True
    """Whether missing cells are hatched; else they are no cells at all."""
    marks: npt.NDArray[np.bool_] | None = None
    """Cells to outline."""
    beside: Mapping[str, Values] = field(default_factory=dict)
    """Other numbers of each cell, by name."""
    numbers: bool = False
    """Whether values are written into cells that have room."""

    @classmethod
    def of(cls, matrix: Matrix, *, id: str, title: str = "", range: Range | None = None, **more: Any) -> Heatmap:
        """A matrix of scores; layers without any value are named in the caption."""
        gone = constant_layers(matrix)
        given = {
            "caption": f"Rows are the first argument of {matrix.measure}, columns the second; layer 0, the output of "
            f"the embeddings, is at the lower left.{missing_note(matrix)}",
            "missing": "no value (a constant layer)" if gone else "no value",
            "strip": "constant" if matrix.rows and matrix.rows[0] in gone else "",
        }
        return cls(
            id=id,
            title=title or printable(matrix.measure),
            rows=Axis.of(matrix.rows),
            columns=Axis.of(matrix.columns),
            values=matrix.values,
            low=matrix.low,
            high=matrix.high,
            range=range or color_range([matrix.values]),
            unit=printable(matrix.measure),
            **(given | more),
        )

    def tidy(self) -> pd.DataFrame:
        """One row per cell."""
        i, j = (k.ravel() for k in np.indices(self.values.shape))
        table: dict[str, Any] = {k: np.array(v, dtype=object)[i] for k, v in self.rows.columns("row").items()}
        table |= {k: np.array(v, dtype=object)[j] for k, v in self.columns.columns("column").items()}
        table |= {k: v.ravel() for k, v in _with_edges(self.values, self.low, self.high).items()}
        table |= {name: values.ravel() for name, values in self.beside.items()}
        frame = pd.DataFrame(table)
        return frame if self.hatched else frame[~np.isnan(frame["value"])]


@dataclass(frozen=True, kw_only=True, eq=False)
class Panels(Picture):
    """Several heatmaps on one colour scale."""

    panels: tuple[Heatmap, ...]
    label: str = ""
    """Before the panels, where those of several pictures stand below each other."""

    def tidy(self) -> pd.DataFrame:
        """One row per cell of every panel."""
        return pd.concat([p.tidy().assign(panel=p.title) for p in self.panels], ignore_index=True)


@dataclass(frozen=True, eq=False)
class Line:
    """One value per layer, with its interval."""

    name: str
    layers: tuple[int, ...]
    values: Values
    low: Values | None = None
    high: Values | None = None
    tint: int = 0
    """Place in the palette."""
    dashed: bool = False

    @classmethod
    def of(cls, curve: Curve, *, tint: int, name: str = "", dashed: bool = False) -> Line:
        """A curve; its replicates are not drawn."""
        label = printable(name or curve.name)
        return cls(label, curve.layers, curve.values, curve.low, curve.high, tint, dashed)


@dataclass(frozen=True)
class Level:
    """A line across: something to compare with."""

    name: str
    value: float
    dash: str = "dash"
    """`solid`, `dash` or `dot`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves(Picture):
    """Values over layers."""

    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    x: str = "layer (0 = embeddings)"
    y: str
    log: bool = False
    """Whether the values are on a logarithmic axis."""
    range: Range | None = None

    def tidy(self) -> pd.DataFrame:
        """One row per point, then the levels; where a point is stands under the first word of `x`, such as `layer`."""
        at = self.x.split()[0]
        frames = [
            pd.DataFrame({"curve": line.name, at: line.layers, **_with_edges(line.values, line.low, line.high)})
            for line in self.lines
        ]
        frames += [pd.DataFrame({"curve": [level.name], "value": [level.value]}) for level in self.levels]
        return pd.concat(frames, ignore_index=True).astype({at: "Int64"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes(Curves):
    """Values over sizes rather than layers: these are on a logarithmic axis, with a tick at each."""


@dataclass(frozen=True)
class Bar:
    """One series of bars, a value per category."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bars(Picture):
    """Values of categories, with intervals."""

    categories: tuple[str, ...]
    bars: tuple[Bar, ...]
    levels: tuple[Level, ...] = ()
    y: str

    def tidy(self) -> pd.DataFrame:
        """One row per bar."""
        return pd.DataFrame(
            [
                (b.name, c, v.value, v.low, v.high)
                for b in self.bars
                for c, v in zip(self.categories, b.values, strict=True)
            ],
            columns=["series", "category", "value", "low", "high"],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Stacks(Bars):
    """Bars that stand on each other: parts of a whole."""


@dataclass(frozen=True)
class Box:
    """Where the values of a sample lie."""

    name: str
    low: float
    quarter: float
    median: float
    three_quarters: float
    high: float

    @classmethod
    def of(cls, name: str, sample: Iterable[float], *, whiskers: Range | None = None) -> Box:
        """Quartiles, and the furthest values within 1.5 times their distance (Tukey 1977), or `whiskers` quantiles."""
        values = np.array([v for v in sample if not math.isnan(v)])
        if not values.size:
            return cls(printable(name), *[math.nan] * 5)
        q1, q2, q3 = np.quantile(values, [0.25, 0.5, 0.75])
        if whiskers is not None:
            low, high = np.quantile(values, whiskers)
            return cls(printable(name), *map(float, (low, q1, q2, q3, high)))
        near = values[(values >= q1 - 1.5 * (q3 - q1)) & (values <= q3 + 1.5 * (q3 - q1))]
        return cls(printable(name), *map(float, (near.min(), q1, q2, q3, near.max())))


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes(Picture):
    """Where the values of several samples lie."""

    boxes: tuple[Box, ...]
    y: str

    def tidy(self) -> pd.DataFrame:
        """One row per box."""
        return pd.DataFrame([vars(box) for box in self.boxes])


@dataclass(frozen=True, kw_only=True, eq=False)
class Heads(Picture):
    """Similarity of all pairs of heads; the page shows those of two layers, and a pair of heads opens `Patterns`."""

    layers: Axis
    heads: tuple[int, ...]
    """Heads of each layer."""
    values: Values = field(metadata={"stored": "no"})
    """(heads of all layers, the same)."""
    cells: str
    """`values` for the browser: 16-bit numbers over the range, the largest for none, in base64."""
    range: Range
    unit: str

    @classmethod
    def of(cls, values: Values, layers: Sequence[Layer], heads: tuple[int, ...], **more: Any) -> Heads:
        """From the similarity of every pair of heads."""
        low, high = tight_range([values])
        levels = np.round((values - low) / (high - low) * (_NONE - 1))
        cells = np.where(np.isnan(values), _NONE, levels).astype("<u2")
        return cls(layers=Axis.of(layers), heads=heads, values=values, cells=_base64(cells), range=(low, high), **more)

    def heatmap(self) -> Heatmap:
        """All pairs of heads at once."""
        names = [f"{layer} head {h + 1}" for layer, n in zip(self.layers.names, self.heads, strict=True)
                 for h in range(n)]  # fmt: skip
        ends = np.cumsum([0, *self.heads]).tolist()
        groups = tuple(Group(g.name, ends[g.start], ends[g.stop]) for g in self.layers.groups)
        ticks = tuple(tick for tick, n in zip(self.layers.ticks, self.heads, strict=True) for _ in range(n))
        axis = Axis(tuple(names), ticks, groups)
        return Heatmap(id=self.id, title=self.title, rows=axis, columns=axis, values=self.values, range=self.range,
                       unit=self.unit, caption=self.caption)  # fmt: skip

    def tidy(self) -> pd.DataFrame:
        """For each head its best partner in every layer, itself left out."""
        ends, rows = np.cumsum([0, *self.heads]).tolist(), []
        owner = [(k, h) for k, n in enumerate(self.heads) for h in range(n)]
        for a, (i, h) in enumerate(owner):
            for j, name in enumerate(self.layers.names):
                part = self.values[a, ends[j] : ends[j + 1]].copy()
                if i == j:
                    part[h] = np.nan
                if not np.isnan(part).all():
                    best = int(np.nanargmax(part))
                    rows.append((self.layers.names[i], h + 1, name, best + 1, float(part[best])))
        return pd.DataFrame(rows, columns=["layer", "head", "partner_layer", "partner_head", "value"])


@dataclass(frozen=True, eq=False)
class Attended:
    """One sentence as all heads see it."""

    words: tuple[str, ...]
    targets: tuple[str, ...]
    weights: npt.NDArray[np.uint8] = field(metadata={"stored": "no"})
    """(heads, words, targets), in 255ths."""
    cells: str
    """The same for the browser, in base64."""

    @classmethod
    def of(cls, words: Sequence[str], targets: Sequence[str], weights: npt.NDArray[np.uint8]) -> Attended:
        """From the weights of all heads."""
        return cls(tuple(map(printable, words)), tuple(map(printable, targets)), weights, _base64(weights))


@dataclass(frozen=True, kw_only=True, eq=False)
class Patterns(Picture):
    """What two heads attend to in a sentence, side by side; the first word is at the top."""

    heads: tuple[str, ...]
    """Names of all heads."""
    first: int
    second: int
    """The pair that is open at first."""
    sentences: tuple[Attended, ...]

    def panels(self) -> tuple[Heatmap, Heatmap]:
        """The first sentence as the open pair sees it, words by their number."""
        shown = self.sentences[0]
        rows, columns = (tuple(str(k + 1) for k in range(len(side))) for side in (shown.words, shown.targets))
        axes = Axis(rows[::-1], rows[::-1], title="from word"), Axis(columns, columns, title="to word")
        one, two = (Heatmap(id=f"{self.id}-{k}", title=self.heads[k], rows=axes[0], columns=axes[1], unit="attention",
                            values=shown.weights[k, ::-1] / 255.0, range=(0.0, 1.0))
                    for k in (self.first, self.second))  # fmt: skip
        return one, two

    def tidy(self) -> pd.DataFrame:
        """The open pair on the first sentence."""
        return pd.concat([p.tidy().assign(head=p.title) for p in self.panels()], ignore_index=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Picture):
    """Numbers and words in rows; the first cell of a row names it."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    search: str = ""
    """What a reader may look for in it, where it is worth a search."""
    shown: int | None = None
    """Rows on the page, all when None; its file has them all."""
    top: bool = False
    """Whether its file is beside the page, not among the tables behind the figures."""

    def texts(self) -> list[list[str]]:
        """Every cell as it is shown."""
        return [[cell_text(cell) for cell in row] for row in self.rows[: self.shown]]

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return any(not isinstance(row[column], str) for row in self.rows)

    def tidy(self) -> pd.DataFrame:
        """As it stands, values with intervals as three columns."""
        columns: dict[str, list[Any]] = {}
        for k, name in enumerate(self.head):
            cells = [row[k] for row in self.rows]
            columns[name] = [c.value if isinstance(c, Value) else c for c in cells]
            if any(isinstance(c, Value) for c in cells):
                columns[f"{name} low"] = [c.low if isinstance(c, Value) else None for c in cells]
                columns[f"{name} high"] = [c.high if isinstance(c, Value) else None for c in cells]
        return pd.DataFrame(columns)


_NONE = 65_535


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def cell_text(cell: Cell) -> str:
    """A cell of a table as it is shown."""
    if isinstance(cell, Value):
        return shown(cell) if cell.known else "–"
    if isinstance(cell, float):
        return number(cell)
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)


def color_range(values: Iterable[Values]) -> Range:
    """The one scale of a figure: [0, 1], widened outwards to a multiple of 0.05 only where a value exceeds it."""
    low, high = _extent(values, (0.0, 1.0))
    return (
        math.floor(low * 20) / 20 if low < -ROUNDING else 0.0,
        math.ceil(high * 20) / 20 if high > 1 + ROUNDING else 1.0,
    )


def tight_range(values: Iterable[Values]) -> Range:
    """The values, widened outwards to multiples of 0.05."""
    low, high = _extent(values, (0.0, 1.0))
    low, high = math.floor(low * 20) / 20, math.ceil(high * 20) / 20
    return low, high if high > low else low + 0.05


def constant_layers(matrix: Matrix) -> list[Layer]:
    """Layers without a single value, in axis order: constant on these rows, so that no similarity exists."""
    missing = np.isnan(matrix.values)
    gone = [r for r, row in zip(matrix.rows, missing, strict=True) if row.all()]
    gone += [c for c, column in zip(matrix.columns, missing.T, strict=True) if column.all()]
    return list(dict.fromkeys(gone))


def missing_note(matrix: Matrix) -> str:
    """Which layers are missing and why, after a blank; empty where every cell has a value."""
    gone = constant_layers(matrix)
    there = np.ix_(*([layer not in gone for layer in axis] for axis in (matrix.rows, matrix.columns)))
    text = " Other cells without colour have no value." if np.isnan(matrix.values[there]).any() else ""
    if not gone:
        return text
    by_model = {m: [x.index for x in layers] for m, layers in groupby(gone, key=lambda x: x.model)}
    models = {*(x.model for x in (*matrix.rows, *matrix.columns))}
    same = len({tuple(v) for v in by_model.values()}) == 1 and set(by_model) == models
    whose = {"": next(iter(by_model.values()))} if same else {f" of {shorten(m, 24)}": v for m, v in by_model.items()}
    names = ", ".join(f"layer{'' if len(v) == 1 else 's'} {ranges(v)}{m}" for m, v in whose.items())
    return f" Missing: {names}, constant on these rows, so that no similarity exists.{text}"


def _extent(values: Iterable[Values], without: Range) -> Range:
    finite = [v[np.isfinite(v)] for v in values]
    known = np.concatenate(finite) if finite else np.zeros(0)
    return (float(known.min()), float(known.max())) if known.size else without


def _with_edges(values: Values, low: Values | None, high: Values | None) -> dict[str, Values]:
    gap = np.full_like(values, np.nan)
    return {"value": values, "low": gap if low is None else low, "high": gap if high is None else high}
