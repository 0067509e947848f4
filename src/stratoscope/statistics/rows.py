"""Where the rows of every layer are kept: in memory, or in files read chunk by chunk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Protocol

import torch
from torch import Tensor

CHUNK = 2048
"""Rows per chunk: float32 products over so few rows lose nothing once the chunks are summed in float64."""

SHIFT, SCALE = ".shift", ".scale"
"""What names end with of the neurons' means and scales beside a float16 tensor."""
HALF_BITS = 15
"""Values below 2^15 are safe from rounding up to infinity in float16."""


class LayerRows(Protocol):
    """The same n rows seen by several layers, cut into chunks whose boundaries all layers share."""

    @property
    def sizes(self) -> Sequence[int]:
        """Rows in each chunk."""
        ...

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    def eps(self, layer: int) -> float:
        """Relative rounding of the arithmetic that made the layer's rows."""
        ...

    def loss(self, layer: int) -> float:
        """What keeping the rows added to that, relative to each neuron's spread; 0 where they are kept as they were."""
        ...

    def chunk(self, layer: int, index: int) -> Tensor:
        """One chunk of one layer's rows."""
        ...


@dataclass(frozen=True)
class MemoryRows:
    """Rows held as one matrix per layer."""

    matrices: Sequence[Tensor]
    precision: Sequence[float] | None = None
    """Rounding of each layer, where it is coarser than the matrices' own."""
    losses: Sequence[float] | None = None

    @property
    def sizes(self) -> Sequence[int]:
        n = len(self.matrices[0])
        return [min(CHUNK, n - start) for start in range(0, n, CHUNK)]

    @property
    def layers(self) -> int:
        return len(self.matrices)

    def eps(self, layer: int) -> float:
        return self.precision[layer] if self.precision else torch.finfo(self.matrices[layer].dtype).eps

    def loss(self, layer: int) -> float:
        return self.losses[layer] if self.losses else 0.0

    def chunk(self, layer: int, index: int) -> Tensor:
        return self.matrices[layer][index * CHUNK : (index + 1) * CHUNK]


@dataclass(frozen=True)
class FileRows:
    """Rows of one layer in a temporary file without a name, read chunk by chunk, so that they take no memory."""

    file: IO[bytes]
    count: int
    width: int

    @classmethod
    def of(cls, parts: Iterable[Tensor], count: int, width: int) -> FileRows | None:
        """`count` rows of float32, given part by part; None where the disk has no room for them."""
        try:
            file = tempfile.TemporaryFile(prefix="stratoscope-")  # noqa: SIM115 - it lives as long as the rows
            for part in parts:
                file.write(part.contiguous().numpy().tobytes())
            file.flush()
        except OSError:
            return None
        return cls(file, count, width)

    @property
    def sizes(self) -> Sequence[int]:
        return [min(CHUNK, self.count - start) for start in range(0, self.count, CHUNK)]

    @property
    def layers(self) -> int:
        return 1

    def eps(self, layer: int) -> float:
        return torch.finfo(torch.float32).eps

    def loss(self, layer: int) -> float:
        return 0.0

    def chunk(self, layer: int, index: int) -> Tensor:
        size = self.sizes[index]
        data = os.pread(self.file.fileno(), 4 * size * self.width, 4 * CHUNK * index * self.width)
        return torch.frombuffer(bytearray(data), dtype=torch.float32).view(size, self.width)


@dataclass(frozen=True)
class StoredRows:
    """Rows held in safetensors files: plain data, so that a worker anywhere can open them."""

    sizes: tuple[int, ...]
    files: tuple[tuple[tuple[str, str], ...], ...]
    """For each layer, the (path, tensor name) of every chunk."""
    precision: tuple[float, ...]
    """Rounding of each layer."""
    exact: tuple[tuple[str, str], ...] = ()
    """For each layer, the (path, tensor name) of its first chunk before it was rounded to be kept, if it was."""

    @property
    def layers(self) -> int:
        return len(self.files)

    def eps(self, layer: int) -> float:
        return self.precision[layer]

    def loss(self, layer: int) -> float:
        return torch.finfo(torch.float16).eps if self.exact else 0.0

    def chunk(self, layer: int, index: int) -> Tensor:
        from safetensors import safe_open

        path, name = self.files[layer][index]
        with safe_open(Path(path), "pt") as f:
            tensor: Tensor = f.get_tensor(name)
            if tensor.dtype == torch.float16:
                return torch.addcmul(f.get_tensor(name + SHIFT), tensor.float(), f.get_tensor(name + SCALE))
        return tensor

    def first(self) -> tuple[StoredRows, StoredRows]:
        """The first chunk of every layer, as it was before rounding and as it is kept."""
        exact, kept = tuple((file,) for file in self.exact), tuple(files[:1] for files in self.files)
        return StoredRows(self.sizes[:1], exact, self.precision), replace(self, sizes=self.sizes[:1], files=kept)


def halved(name: str, x: Tensor) -> dict[str, Tensor]:
    """Rows as they are kept in float16: each neuron about its mean, times a power of two that fills the range.

    A decoder's neuron may stand at 1e5 and vary by 1, or be 1e5 in a few rows only (massive activations): the one would
    lose all it says to rounding, the other overflow beyond 65504. Deviations keep 11 bits down to 2^-29 of the largest.
    """
    shift = x.double().mean(0).float()
    moved = x - shift
    scale = torch.exp2((torch.frexp(moved.abs().amax(0)).exponent - HALF_BITS).clamp(-120, 120).float())
    return {name: (moved / scale).half(), name + SHIFT: shift, name + SCALE: scale}


@dataclass(frozen=True)
class _Taken:
    """What rows taken from others keep of those."""

    rows: LayerRows

    @property
    def layers(self) -> int:
        return self.rows.layers

    def eps(self, layer: int) -> float:
        return self.rows.eps(layer)

    def loss(self, layer: int) -> float:
        return self.rows.loss(layer)


@dataclass(frozen=True)
class Subset(_Taken):
    """Some of the rows, in their order; each knows where in the whole it stands."""

    index: Tensor
    """Positions in `rows`, increasing; a row may repeat."""

    @cached_property
    def _kept(self) -> list[tuple[int, int, int, int]]:
        """Chunks that have rows here: number, first row of the chunk, and from where to where in the index it goes."""
        starts = [0, *accumulate(self.rows.sizes)]
        places = torch.searchsorted(self.index, torch.tensor(starts, dtype=self.index.dtype)).tolist()
        return [(k, starts[k], a, b) for k, (a, b) in enumerate(pairwise(places)) if b > a]

    @property
    def sizes(self) -> list[int]:
        return [b - a for _, _, a, b in self._kept]

    def chunk(self, layer: int, index: int) -> Tensor:
        k, start, a, b = self._kept[index]
        return self.rows.chunk(layer, k)[self.index[a:b].long() - start]


@dataclass(frozen=True)
class Repeated(_Taken):
    """Every row so many times, in their order; what that takes is made chunk by chunk."""

    times: Tensor
    """(n,) of any integer type."""

    @cached_property
    def sizes(self) -> list[int]:
        return [int(times.sum()) for times in torch.split(self.times, list(self.rows.sizes))]

    def chunk(self, layer: int, index: int) -> Tensor:
        start, x = sum(self.rows.sizes[:index]), self.rows.chunk(layer, index)
        return x.repeat_interleave(self.times[start : start + len(x)].long(), dim=0)


def count(rows: LayerRows) -> int:
    """Number of rows."""
    return sum(rows.sizes)


def chunks(rows: LayerRows, layer: int) -> Iterator[Tensor]:
    """Every chunk of one layer, in row order."""
    return (rows.chunk(layer, k) for k in range(len(rows.sizes)))


def gather(rows: LayerRows, layer: int, index: Tensor | None = None) -> Tensor:
    """One layer's rows as a matrix: all of them, or those of an index in any order and with repeats."""
    if index is None:
        return torch.cat(list(chunks(rows, layer)))
    if bool((index[1:] >= index[:-1]).all()):
        return gather(Subset(rows, index), layer)
    order = torch.argsort(index, stable=True)
    return gather(Subset(rows, index[order]), layer)[torch.argsort(order)]
