"""Rows of one text are not independent: they are drawn together and held out together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError

IntArray = npt.NDArray[np.int64]

HELD_OUT = 5
"""One text in so many is held out to choose λ, and to stop a network."""
FEWEST_TEXTS = HELD_OUT


def numbered(n: int, texts: IntArray | None = None) -> IntArray:
    """(n,): the text of every row, numbered from 0; without `texts`, every row is one of its own."""
    of: IntArray = np.arange(n) if texts is None else np.unique(texts, return_inverse=True)[1]
    return of


def held_out(n: int, *, texts: IntArray | None = None, seed: int = 0) -> Tensor:
    """Which of n rows are held out, those of one text in `HELD_OUT`."""
    of = torch.from_numpy(numbered(n, texts))
    order = torch.randperm(int(of.max()) + 1, generator=torch.Generator().manual_seed(seed))
    return (order % HELD_OUT == 0)[of]


def check_texts(n: int, texts: IntArray) -> None:
    """Refuse texts that are not those of n rows, or too few to hold some out."""
    if np.shape(texts) != (n,):
        raise StratoscopeError(f"expected texts of {n} rows, got shape {np.shape(texts)}; give each row's text")
    if (number := len(np.unique(texts))) < FEWEST_TEXTS:
        raise StratoscopeError(
            f"expected rows of at least {FEWEST_TEXTS} texts to fit a map, one in {HELD_OUT} of which is held out,"
            f" got {number}; give more texts"
        )
