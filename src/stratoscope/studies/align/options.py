"""How to align."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.names import UNITS
from stratoscope.core.options import Working, batch_tokens, length, memory, option, overwrite, parse_layers, seed

FEWEST_TRAIN_ROWS = 40
ATTENTION = "attention"
"""The unit whose rows are word pairs, and columns the heads of a block."""


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read numbers such as `8,32,128`."""
    try:
        return tuple(int(piece) for piece in str(text).split(","))
    except ValueError as e:
        raise StratoscopeError(f"expected numbers such as '8,32,128', got '{text}'") from e


def methods() -> Any:
    return option(
        ("ridge", "inn"),
        "linreg, ridge, shrunk, cca, svcca, pwcca, procrustes, inn, mlp or 'all'; may be repeated.",
        flag="--method",
    )


def train() -> Any:
    return option(1600, "Rows to fit maps on.", least=FEWEST_TRAIN_ROWS)


def test() -> Any:
    return option(1600, "Other rows to judge them on.", least=10)


def paper() -> Any:
    return option(False, "Networks and schedule as Ren et al. 2023 published them; minutes for every map.")


@dataclass(frozen=True)
class AlignOptions(Working):
    """How to align layers of models: flags, YAML keys and keywords are these fields."""

    unit: str = option(
        "mean",
        "What a row is: word, cls, mean, token, or attention (word pairs by heads).",
        choices=(*UNITS, ATTENTION),
    )
    method: tuple[str, ...] = methods()
    layer: int | None = option(None, "One layer only, whose map is kept; 0 = embeddings.", least=0)
    layers: tuple[int, ...] | None = option(None, "Only these layers, e.g. '0,3-6'.", parse=parse_layers)
    train: int = train()
    test: int = test()
    pairs: int | None = option(None, "Use a random sample of N pairs of models.", least=1)
    paper: bool = paper()
    seed: int = seed()
    text: str | None = option(None, "Column that holds the text.", answer=False)
    pair: str | None = option(None, "Column that holds the second text.", answer=False)
    label: str | None = option(None, "Column that holds the label.", answer=False)
    columns: str | None = option(None, "Columns of a column file, or of a CSV without a header.", answer=False)
    split: str | None = option(None, "Split of a hub data set.", answer=False)
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()


@dataclass(frozen=True)
class InjectOptions(Working):
    """How to inject the state of one model into another."""

    method: tuple[str, ...] = methods()
    train: int = train()
    paper: bool = paper()
    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    overwrite: bool = overwrite()


@dataclass(frozen=True)
class RecoveryOptions(Working):
    """How to test whether a known bijection is recovered."""

    dim: tuple[int, ...] = option((8, 32, 128), "Numbers of features, e.g. '8,32,128'.", parse=parse_numbers)
    method: tuple[str, ...] = option(
        ("all",),
        "linreg, ridge, shrunk, cca, svcca, pwcca, procrustes, inn, mlp or 'all'; may be repeated.",
        flag="--method",
    )
    truths: int = option(1, "Random bijections for each number of features.", least=1)
    train: tuple[int, ...] = option((1600,), "Numbers of rows to fit maps on, e.g. '200,1600'.", parse=parse_numbers)
    test: int = test()
    layer: int | None = option(None, "Layer of --model whose rows are mapped; by default the last.", least=0)
    text: str | None = option(None, "Column of --data that holds the text.", answer=False)
    paper: bool = paper()
    seed: int = seed()
    overwrite: bool = overwrite()
