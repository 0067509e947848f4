"""What a probe reads: the neurons of one or several layers, chunk by chunk, and the tag of every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stratoscope.statistics.rows import LayerRows


@dataclass(frozen=True)
class Features:
    """Rows with tags, never held whole: plain data besides the tags, so that a worker anywhere can read them."""

    rows: LayerRows
    layers: tuple[int, ...]
    """Layers whose neurons stand side by side, in this order."""
    tags: Tensor
    """(n,) number of each row's tag, of any integer type."""
    classes: int
    columns: Tensor | None = None
    """Neurons kept of those side by side, all when None."""
    start: int = 0
    stop: int | None = None
    """Rows read: from `start` to before `stop`, to the last when None."""

    def __len__(self) -> int:
        return (len(self.tags) if self.stop is None else self.stop) - self.start

    @property
    def width(self) -> int:
        """Number of neurons."""
        if self.columns is not None:
            return len(self.columns)
        return sum(self.rows.chunk(layer, 0).shape[1] for layer in self.layers)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Chunks of the store that hold rows to read: number, first and last row within the chunk."""
        begin, end = 0, self.start + len(self)
        for index, size in enumerate(self.rows.sizes):
            low, high = max(self.start - begin, 0), min(end - begin, size)
            if low < high:
                yield index, low, high
            begin += size

    def piece(self, index: int, low: int, high: int) -> tuple[Tensor, Tensor]:
        """(rows, tags) of one piece, the rows in float32."""
        begin = sum(self.rows.sizes[:index])
        parts = [self.rows.chunk(layer, index)[low:high] for layer in self.layers]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return (x if self.columns is None else x[:, self.columns]).float(), self.tags[begin + low : begin + high].long()

    def chunks(self, most: int = 2048, *, skip: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, tags) in order, at most so many rows at once; with `skip` only every so many pieces."""
        for number, piece in enumerate(self.pieces()):
            if number % skip == 0:
                x, y = self.piece(*piece)
                yield from zip(torch.split(x, most), torch.split(y, most), strict=True)

    def select(self, columns: Tensor) -> Features:
        """Only these neurons, in this order."""
        return replace(self, columns=columns if self.columns is None else self.columns[columns])

    def between(self, start: int, stop: int) -> Features:
        """Only these rows."""
        return replace(self, start=start, stop=stop)

    def tagged(self, tags: Tensor) -> Features:
        """The same rows with other tags."""
        return replace(self, tags=tags)
