"""Data sets of the Hugging Face hub, read as tables."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.extras import first_line, optional_module
from stratoscope.data.formats.tables import Literal, Table

DEFAULT_SPLIT = "validation"
TIMEOUT = 10.0
"""Seconds the hub may take to answer before only the local cache is tried."""


def hub_table(source: str, *, split: str | None = None, revision: str | None = None, asked_by: str = "--data") -> Table:
    """`name`, `org/name` or `name:config`; classes are resolved to their names. `asked_by` begins what errors say."""
    asked = f"{asked_by} '{source}'"
    datasets = optional_module("datasets", extra="hub", wanted_for=f"{asked} is no file, and a hub data set")
    name, _, config = source.partition(":")
    online = hub_answers(name, revision)
    try:
        with nullcontext() if online else _cache_only(datasets):
            dataset = datasets.load_dataset(name, config or None, split=split or DEFAULT_SPLIT, revision=revision)
    except Exception as e:
        # The library raises many kinds (connection, value, runtime, Arrow); each means that this name gives no data.
        raise _unreadable(asked, split, online, e) from e
    return _table(f"hub data set {source}", dataset)


def hub_answers(name: str, revision: str | None, *, kind: typing.Literal["dataset", "model"] = "dataset") -> bool:
    """Whether the hub can be reached, asked once: its loaders would retry a dead network for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api = HfApi()
        (api.dataset_info if kind == "dataset" else api.model_info)(name, revision=revision, timeout=TIMEOUT)
    except HfHubHTTPError:
        return True
    except Exception:
        # Offline mode, no name resolution, refused, timed out: the HTTP library behind it differs between versions.
        return False
    return True


@contextmanager
def _cache_only(datasets: Any) -> Iterator[None]:
    """Let `load_dataset` use what was downloaded before, without a look at the network."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _unreadable(asked: str, split: str | None, online: bool, error: Exception) -> StratoscopeError:
    if not online and isinstance(error, OSError):
        return StratoscopeError(
            f"{asked}: expected a file or a reachable hub data set, got no such file and no answer from the hub",
            "check the path or the network (and HF_HUB_OFFLINE)",
        )
    if isinstance(error, OSError):
        return StratoscopeError(
            f"{asked}: expected a file or a hub data set, got neither ({first_line(error)})",
            "check the path or the name",
        )
    return StratoscopeError(
        f"{asked}: the hub data set could not be read with split '{split or DEFAULT_SPLIT}' ({first_line(error)})",
        "choose another with --split, or a configuration with 'name:config'",
    )


def _table(source: str, dataset: Any) -> Table:
    classes = {name: feature for name, feature in dataset.features.items() if hasattr(feature, "int2str")}

    def resolve(name: str, value: object) -> object:
        if name not in classes or not isinstance(value, int):
            return value
        return Literal(classes[name].int2str(value)) if value >= 0 else None

    def rows(wanted: tuple[str, ...]) -> Iterator[Mapping[str, object]]:
        for row in dataset.select_columns(list(wanted)):
            yield {name: resolve(name, value) for name, value in row.items()}

    return Table(source, tuple(dataset.column_names), rows)
