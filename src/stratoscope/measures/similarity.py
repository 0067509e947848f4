"""Similarity of two arrays under one measure, for use without any model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.names import ALL
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import caution, parse
from stratoscope.statistics.rows import MemoryRows


def similarity(x: Any, y: Any, measure: str = "ckasim", *, seed: int = 0) -> float:
    """Similarity of n×p rows `x` (first argument) and n×q rows `y`: numpy arrays, torch tensors or nested lists.

    `measure` is a name from the table, with `@fraction` to average over the best fraction only. Few rows draw a
    warning; layers that do not vary score 0 with a warning. Inputs are not changed.

    >>> similarity([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[2.0], [0.0], [2.0], [0.0]])
    0.7071067811865475
    """
    if measure == ALL:
        raise StratoscopeError("similarity gives one number, so it takes one measure, got 'all'; name one")
    request = parse(measure)
    a, b = _matrix(x, "x"), _matrix(y, "y")
    if len(a) != len(b):
        raise StratoscopeError(f"x and y must have the same rows in the same order; got {len(a)} and {len(b)} rows")
    least = 4 if "ckasim-" in measure else 3
    if len(a) < least:
        raise StratoscopeError(f"expected at least {least} rows, got {len(a)}")
    common = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    rounding = [torch.finfo(m.dtype).eps for m in (a, b)]
    scoring = score_layers(MemoryRows([a.to(common), b.to(common)], rounding), [request], seed=seed)
    if note := caution(request, len(a), max(a.shape[1], b.shape[1])):
        warnings.warn(note, stacklevel=2)
    widths = (a.shape[1], b.shape[1])
    for name, constant, lost, width in zip("xy", scoring.constant, scoring.lost, widths, strict=True):
        if constant:
            warnings.warn(f"{constant} of {width} neurons of {name} do not vary and score 0", stacklevel=2)
        if lost > 1:
            could = min(width - constant, len(a) - 1)
            warnings.warn(f"{lost} of {could} directions of {name} are rounding and left out", stacklevel=2)
    value = float(scoring.scored[request.name].values[0, 1])
    if np.isnan(value) and request.measure.undefined:
        warnings.warn(f"{measure} of x or y is not defined and given as 0: {request.measure.undefined}", stacklevel=2)
    return 0.0 if np.isnan(value) else value


def _matrix(values: Any, name: str) -> Tensor:
    """Rows as a matrix of real numbers on the CPU, in the precision they came in."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        try:
            tensor = torch.from_numpy(np.array(values, dtype=None))
        except (TypeError, ValueError) as e:
            raise StratoscopeError(f"{name}: expected a matrix of numbers, got {type(values).__name__} ({e})") from e
    if tensor.ndim != 2 or not tensor.numel():
        raise StratoscopeError(f"{name}: expected rows × features, got shape {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise StratoscopeError(f"{name}: expected real numbers, got {tensor.dtype}")
    if not tensor.is_floating_point():
        tensor = tensor.double()
    if not bool(tensor.isfinite().all()):
        row = int((~tensor.isfinite()).any(1).nonzero()[0])
        raise StratoscopeError(f"{name}: row {row} holds a value that is not finite")
    return tensor
