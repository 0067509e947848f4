"""Files of saved activations: HDF5 as contextual-repr-analysis and NeuroX write it, and NeuroX JSON.

A sentence is read when it is asked for: of the file only the index of its sentences is held in memory.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home
from stratoscope.data.extras import optional_module
from stratoscope.data.tagged import SPLITS

HDF5, JSON = (".hdf5", ".h5"), (".json",)
SUFFIXES = (*HDF5, *JSON)
INDEX = "sentence_to_index"
Floats = npt.NDArray[np.floating[Any]]


def is_saved(source: str | Path) -> bool:
    """Whether a source is named as a file of activations is."""
    path = at_home(source)
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


class SavedFile(ABC):
    """Vectors of words, found by their sentence."""

    path: Path
    index: Mapping[str, int]
    """Number of each sentence (its words joined by blanks); of one that repeats, of its first occurrence."""
    repeats: int
    """Sentences of the file that came before in it."""

    @abstractmethod
    def read(self, k: int) -> Floats:
        """Vectors (layers, words, features) of sentence k."""

    def shape(self, k: int) -> tuple[int, int, int]:
        """Layers, words and features of sentence k."""
        layers, words, width = self.read(k).shape
        return layers, words, width

    def damaged(self, why: str) -> StratoscopeError:
        """What is not as the format says."""
        return StratoscopeError(f"{self.path} does not hold activations as expected: {why}; save them again")


class Hdf5File(SavedFile):
    """One data set per sentence, called by its number: layers × words × features, or words × features of one layer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        h5py = optional_module("h5py", extra="hdf5", wanted_for=f"reading '{path}'")
        try:
            self._file = h5py.File(path, "r")
        except OSError as e:
            raise StratoscopeError(f"{path} cannot be read as HDF5 ({e})", "check the file") from e
        if INDEX not in self._file:
            raise self.damaged(f"the data set '{INDEX}', which says where each sentence is, is missing")
        try:
            index = json.loads(self._file[INDEX][0])
            self.index = {sentence: int(k) for sentence, k in index.items()}
        except (ValueError, TypeError, AttributeError) as e:
            raise self.damaged(f"'{INDEX}' is no JSON object of numbers ({e})") from e
        again = re.compile(r"(.*) \(Occurrence \d+\)", re.DOTALL)
        self.repeats = sum((m := again.fullmatch(s)) is not None and m[1] in self.index for s in self.index)

    def shape(self, k: int) -> tuple[int, int, int]:
        layers, words, width = (1, *self._dataset(k).shape)[-3:]
        return layers, words, width

    def read(self, k: int) -> Floats:
        vectors: Floats = self._dataset(k)[()]
        return vectors.reshape(self.shape(k))

    def _dataset(self, k: int) -> Any:
        dataset = self._file.get(str(k))
        if dataset is None or len(dataset.shape) not in (2, 3):
            got = "missing" if dataset is None else f"of shape {dataset.shape}"
            raise self.damaged(f"data set '{k}' is {got}, not layers x words x features")
        return dataset


class JsonFile(SavedFile):
    """One object per line: `linex_index`, and `features`, a list of {token, layers: list of {index, values}}."""

    def __init__(self, path: Path) -> None:
        self.path, self.repeats = path, 0
        self._offsets, lines_of = array("q"), dict[str, int]()
        with path.open("rb") as lines:
            while line := lines.readline():
                if not line.strip():
                    continue
                sentence = " ".join(self._parsed(line, lambda of: [str(f["token"]) for f in of["features"]]))
                self.repeats += sentence in lines_of
                lines_of.setdefault(sentence, len(self._offsets))
                self._offsets.append(lines.tell() - len(line))
        self.index = lines_of

    def read(self, k: int) -> Floats:
        with self.path.open("rb") as lines:
            lines.seek(self._offsets[k])
            vectors: Floats = self._parsed(lines.readline(), _vectors)
        return vectors

    def _parsed(self, line: bytes, take: Any) -> Any:
        try:
            return take(json.loads(line))
        except (ValueError, KeyError, TypeError) as e:
            raise self.damaged(f"a line is no object with features of tokens ({type(e).__name__}: {e})") from e


def _vectors(line: Any) -> Floats:
    by_word = [
        [layer["values"] for layer in sorted(f["layers"], key=lambda layer: layer["index"])] for f in line["features"]
    ]
    return np.array(by_word, dtype=np.float32).transpose(1, 0, 2)


class SplitFile(SavedFile):
    """Files of one layer each, or of some, after one another."""

    def __init__(self, parts: Sequence[SavedFile]) -> None:
        first = parts[0]
        self.path, self.index, self.repeats, self._parts = first.path, first.index, first.repeats, parts
        if other := next((p for p in parts if p.index != first.index), None):
            raise StratoscopeError(f"{first.path} and {other.path} hold other sentences; save all layers again")

    def shape(self, k: int) -> tuple[int, int, int]:
        shapes = [part.shape(k) for part in self._parts]
        return sum(s[0] for s in shapes), shapes[0][1], shapes[0][2]

    def read(self, k: int) -> Floats:
        return np.concatenate([part.read(k) for part in self._parts])


class JoinedFile(SavedFile):
    """Files of different sentences, such as those of the splits of a corpus, as one."""

    def __init__(self, parts: Sequence[SavedFile]) -> None:
        self.path, self.repeats = parts[0].path, sum(part.repeats for part in parts)
        index, self._parts, self._starts = dict[str, int](), parts, list[int]()
        for part in parts:
            start = 1 + self._starts[-1] + max(parts[len(self._starts) - 1].index.values()) if self._starts else 0
            self._starts.append(start)
            self.repeats += sum(sentence in index for sentence in part.index)
            index = {sentence: start + k for sentence, k in part.index.items()} | index
        self.index = index

    def _place(self, k: int) -> tuple[SavedFile, int]:
        which = bisect_right(self._starts, k) - 1
        return self._parts[which], k - self._starts[which]

    def shape(self, k: int) -> tuple[int, int, int]:
        part, own = self._place(k)
        return part.shape(own)

    def read(self, k: int) -> Floats:
        part, own = self._place(k)
        return part.read(own)


def split_sources(source: str) -> list[str]:
    """The files of the splits of a corpus (`name-train.hdf5`, ... for `name.hdf5`) where there are any, else itself."""
    path = Path(source).expanduser()
    names = [f"{path.stem}-{split}" for split in SPLITS]
    there = [
        n
        for n in names
        if any(path.parent.glob(f"{escape(n)}{path.suffix}"))
        or any(path.parent.glob(f"{escape(n)}-layer*{path.suffix}"))
    ]
    return [source] if path.exists() or not there else [str(path.with_name(n + path.suffix)) for n in there]


def paths_of(source: str) -> list[Path]:
    """The file, or those it is split into by layer (`name-layer3.hdf5` for `name.hdf5`), lowest layer first."""
    path = at_home(source)
    if path.is_file():
        return [path]
    layer = re.compile(re.escape(path.stem) + r"-layer(\d+)" + re.escape(path.suffix))
    numbered = {int(m[1]): p for p in path.parent.glob("*") if (m := layer.fullmatch(p.name))}
    if not numbered:
        raise StratoscopeError(
            f"no activations at '{source}'; expected an HDF5 or NeuroX JSON file, or files split by layer"
            f" ({path.stem}-layer0{path.suffix}, ...) or by corpus ({path.stem}-train{path.suffix}, ...)"
        )
    return [numbered[k] for k in sorted(numbered)]


def open_files(paths: Iterable[Path]) -> SavedFile:
    """Activations of all files, one layer after the other."""
    parts = [(Hdf5File if p.suffix.lower() in HDF5 else JsonFile)(p) for p in paths]
    opened = parts[0] if len(parts) == 1 else SplitFile(parts)
    if not opened.index:
        raise StratoscopeError(f"{opened.path} holds no sentence; save it again")
    return opened
