"""What reading hands back while it goes on, so that more rows take no more memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from itertools import pairwise
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.engine.local import mapped

Array = TypeVar("Array", bound=npt.NDArray[Any])


def kept_in_file(array: Array) -> Array:
    """The same numbers, writable, in a mapped file: `hand_back` takes their pages out of this process.

    In memory where the disk for temporary files has no room.
    """
    file_mapped = _mapped(array.nbytes)
    if file_mapped is None:
        return array
    kept = np.frombuffer(file_mapped, dtype=array.dtype).reshape(array.shape)
    kept[...] = array
    return cast(Array, kept)


def _mapped(size: int) -> mmap.mmap | None:
    """A file without a name, as memory; None where the disk has no room."""
    try:
        with tempfile.TemporaryFile(prefix="stratoscope-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is told now; a page without room kills
            made = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError, AttributeError):
        return None
    mapped.add(made)
    return made


class Spool:
    """Rows that wait for their shard to be whole: matrices of float32 in files without a name.

    In memory where the disk for temporary files has no room. `hand_back` takes their pages out of this process.
    """

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}
        """By where the matrix begins."""

    def room(self, *shape: int) -> Tensor:
        """A matrix to write to."""
        file_mapped = _mapped(4 * prod(shape))
        if file_mapped is None:
            return torch.empty(*shape)
        matrix = torch.frombuffer(file_mapped, dtype=torch.float32).view(*shape)
        self._mapped[matrix.data_ptr()] = file_mapped
        return matrix

    def cut(self, matrix: Tensor, bounds: list[int]) -> list[Tensor]:
        """The rows between two bounds each, as tensors that share no storage: each can be packed or saved alone."""
        file_mapped = self._mapped.get(matrix.data_ptr())
        if file_mapped is None:
            return [matrix[a:b].clone() for a, b in pairwise(bounds)]
        width = matrix.shape[1]
        return [
            torch.frombuffer(file_mapped, dtype=torch.float32, offset=4 * a * width, count=(b - a) * width).view(
                -1, width
            )
            if b > a
            else matrix[:0]
            for a, b in pairwise(bounds)
        ]
