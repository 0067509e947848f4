"""Any frozen result as one JSON file, with its large arrays beside it: saved and loaded the same way for every kind.

A field is written by its type: numbers (NaN as null), text, tuples, mappings, other dataclasses, and arrays as nested
lists. Arrays whose field says `metadata={"stored": "arrays"}` go to a safetensors file. A file holds its kind, its
format and a checksum of everything else, so that a foreign, an older and a damaged one are told apart.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from stratoscope.core.errors import DamagedResultError, ForeignResultError
from stratoscope.core.files import atomic, canonical_json, digest, file_sha256, write_text

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]

AGAIN = "run the same command again to make it anew"


def arrays_name(file: str) -> str:
    """The file of large arrays beside a record: `result.arrays.safetensors` beside `result.json`."""
    return f"{Path(file).stem}.arrays.safetensors"


def save(result: Any, path: Path, *, kind: str, format: int) -> None:
    """Write a frozen result; its arrays come first and the record holds their checksum, so it is whole or missing."""
    arrays: Arrays = {}
    plain = to_plain(result, arrays)
    beside = path.with_name(arrays_name(path.name))
    if arrays:
        from safetensors.numpy import save as to_bytes

        with atomic(beside) as f:
            f.write(to_bytes({k: np.ascontiguousarray(v) for k, v in sorted(arrays.items())}))
    record = {"kind": kind, "format": format, "arrays_sha256": file_sha256(beside) if arrays else None, **plain}
    record["sha256"] = digest(record, length=64)
    write_text(path, canonical_json(record) + "\n")
    if not arrays:
        beside.unlink(missing_ok=True)


def header(path: Path) -> tuple[str, int] | None:
    """Kind and format of a record that we wrote, whole or damaged; None for any other file."""
    try:
        plain: Any = json.loads(path.read_bytes()) if path.is_file() else None  # reading a FIFO would never end
        return (str(plain["kind"]), int(plain["format"])) if isinstance(plain["sha256"], str) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def load(cls: type[T], path: Path, *, kind: str, format: int) -> T:
    """Read a record back; a foreign and a damaged one are errors that say which."""
    try:
        plain = json.loads(path.read_bytes())
        if not isinstance(plain, dict) or not {"kind", "format", "sha256"} <= set(plain):
            raise ForeignResultError(f"{path} was not written by stratoscope")
        if (plain["kind"], plain["format"]) != (kind, format):
            raise ForeignResultError(
                f"{path} is a '{plain['kind']}' of format {plain['format']}, this version reads '{kind}' of format"
                f" {format}; run it again"
            )
        if plain.pop("sha256") != digest(plain, length=64):
            raise ValueError("its checksum does not match")
        return typing.cast(T, from_plain(cls, plain, _read_arrays(path, plain["arrays_sha256"])))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as e:
        raise DamagedResultError(f"{path} is damaged ({e})", AGAIN) from e


def _read_arrays(path: Path, sha256: str | None) -> Arrays:
    if sha256 is None:
        return {}
    from safetensors.numpy import load_file

    beside = path.with_name(arrays_name(path.name))
    if not beside.is_file() or file_sha256(beside) != sha256:
        raise DamagedResultError(f"{beside} is missing or damaged", AGAIN)
    return load_file(beside)


def to_plain(value: Any, arrays: Arrays | None = None, where: str = "") -> Any:
    """Plain data for JSON; arrays that are stored beside it are collected in `arrays` under the path of their field."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field_to_plain(f, getattr(value, f.name), arrays, f"{where}{f.name}") for f in stored(value)}
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None if math.isnan(value) else str(float(value))
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, arrays, f"{where}.{k}.") for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v, arrays, f"{where}.{k}.") for k, v in enumerate(value)]
    raise TypeError(f"a {type(value).__name__} cannot be written to a result ({where})")


def _field_to_plain(f: dataclasses.Field[Any], value: Any, arrays: Arrays | None, where: str) -> Any:
    if f.metadata.get("stored") != "arrays" or arrays is None or value is None:
        return to_plain(value, arrays, where)
    many = value.items() if isinstance(value, Mapping) else [("", value)]
    named = {f"{where}{':' if name else ''}{name}": array for name, array in many}
    arrays.update(named)
    return sorted(named) if isinstance(value, Mapping) else where


def stored(value: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are written."""
    return [f for f in dataclasses.fields(value) if f.metadata.get("stored") != "no"]


@cache
def hints(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields."""
    return get_type_hints(cls)


def from_plain(kind: Any, plain: Any, arrays: Arrays | None = None) -> Any:
    """The value of type `kind` that `to_plain` wrote; keys that a later version added are passed over."""
    if kind is Any:
        return plain
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if plain is None and type(None) in parts:
            return None
        return from_plain(next(p for p in parts if p is not type(None)), plain, arrays)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), plain, arrays or {})
    if origin is np.ndarray:
        return np.array(plain, dtype=np.float64)  # None becomes NaN
    if origin is tuple:
        return tuple(from_plain(parts[0], v, arrays) for v in plain)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {k: from_plain(parts[1], v, arrays) for k, v in plain.items()}
    if kind is float:
        return math.nan if plain is None else float(plain)
    return kind(plain)


def _dataclass(cls: type, plain: Mapping[str, Any], arrays: Arrays) -> Any:
    known: dict[str, Any] = {}
    for f in stored(cls):
        if f.name not in plain:
            continue
        value = plain[f.name]
        if f.metadata.get("stored") == "arrays" and isinstance(value, list):
            known[f.name] = {name.partition(":")[2]: arrays[name] for name in value}
        elif f.metadata.get("stored") == "arrays" and isinstance(value, str):
            known[f.name] = arrays[value]
        else:
            known[f.name] = from_plain(hints(cls)[f.name], value, arrays)
    return cls(**known)
