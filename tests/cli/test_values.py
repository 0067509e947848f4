from __future__ import annotations

import pytest

from stratoscope.cli.values import parse_bytes, parse_layers, specs
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.open.loading import ModelSpec


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4e9), ("800M", 8e8), ("1e9", 1e9), (" 2 gib ", 2e9), ("1.5T", 1.5e12), ("512000kb", 5.12e8), ("7B", 7)],
)
def test_sizes(text: str, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4GB", "four", "4XB", "1.2.3GB", ".", "nan", "inf", "1e999", "4 5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(StratoscopeError) as raised:
        parse_bytes(text)
    assert str(raised.value) == f"expected a size such as 4GB or 800MB, got '{text}'"


@pytest.mark.parametrize(
    ("text", "layers"), [("0", (0,)), ("0,3-6", (0, 3, 4, 5, 6)), (" 2 - 3 , 1", (1, 2, 3)), ("1-3,2", (1, 2, 3))]
)
def test_layers(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,,2", "1-", "0-99999999999", "1.5", "1;2"])
def test_what_is_no_list_of_layers(text: str) -> None:
    with pytest.raises(StratoscopeError) as raised:
        parse_layers(text)
    assert str(raised.value) == f"expected layers such as '0,3-6', got '{text}'"


def test_nothing_given_is_nothing() -> None:
    assert parse_bytes(None) is None
    assert parse_layers(None) is None


OPTIONS = {"revision": None, "dtype": "float16", "device": "cpu", "allow_pickle": True, "trust_remote_code": False}


def test_models_get_their_names_in_order() -> None:
    assert specs(["a", "b"], [], **OPTIONS) == [
        ModelSpec("a", dtype="float16", device="cpu", allow_pickle=True),
        ModelSpec("b", dtype="float16", device="cpu", allow_pickle=True),
    ]
    assert [s.label for s in specs(["a", "b"], ["x", "y"], **OPTIONS)] == ["x", "y"]


def test_names_for_some_models_only() -> None:
    with pytest.raises(StratoscopeError, match=r"expected one --name per model \(2\) or none, got 1"):
        specs(["a", "b"], ["x"], **OPTIONS)
