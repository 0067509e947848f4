"""A fitted map between two spaces: called on rows, inverted where it can be, saved as a folder of safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from stratoscope.aligners.networks import NETWORKS, Network
from stratoscope.core.errors import DamagedResultError, ForeignResultError, StratoscopeError
from stratoscope.core.files import atomic, canonical_json, digest, file_sha256, write_text

Rows = TypeVar("Rows", Tensor, np.ndarray[Any, Any])

RECORD, WEIGHTS = "map.json", "map.safetensors"
PARTS = ("mean_x", "mean_y", "weight")
FORMAT = 1
SINGULAR = 1e10
"""Condition number of the linear part from which no inverse is given: rows would come back without a correct digit."""


@dataclass(frozen=True)
class Map:
    """y = mean_y + scale_y · N((x - mean_x) / scale_x · A), with N a network or nothing; computed in float64."""

    method: str
    mean_x: Tensor
    mean_y: Tensor
    weight: Tensor
    """A, (d, q)."""
    network: Network | None = None
    scale_x: float = 1.0
    scale_y: float = 1.0
    chosen: dict[str, Any] = field(default_factory=dict)
    """What was chosen in fitting: λ, components kept, steps and losses; plain data."""

    def __call__(self, rows: Rows) -> Rows:
        """Rows of the first space in the second, of the kind and precision they come in."""
        x = self._checked(rows, len(self.mean_x), "first")
        with torch.inference_mode():
            z = (x - self.mean_x) / self.scale_x @ self.weight
            return _like(rows, self.mean_y + self.scale_y * (z if self.network is None else self.network(z)))

    def inverse(self, rows: Rows) -> Rows:
        """Rows of the second space in the first; an error where the map has no inverse."""
        if why := self.without_inverse:
            square = self.weight.shape[0] == self.weight.shape[1]
            do = "fit method='inn' for one" if square else "only spaces of one width have one"
            raise StratoscopeError(f"this {self.method} map has no inverse: {why}; {do}")
        y = self._checked(rows, len(self.mean_y), "second")
        with torch.inference_mode():
            z = (y - self.mean_y) / self.scale_y
            z = z if self.network is None else self.network.inverse(z)
            return _like(rows, self.mean_x + self.scale_x * (z @ self._back))

    def __repr__(self) -> str:
        (d, q), network = self.weight.shape, "" if self.network is None else f", {self.network.name}"
        return f"Map({self.method!r}, {d} to {q} features{network}, {'' if self.invertible else 'not '}invertible)"

    @cached_property
    def condition(self) -> float:
        """Condition number of A: how much an error in y can grow on its way back."""
        values = torch.linalg.svdvals(self.weight)
        return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")

    @property
    def without_inverse(self) -> str:
        """Why there is no inverse; empty where there is one."""
        d, q = self.weight.shape
        if self.network is not None and not self.network.invertible:
            return "its network is not a bijection"
        if d != q:
            return f"the spaces have {d} and {q} features"
        return f"its matrix is singular (condition {self.condition:.1e})" if self.condition > SINGULAR else ""

    @property
    def invertible(self) -> bool:
        """Whether the map can be inverted."""
        return not self.without_inverse

    @cached_property
    def _back(self) -> Tensor:
        back: Tensor = torch.linalg.inv(self.weight)
        return back

    def _checked(self, rows: Any, width: int, which: str) -> Tensor:
        x = as_tensor(rows).double()
        if x.ndim != 2 or x.shape[1] != width:
            raise StratoscopeError(f"expected rows of the {which} space (n, {width}), got {tuple(x.shape)}")
        return x

    @property
    def record(self) -> dict[str, Any]:
        """Plain data that, with `tensors`, make the map again."""
        net = self.network
        return {
            "method": self.method,
            "scales": [self.scale_x, self.scale_y],
            "network": None if net is None else {"name": net.name, **net.shape},
            "chosen": dict(self.chosen),
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Means, matrix and the network's parameters, float64."""
        own = {name: getattr(self, name) for name in PARTS}
        network = {} if self.network is None else self.network.state_dict()
        return own | {f"network.{k}": v for k, v in network.items()}

    @classmethod
    def of(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The map with this record and these tensors."""
        shape, network = dict(record["network"] or {}), None
        if shape:
            network = NETWORKS[shape.pop("name")](**shape).double().eval()
            network.load_state_dict({k.partition(".")[2]: v for k, v in tensors.items() if k not in PARTS})
            network.requires_grad_(False)
        mean_x, mean_y, weight = (tensors[name] for name in PARTS)
        scale_x, scale_y = record["scales"]
        return cls(record["method"], mean_x, mean_y, weight, network, scale_x, scale_y, dict(record["chosen"]))

    def save(self, folder: str | Path) -> None:
        """Write the map as `map.json` and `map.safetensors`; the record comes last and holds a checksum."""
        folder = Path(folder)
        with atomic(folder / WEIGHTS) as f:
            f.write(to_bytes({k: v.contiguous() for k, v in self.tensors.items()}))
        plain = {"kind": "map", "format": FORMAT, "weights_sha256": file_sha256(folder / WEIGHTS), **self.record}
        write_text(folder / RECORD, canonical_json({**plain, "sha256": digest(plain, length=64)}) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a saved map; a missing, foreign or damaged one is an error that says which."""
        path, weights = Path(folder) / RECORD, Path(folder) / WEIGHTS
        if not path.is_file():
            raise StratoscopeError(f"no {RECORD} in {folder}; expected a folder that a map was saved to")
        try:
            plain = json.loads(path.read_bytes())
            if (plain["kind"], plain["format"]) != ("map", FORMAT):
                raise ForeignResultError(f"{path} is not a map of format {FORMAT}; fit it again")
            whole = plain.pop("sha256") == digest(plain, length=64) and weights.is_file()
            if not whole or file_sha256(weights) != plain["weights_sha256"]:
                raise ValueError("its checksum does not match")
            return cls.of(plain, load_file(weights))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise DamagedResultError(f"{path} is damaged ({e})", "fit the map again") from e


def as_tensor(rows: Any) -> Tensor:
    """Rows as a tensor in memory, without a copy where possible."""
    if isinstance(rows, Tensor) and not rows.is_complex():
        return rows.detach().to("cpu")
    try:
        array = np.ascontiguousarray(rows)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"values of type {array.dtype}")
        return torch.from_numpy(array)
    except (TypeError, ValueError) as e:
        raise StratoscopeError(f"expected rows of real numbers, numpy or torch, got {type(rows).__name__}: {e}") from e


def _like(rows: Rows, found: Tensor) -> Rows:
    """The rows found, of the kind and precision of those given; whole numbers become float64."""
    if isinstance(rows, Tensor):
        return found.to(rows.device, rows.dtype if rows.dtype.is_floating_point else torch.float64)
    dtype = rows.dtype if np.issubdtype(rows.dtype, np.floating) else np.float64
    return found.numpy().astype(dtype)
