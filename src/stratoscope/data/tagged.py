"""Tagged corpora: words with the tags of one property, in training, development and test sentences."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import at_home
from stratoscope.data.corpus import Corpus, Sentence, gather
from stratoscope.data.formats.conll import CONLLU_PAIRS, CONLLU_TAGS, read_columns, read_conllu
from stratoscope.data.formats.textfile import numbered_lines

SPLITS = ("train", "dev", "test")
NAMES = {
    "train": ("train", "training"),
    "dev": ("dev", "devel", "development", "val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Whole words, between separators or digits, of which the name of each split's file has one."""
SHARES = (0.8, 0.1, 0.1)
"""Shares of the sentences in the splits of a corpus that has none, drawn with the seed."""
LAYOUTS = {2: "word tag", 3: "word pos chunk", 4: "word pos chunk ner", 7: "word tok sym sem cat sns rol"}
"""Columns by their number where `--columns` says nothing: CoNLL-2000, CoNLL-2003, the Parallel Meaning Bank."""
EXTENSIONS = (".conllu", ".jsonl", ".ndjson", ".conll", ".cols", ".txt")
POS = "pos"
"""Part of speech as the corpus itself tags it: in CoNLL-U the column xpos, which for English is Penn Treebank's."""
NONE = "_"
"""What stands for no tag, as an empty one does: such words are read as context only."""
RARE = 5
"""Fewer training words do not teach a tag."""
MOST_UNSEEN = 0.01
"""Share of development or test words whose tags training does not have, above which the splits do not fit together."""
TOGETHER = 4096
"""Words looked at together: a list of numbers takes several times the memory of an array."""
MOST_TAGS = 2**15 - 1
"""Tags are numbered in 16 bits."""
MOST_NUMBERS = 10
"""Tags that are all numbers, and more than so many or not all whole, are a quantity."""


@dataclass(frozen=True)
class Tagged:
    """A property of words, in three splits."""

    name: str
    property_name: str
    splits: Mapping[str, Corpus]
    """Sentences with `tags[property]`, by the names in `SPLITS`."""
    tags: tuple[str, ...]
    """Those of training, sorted: a tag's number is its place."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    """Splits that had no file of their own: what was drawn for them."""

    @property
    def fingerprint(self) -> str:
        """Identity of the words and their tags."""
        return " ".join([self.property_name, *(self.splits[s].fingerprint for s in SPLITS)])

    def numbers(
        self, split: str, sentence: npt.NDArray[np.int64], word: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """The number of each word's tag; -1 for one that training does not have, -2 for none."""
        number = {tag: k for k, tag in enumerate(self.tags)} | {NONE: -2, "": -2}
        found = (number.get(tag, -1) for _, tag in self.at(split, sentence, word))
        return np.fromiter(found, dtype=np.int32, count=len(sentence))

    def at(self, split: str, sentence: npt.NDArray[np.int64], word: npt.NDArray[np.int64]) -> Iterator[tuple[str, str]]:
        """Each word with its tag."""
        held, last = self.splits[split].sentences, -1
        current: Sentence | None = None
        for first in range(0, len(sentence), TOGETHER):
            some = slice(first, first + TOGETHER)
            for s, w in zip(sentence[some].tolist(), word[some].tolist(), strict=True):
                if s != last or current is None:
                    current, last = held[s], s
                yield (current.words or ())[w], (current.tags or {})[self.property_name][w]

    @cached_property
    def counts(self) -> Mapping[str, Counter[str]]:
        """How often each split has each tag."""
        return {split: Counter(_tags(c, self.property_name)) for split, c in self.splits.items()}

    @property
    def rare(self) -> dict[str, int]:
        """Tags with few training words."""
        return {tag: n for tag in self.tags if (n := self.counts["train"][tag]) < RARE}

    def sample(self, limit: int | None, seed: int) -> Tagged:
        """At most so many sentences of each split; tags that training then lacks are no tags of it."""
        if limit is None:
            return self
        splits = {s: c.sample(limit, seed) for s, c in self.splits.items()}
        ways = "give a larger --limit", "give a larger --set limit=N"  # one of them where a protocol asks
        return replace(tagged(self.name, self.property_name, splits, *ways), drawn=self.drawn)


def read_tagged(source: str | Path, property: str, *, columns: str | None = None, seed: int = 0) -> Tagged:
    """Read a file, or a folder with train, dev and test files; missing splits are drawn from training with the seed.

    The property `pos` of CoNLL-U is its xpos.
    """
    path = at_home(source)
    if not path.exists():
        raise StratoscopeError(f"--corpus {source}: expected a file or folder, but it does not exist; check the path")
    files = _files(path) if path.is_dir() else {"train": path}
    if property == POS and files["train"].suffix.lower() == ".conllu":
        property = "xpos"
    splits = {split: read_tags(file, property, columns) for split, file in files.items()}
    drawn = {
        s: f"{share:.0%} of {files['train'].name}, drawn with seed {seed}"
        for s, share in zip(SPLITS, SHARES, strict=True)
        if s not in files
    }
    return replace(tagged(path.name, property, _completed(splits, seed)), drawn=drawn)


def tagged(name: str, property: str, splits: Mapping[str, Corpus], *ways: str) -> Tagged:
    """A tagged corpus whose splits fit together, or the reason why they do not, with `ways` to more sentences."""
    made = Tagged(name, property, dict(splits), ())
    counts = made.counts["train"]
    tags = tuple(sorted(set(counts) - {NONE, ""}))
    if not tags:
        raise StratoscopeError(f"{name}: expected words with the property '{property}' in training, got none")
    if len(tags) == 1:
        raise StratoscopeError(f"{name}: expected at least two tags of '{property}' in training, got '{tags[0]}' only")
    if len(tags) > MOST_TAGS:
        raise StratoscopeError(
            f"{name}: expected at most {MOST_TAGS:,} tags of '{property}', got {len(tags):,}; choose a property of"
            " classes"
        )
    numbers = [float(tag) for tag in tags if _is_number(tag)]
    if len(numbers) == len(tags) and (len(tags) > MOST_NUMBERS or any(not value.is_integer() for value in numbers)):
        raise StratoscopeError(
            f"{name}: expected tags, but '{property}' is numeric ({', '.join(tags[:3])} ...); choose a property of"
            " classes, or put the numbers into classes first"
        )
    for split in SPLITS[1:]:
        words = {t: n for t, n in made.counts[split].items() if t not in (NONE, "")}
        strange = {t: n for t, n in words.items() if t not in tags}
        if not words:
            raise StratoscopeError(f"{name}: expected words with the property '{property}' in {split}, got none")
        if sum(strange.values()) > MOST_UNSEEN * sum(words.values()):
            few = ", ".join(f"'{t}' ({n})" for t, n in sorted(strange.items(), key=lambda i: (-i[1], i[0]))[:3])
            raise StratoscopeError(
                f"{name}: expected the tags of {split} among those of training, got {sum(strange.values())} of"
                f" {sum(words.values())} words with tags unseen in training: {few}",
                *(ways or ("give more training sentences", "give one file, which is split with the seed")),
            )
    return replace(made, tags=tags)


def read_tags(path: Path, property: str, columns: str | None = None) -> Corpus:
    """The sentences of one file with the tags of one property."""
    suffix = path.suffix.lower()
    if suffix not in EXTENSIONS:
        raise StratoscopeError(
            f"{path}: expected a file ending in {', '.join(EXTENSIONS)}, got '{suffix or path.name}'"
        )
    if columns and suffix in (".conllu", ".jsonl", ".ndjson"):
        raise StratoscopeError(
            f"{path}: expected --columns for a file with one word a line in columns only; leave it out"
        )
    if suffix == ".conllu":
        column, _, feature = property.partition(":")
        if column not in CONLLU_TAGS or (feature and column not in CONLLU_PAIRS):
            raise unknown_name("property of CoNLL-U", property, (*CONLLU_TAGS, "feats:Number"))
        read = read_conllu(path, (property,))
        if feature and not any(set(_tags(read, property)) - {NONE}):
            keys = {
                pair.split("=")[0] for tag in _tags(read_conllu(path, (column,)), column) for pair in tag.split("|")
            }
            raise unknown_name(f"key in the column {column} of {path.name}", feature, sorted(keys - {NONE}))
        return read
    if suffix in (".jsonl", ".ndjson"):
        return _read_jsonl(path, property)
    names = (columns or _layout(path)).split()
    if property.isdecimal() and 2 <= int(property) <= len(names):
        names[int(property) - 1] = property
    if property not in names or property == "word":
        raise unknown_name(f"column of {path.name}", property, [n for n in names if n not in ("word", NONE)])
    kept = " ".join(n if n in ("word", property) else NONE for n in names)
    return read_columns(path, kept)


def _layout(path: Path) -> str:
    """Names of the columns of a file with one word a line, by their number."""
    for _, line in numbered_lines(path):
        if line.strip() and not line.startswith("#") and not line.startswith("-DOCSTART-"):
            width = len(line.split("\t")) if "\t" in line else len(line.split())
            if width in LAYOUTS:
                return LAYOUTS[width]
            raise StratoscopeError(
                f"{path}: expected --columns for a file of {width} columns; name them, for example"
                ' --columns "word pos chunk", with _ for those to ignore'
            )
    raise StratoscopeError(f"{path}: expected one word a line, got a corpus without words; give a file with data")


def _read_jsonl(path: Path, property: str) -> Corpus:
    sentences, positions = gather(enumerate(_json_sentences(path, property)))
    if not sentences:
        raise StratoscopeError(f"{path}: expected sentences with words, got a corpus without words")
    return Corpus(path.name, sentences, positions)


def _json_sentences(path: Path, property: str) -> Iterator[Sentence]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            raise StratoscopeError(f"{path}: line {number}: expected one JSON object a line, got: {e}") from e
        words = row.get("words") if isinstance(row, dict) else None
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise StratoscopeError(f"{path}: line {number}: expected a list of words under 'words'")
        tags = row.get(property)
        if not isinstance(tags, list):
            there = [k for k, v in row.items() if isinstance(v, list) and k != "words"]
            if property in row or not there:
                got = type(tags).__name__ if property in row else ", ".join(map(repr, row))
                raise StratoscopeError(
                    f"{path}: line {number}: expected a list of tags, one per word, under '{property}', got {got}"
                )
            raise unknown_name(f"list of tags on line {number} of {path.name}", property, there)
        if len(tags) != len(words):
            raise StratoscopeError(f"{path}: line {number}: expected {len(words)} tags, one per word, got {len(tags)}")
        strange = next((t for t in tags if isinstance(t, (list, dict))), None)
        if strange is not None:
            raise StratoscopeError(
                f"{path}: line {number}: expected a tag or null for every word under '{property}', got {strange!r:.40}"
            )
        if words:
            named = tuple(NONE if t is None else str(t) for t in tags)
            yield Sentence(" ".join(words), tuple(words), tags={property: named})


def _files(folder: Path) -> dict[str, Path]:
    """The file of each split in a folder; training at least."""
    inside = sorted(f for f in folder.iterdir() if f.is_file() and f.suffix.lower() in EXTENSIONS)
    named = {f: _splits_named(f) for f in inside}
    files: dict[str, Path] = {}
    for split in SPLITS:
        several = [f for f in inside if split in named[f]]
        if len(several) == 1 and len(named[several[0]]) > 1:
            raise StratoscopeError(
                f"--corpus {folder}: expected the sentences of one split in {several[0].name}, but its name says"
                f" {' and '.join(named[several[0]])}; rename it"
            )
        if len(several) > 1:
            raise StratoscopeError(
                f"--corpus {folder}: expected one file of {split} sentences, got {', '.join(f.name for f in several)};"
                " keep one in the folder"
            )
        files |= {split: several[0]} if several else {}
    if "train" not in files:
        raise StratoscopeError(
            f"--corpus {folder}: expected a file with the word 'train' in its name, as in ud-train.conllu"
            f" ({', '.join(EXTENSIONS)}), got"
            f" {', '.join(f.name for f in inside) or 'none'}"
        )
    return files


def _splits_named(file: Path) -> list[str]:
    """The splits that a file is of by the words of its name: `latest.txt` is of none."""
    words = set(re.split(r"[\W\d_]+", file.stem.lower()))
    return [s for s in SPLITS if words & set(NAMES[s])]


def _completed(splits: Mapping[str, Corpus], seed: int) -> dict[str, Corpus]:
    """All three splits; those that are missing are taken from training."""
    missing = [s for s in SPLITS if s not in splits]
    if not missing:
        return dict(splits)
    whole = splits["train"]
    parts = {split: share for split, share in zip(SPLITS, SHARES, strict=True) if split in missing}
    if len(whole) < len(parts) + 1:
        raise StratoscopeError(
            f"{whole.name}: expected at least {len(parts) + 1} sentences to split into {', '.join(SPLITS)}, got"
            f" {len(whole)}"
        )
    order = list(range(len(whole)))
    random.Random(seed).shuffle(order)
    done = dict(splits)
    for split, share in parts.items():
        n = max(1, round(share * len(whole)))
        done[split], order = _taken(whole, order[:n]), order[n:]
    done["train"] = _taken(whole, order)
    return done


def _taken(corpus: Corpus, which: list[int]) -> Corpus:
    which = sorted(which)
    sentences, _ = gather((k, corpus.sentences[i]) for k, i in enumerate(which))
    return replace(corpus, sentences=sentences, positions=tuple(corpus.positions[i] for i in which))


def _tags(corpus: Corpus, property: str) -> Iterator[str]:
    for sentence in corpus.sentences:
        yield from (sentence.tags or {}).get(property, ())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
