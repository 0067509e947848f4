"""Options of an analysis: one dataclass that flags, YAML and keywords share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import (
    answering,
    batch_tokens,
    changed,
    check_options,
    described,
    memory,
    option,
    overwrite,
    parse_bytes,
    parse_layers,
    read_options,
    seed,
    workers,
)


@dataclass(frozen=True)
class Some:
    measures: tuple[str, ...] = option(("ckasim",), "Measures.", flag="--measure")
    share: float | None = option(0.5, "Share.", least=0)
    seed: int = seed()
    workers: int | None = workers()
    memory: float | None = memory()
    batch_tokens: int | None = batch_tokens()
    overwrite: bool = overwrite()
    secret: str | None = option(None, "For Python only.", hidden=True)
    own: int = 3


def test_an_answer_depends_on_these_only() -> None:
    assert answering(Some()) == {"measures": ("ckasim",), "share": 0.5, "seed": 0, "secret": None}
    same = Some(workers=7, memory=1e9, batch_tokens=9, overwrite=True)
    assert answering(same) == answering(Some())
    for other in (Some(seed=1), Some(share=None), Some(measures=())):
        assert answering(other) != answering(Some())


def test_what_was_changed() -> None:
    assert changed(Some()) == {}
    assert changed(Some(seed=4, workers=2, own=5)) == {"seed": 4, "workers": 2, "own": 5}
    assert read_options(Some, changed(Some(seed=4, share=None))) == Some(seed=4, share=None)


def test_hidden_options_are_not_described() -> None:
    assert list(described(Some)) == ["measures", "share", "seed", "workers", "memory", "batch_tokens", "overwrite"]
    field, known = described(Some)["measures"]
    assert (field.default, known.flag, known.help) == (("ckasim",), "--measure", "Measures.")


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(StratoscopeError, match=r"'worker'.*'workers'"):
        read_options(Some, {"worker": 3})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"share": -0.1}, "--share.*0.*-0.1"),
        ({"share": math.nan}, "--share.*number.*nan"),
        ({"share": math.inf}, "--share.*number"),
        ({"share": "many"}, "--share.*number.*many"),
        ({"share": True}, "--share.*number.*True"),
        ({"workers": 0}, "--workers.*1.*0"),
        ({"batch_tokens": -3}, "--batch-tokens.*1.*-3"),
        ({"seed": -1}, "--seed.*-1"),
        ({"seed": 2**63}, "--seed.*9223372036854775808"),
    ],
)
def test_numbers_out_of_their_limits(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        check_options(Some(**wrong))


@pytest.mark.parametrize("right", [{}, {"share": 0}, {"share": None}, {"workers": 1}, {"seed": 2**63 - 1}])
def test_numbers_at_their_limits(right: dict[str, Any]) -> None:
    check_options(Some(**right))


@pytest.mark.parametrize("wrong", ["many", 1.5, None, math.nan, True])
def test_a_seed_that_is_no_whole_number(wrong: Any) -> None:
    with pytest.raises(StratoscopeError, match="--seed"):
        check_options(Some(seed=wrong))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4e9),
        ("800M", 8e8),
        ("1e9", 1e9),
        (" 2 gib ", 2e9),
        ("0.5T", 5e11),
        (".5T", 5e11),
        ("5.GB", 5e9),
        (4000000000.0, 4e9),
        ("3k", 3e3),
    ],
)
def test_sizes(text: Any, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1.2.3GB", "4 GB of it", "1e999", "inf", "nan", "..", None])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(StratoscopeError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "layers"), [("0,3-6", (0, 3, 4, 5, 6)), ("2", (2,)), (" 5 , 1 - 2,1", (1, 2, 5)), (7, (7,)), ("3-3", (3,))]
)
def test_layers(text: Any, layers: tuple[int, ...]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", ",", "3-1", "-1", "a", "1-", "1.5", "99999", "1;2", None])
def test_what_are_no_layers(text: Any) -> None:
    with pytest.raises(StratoscopeError, match="layers"):
        parse_layers(text)
