"""What the study computes, done slowly: one sentence at a time, plain transformers, definitions in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

Rows = npt.NDArray[np.float64]


def activations(folder: Path, sentences: tuple[str, ...], unit: str, subword: str = "last") -> list[Rows]:
    """One matrix of rows per layer."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    layers: list[list[Rows]] = []
    for sentence in sentences:
        by_word = unit == "word"
        inputs = tokenizer(
            spaced(sentence, folder) if by_word else sentence, is_split_into_words=by_word, return_tensors="pt"
        )
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        layers = layers or [[] for _ in hidden]
        for layer, h in zip(layers, hidden, strict=True):
            layer += [h[0, tokens].double().numpy().mean(0) for tokens in groups(inputs, tokenizer, unit, subword)]
    return [np.stack(rows) for rows in layers]


def spaced(sentence: str, folder: Path) -> list[str]:
    """Words; a byte-level tokenizer needs the blanks back that stood before them."""
    words = sentence.split()
    return [f" {w}" if k and folder.name == "other" else w for k, w in enumerate(words)]


def groups(inputs: object, tokenizer: object, unit: str, subword: str) -> Iterator[list[int]]:
    ids = inputs["input_ids"][0].tolist()  # type: ignore[index]
    if unit == "cls":
        yield [0]
    elif unit == "mean":
        yield [k for k, i in enumerate(ids) if i not in tokenizer.all_special_ids]  # type: ignore[attr-defined]
    else:
        words = inputs.word_ids(0)  # type: ignore[attr-defined]
        for word in sorted({w for w in words if w is not None}):
            of_word = [k for k, w in enumerate(words) if w == word]
            yield {"last": of_word[-1:], "first": of_word[:1], "mean": of_word}[subword]


def linear_cka(x: Rows, y: Rows) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with n×n kernels, as defined."""
    n = len(x)
    centre = np.eye(n) - 1 / n

    def hsic(a: Rows, b: Rows) -> float:
        return float(np.trace(a @ a.T @ centre @ b @ b.T @ centre))

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


def r2(x: Rows, y: Rows) -> float:
    """Share of the variance of y that a linear map of x explains: not symmetric."""
    x, y = x - x.mean(0), y - y.mean(0)
    fit = x @ np.linalg.lstsq(x, y, rcond=1e-5)[0]
    return float(np.square(fit).sum() / np.square(y).sum())
