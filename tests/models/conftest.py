from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import tiny
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import ModelSpec, OpenedModel, open_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One tiny checkpoint per family, made once."""
    root = tmp_path_factory.mktemp("families")
    return cache(lambda family: tiny.checkpoint(family, root / family))


@pytest.fixture(scope="session")
def model_of(folder_of: Callable[[str], Path]) -> Callable[[str], OpenedModel]:
    """The same, loaded."""
    return cache(lambda family: open_model(ModelSpec(str(folder_of(family)), device="cpu")))


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return of_texts(*tiny.SENTENCES)


@pytest.fixture(scope="session")
def pairs() -> Corpus:
    """Texts with a second one each, but for one."""
    seconds = [*tiny.SENTENCES[1:6], None]
    sentences = tuple(Sentence(a, pair=b) for a, b in zip(tiny.SENTENCES[:6], seconds, strict=True))
    return Corpus("pairs", sentences, tuple(range(6)))


@pytest.fixture(scope="session")
def texts() -> Callable[..., Corpus]:
    return of_texts


def of_texts(*texts: str) -> Corpus:
    return Corpus("texts", tuple(Sentence(t) for t in texts), tuple(range(len(texts))))
