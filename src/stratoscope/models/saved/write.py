"""Save the activations of words, in the formats that `files` reads."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home, disk_errors
from stratoscope.data.corpus import Corpus
from stratoscope.data.extras import optional_module
from stratoscope.data.tagged import SPLITS
from stratoscope.models.saved.files import HDF5, INDEX, SUFFIXES, Floats
from stratoscope.models.text.encoder import words_of
from stratoscope.models.text.rows import Rows
from stratoscope.statistics.rows import StoredRows


class Writer(ABC):
    """Takes one sentence after the other."""

    @abstractmethod
    def add(self, words: Sequence[str], vectors: Floats) -> None:
        """Keep the vectors (layers, words, features) of a sentence."""

    @abstractmethod
    def close(self) -> None:
        """Write what comes last."""


class Hdf5Writer(Writer):
    def __init__(self, path: Path) -> None:
        self._h5py = optional_module("h5py", extra="hdf5", wanted_for=f"writing '{path}'")
        self._file = self._h5py.File(path, "w")
        self._index: dict[str, str] = {}
        self._seen: dict[str, int] = {}

    def add(self, words: Sequence[str], vectors: Floats) -> None:
        text, number = " ".join(words), str(len(self._index))
        self._seen[text] = times = self._seen.get(text, 0) + 1
        self._index[text if times == 1 else f"{text} (Occurrence {times})"] = number
        self._file.create_dataset(number, data=vectors)

    def close(self) -> None:
        kept = self._file.create_dataset(INDEX, (1,), dtype=self._h5py.string_dtype())
        kept[0] = json.dumps(self._index)
        self._file.close()


class JsonWriter(Writer):
    def __init__(self, path: Path) -> None:
        self._file, self._lines = path.open("w", encoding="utf-8"), 0

    def add(self, words: Sequence[str], vectors: Floats) -> None:
        features = [
            {"token": word, "layers": [{"index": k, "values": of.tolist()} for k, of in enumerate(vectors[:, j])]}
            for j, word in enumerate(words)
        ]
        json.dump({"linex_index": self._lines, "features": features}, self._file)
        self._file.write("\n")
        self._lines += 1

    def close(self) -> None:
        self._file.close()


def file_for(path: str | Path, label: str, *, several: bool) -> Path:
    """Where the activations of a model are saved: the file given, or one with its name for each of several.

    The split stays last, `acts-train.hdf5` of `bert` in `acts-bert-train.hdf5`, so that `acts-bert.hdf5` stands for all
    splits (`files.split_sources`).
    """
    path = at_home(path)
    if not several:
        return path
    split = next((f"-{s}" for s in SPLITS if path.stem.endswith(f"-{s}")), "")
    return path.with_name(f"{path.stem.removesuffix(split)}-{label.replace('/', '-')}{split}{path.suffix}")


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that could not be written, before any work."""
    if path.suffix.lower() not in SUFFIXES:
        raise StratoscopeError(f"expected a file of activations to end in {', '.join(SUFFIXES)}, got '{path}'")
    if not path.parent.is_dir():
        raise StratoscopeError(f"the folder of '{path}' does not exist; make it, or choose another")
    if path.exists() and not overwrite:
        raise StratoscopeError(f"{path} exists already", "choose another file", "give --overwrite")


def save_activations(path: Path, stored: StoredRows, rows: Rows, corpus: Corpus) -> int:
    """Write all layers, sentence by sentence, and say how many sentences had to be left out: those that lack a word."""
    first, left_out = 0, len(corpus)
    with _writing(path) as writer:
        for c, size in enumerate(stored.sizes):
            sentence = rows.sentence[first : first + size]
            layers = np.stack([stored.chunk(k, c).numpy() for k in range(stored.layers)])
            for k in np.unique(sentence):
                a, b = np.searchsorted(sentence, [k, k + 1])
                words = words_of(corpus.sentences[int(k)])
                if b - a == len(words):
                    writer.add(words, layers[:, a:b])
                    left_out -= 1
            first += size
    return left_out


@contextmanager
def _writing(path: Path) -> Iterator[Writer]:
    """A writer whose file appears only once it is whole."""
    half = path.with_name(f"{path.name}.part")
    try:
        with disk_errors(path):
            writer = (Hdf5Writer if path.suffix.lower() in HDF5 else JsonWriter)(half)
            try:
                yield writer
            finally:
                writer.close()
            half.replace(path)
    finally:
        half.unlink(missing_ok=True)
