"""Layers of a model kept as safetensors shards: each text is read once, whatever is wanted of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import digest
from stratoscope.core.progress import advanced
from stratoscope.data.corpus import Corpus
from stratoscope.engine.base import Resources
from stratoscope.engine.local import hand_back
from stratoscope.models.families import base
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import OpenedModel, Survey
from stratoscope.models.read.head import HeadInputReader, LogitReader, check_head
from stratoscope.models.read.hidden import RowReader
from stratoscope.models.read.loop import Advance, Reader, read
from stratoscope.models.read.memory import Spool
from stratoscope.models.read.perplexity import PredictionReader, check_causal
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats
from stratoscope.models.text.rows import Rows, encode_for
from stratoscope.runs.run import Item, Run
from stratoscope.statistics.rows import CHUNK, StoredRows, halved

SHARD_BYTES, SHARD_PIECES = 2.5e8, 16
"""Memory that the rows of one shard may take, and the most pieces of text (of `CHUNK` rows) in it: what a killed run
loses at most."""
SHARD_TEXTS = 4096
"""Texts that are enough to sort by length: a shard that has them gets no more. On UD English dev 2,000 texts are padded
by 4 %, 700 by 10 % and 300 by 23 %; what is beyond only takes memory, most where a text gives one row."""
HALF = "float16"
EXACT = ".exact"
"""What the name of a piece ends with that is kept beside its float16 rounding: the first one."""
_EMPTY = Corpus("", (), ())
PART = "layers"
"""What the parts of a run are called."""


@dataclass(frozen=True)
class HeadInput:
    """Read also what a task head reads of every text, at every layer, and the head's own scores if there is one."""

    mean: bool = False
    """The head reads the mean over the tokens instead of one token."""
    scored: bool = True
    """The model comes with its head, which is held against the vectors."""


@dataclass(frozen=True)
class Reading:
    """What to read of the texts of a corpus, each of them once."""

    corpus: Corpus
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """Rows of the corpus by a name of the caller's choice, such as their unit."""
    subword: str = "last"
    layers: tuple[int, ...] | None = None
    """Layers whose rows are kept, all when None."""
    head: HeadInput | None = None
    losses: bool = False
    """Read also -log p of every text: the model comes with its language-model head."""
    choices: int = 1
    """Texts of one example."""
    truncate: int | None = None
    """Tokens kept of a longer text; None where no row is of a text that is too long."""
    batch_tokens: int | None = None
    store: str = "float32"
    """What rows are kept in: float32, or float16 with a scale."""

    def __post_init__(self) -> None:
        for name, rows in self.rows.items():
            if (rows.truncate, rows.corpus) != (self.truncate, self.corpus.fingerprint):
                raise StratoscopeError(
                    f"the rows '{name}' were planned for corpus {rows.corpus[:8]} truncated to {rows.truncate} tokens,"
                    f" but corpus {self.corpus.fingerprint[:8]} is read, truncated to {self.truncate}; plan them again"
                )

    def bare(self) -> Reading:
        """Without its texts and rows."""
        return replace(self, corpus=_EMPTY, rows={})

    def pieces(self) -> list[int]:
        """Bounds of runs of texts that give at most `CHUNK` rows of each kind; the same for every model."""
        texts = np.arange(len(self.corpus))
        kinds = [rows.sentence for rows in self.rows.values()] + ([texts] if self.head or not self.rows else [])
        return cut_texts(kinds, len(texts), self.choices)

    def dtype(self, model: Survey) -> str:
        """What the rows are computed in: a model with a task's head is opened in float32."""
        return "float32" if self.head is not None and self.head.scored else model.dtype

    def key(self, model: Survey, first: int, last: int) -> list[object]:
        """All that the shard of texts `first` to `last` depends on, as plain data."""
        layers = list(chosen_layers(model, self.layers))
        rows = {name: [r.fingerprint, r.unit] for name, r in sorted(self.rows.items())}
        head = None if self.head is None else [self.head.mean, self.head.scored, self.choices]
        made_by = [model.fingerprint, self.dtype(model), model.device]
        what = [rows, self.subword, layers, head, self.losses, self.store]
        return [*made_by, self.corpus.fingerprint, self.truncate, *what, first, last]


def cut_texts(kinds: Sequence[IntArray], texts: int, choices: int = 1, size: int | None = None) -> list[int]:
    """Bounds of texts: at most `size` rows of each kind (the text of each row, in order) between two of them.

    A text, or the texts of one example, that have more stay together.
    """
    size = size or CHUNK
    ends = [np.searchsorted(k, np.arange(choices, texts + 1, choices)) for k in kinds]  # rows up to each example
    bounds, e = [0], 0
    while e * choices < texts:
        fits = [np.searchsorted(end, (end[e - 1] if e else 0) + size, side="right") for end in ends]
        e = max(e + 1, int(min(fits)))
        bounds.append(e * choices)
    return bounds


@dataclass(frozen=True)
class Stored:
    """What was read of a corpus, as files that a worker anywhere can open."""

    rows: Mapping[str, StoredRows]
    """By the names of the reading; only the layers that were chosen."""
    paths: tuple[str, ...]
    """One file per shard, in the order of the texts."""

    def head_input(self, layer: int) -> Tensor:
        """(texts, width): what the head reads at one layer."""
        return self._joined(_head_name(layer))

    @property
    def scores(self) -> Floats:
        """(examples, k): the model's own output."""
        scores: Floats = self._joined("scores").numpy()
        return scores

    @property
    def losses(self) -> tuple[Floats, Floats]:
        """(texts,) -log p over the predicted tokens of each text, and how many those are."""
        return self._joined("losses").numpy(), self._joined("tokens").numpy()

    def _joined(self, name: str) -> Tensor:
        with ExitStack() as files:
            opened = [files.enter_context(safe_open(path, framework="pt")) for path in self.paths]
            return torch.cat([f.get_tensor(name) for f in opened])


@dataclass(frozen=True)
class Wanted:
    """What is to be read with one model."""

    open: Callable[[], OpenedModel]
    """A `Held` model is read with by workers elsewhere, each with a copy of its own; any other in this process only."""
    model: Survey
    reading: Reading

    @property
    def layers(self) -> tuple[int, ...]:
        return chosen_layers(self.model, self.reading.layers)

    def shards(self) -> list[Item]:
        """Bounds of the pieces of each shard, and what it depends on."""
        bounds = _shards(self.reading, self.model, len(self.layers))
        return [{"bounds": b, "key": self.reading.key(self.model, b[0], b[-1])} for b in bounds]

    def stored(self, shards: Sequence[Item], paths: Sequence[str]) -> Stored:
        """What the files of all shards hold."""
        eps = torch.finfo(getattr(torch, self.reading.dtype(self.model))).eps
        pieces = [(path, *p) for path, shard in zip(paths, shards, strict=True) for p in pairwise(shard["bounds"])]
        rows = {name: _stored_rows(name, r, pieces, self.layers, eps) for name, r in self.reading.rows.items()}
        if self.reading.store == HALF:
            rows = {name: _with_exact(stored) for name, stored in rows.items()}
        return Stored(rows, tuple(paths))


def store_layers(open: Callable[[], OpenedModel], model: Survey, reading: Reading, run: Run) -> Stored:
    """Read and keep what is wanted of every text; the model is opened only if a shard is missing or damaged."""
    return store_all([Wanted(open, model, reading)], run)[0]


def store_all(wanted: Sequence[Wanted], run: Run) -> list[Stored]:
    """As `store_layers` with several models: workers for whom a model has no shard left go on to the next."""
    shards = [w.shards() for w in wanted]
    paths: dict[str, str] = {}
    for travels in (True, False):
        some = [k for k, w in enumerate(wanted) if isinstance(w.open, Held) == travels]
        by_key = {digest(shard["key"]): (k, shard) for k in some for shard in shards[k]}  # a model may come twice
        labels = list(dict.fromkeys(wanted[k].model.encoder.name for k in some))
        held = [open.resources for k in some if isinstance(open := wanted[k].open, Held)]
        kept = run.map_files(
            read_texts,
            [shard for _, shard in by_key.values()],
            name=PART,
            key=[],
            label=f"reading with {labels[0] if len(labels) == 1 else f'{len(labels)} models'}",
            shared={k: _Reads(wanted[k].open, wanted[k].reading.bare(), wanted[k].layers) for k in some},
            weights=[(s["bounds"][-1] - s["bounds"][0]) // wanted[k].reading.choices for k, s in by_key.values()],
            resources=max(held, key=lambda r: (r.gpus, r.memory)) if held else Resources(here=True),
            given=partial(_given, wanted, {key: k for key, (k, _) in by_key.items()}),
        )
        paths |= {key: str(path) for key, path in zip(by_key, kept, strict=True)}
    return [w.stored(s, [paths[digest(shard["key"])] for shard in s]) for w, s in zip(wanted, shards, strict=True)]


def _given(wanted: Sequence[Wanted], of: Mapping[str, int], shard: Item) -> Item:
    k = of[digest(shard["key"])]
    return {"model": k, "texts": _texts(wanted[k].reading, shard["bounds"])}


@dataclass(frozen=True)
class _Reads:
    """What all shards of a reading share."""

    open: Callable[[], OpenedModel]
    reading: Reading
    """Without its texts and rows, which come with each shard."""
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Texts:
    """The texts of one shard, and the rows of them that are wanted."""

    bounds: tuple[int, ...]
    """Of its pieces, in the whole corpus."""
    corpus: Corpus
    rows: Mapping[str, Rows]
    """The sentences counted from the first text of the shard."""


def _texts(reading: Reading, bounds: Sequence[int]) -> Texts:
    first, last = bounds[0], bounds[-1]
    corpus = reading.corpus.slice(first, last).held()
    kinds = {}
    for name, rows in reading.rows.items():
        a, b = np.searchsorted(rows.sentence, np.array([first, last], rows.sentence.dtype)).tolist()
        sentence, word = rows.sentence[a:b] - first, rows.word[a:b]
        kinds[name] = Rows(rows.fingerprint, corpus.fingerprint, rows.unit, sentence, word, {})
    return Texts(tuple(bounds), corpus, kinds)


def read_texts(shared: Mapping[int, _Reads], item: Item) -> dict[str, Tensor]:
    """One shard, as work of any engine."""
    reads = shared[item["model"]]
    return read_shard(reads.open(), reads.reading, item["texts"], reads.layers, advance=advanced)


def read_shard(
    model: OpenedModel, reading: Reading, texts: Texts, layers: Sequence[int], *, advance: Advance
) -> dict[str, Tensor]:
    """Everything wanted of the texts of a shard, cut at the bounds of its pieces.

    `advance` counts all examples, those without a row too.
    """
    bounds, corpus, c = texts.bounds, texts.corpus, reading.choices
    first, spool = bounds[0], Spool()
    encoded = encode_for(model.encoder, corpus.sentences, [r.unit for r in texts.rows.values()], reading.truncate)
    kinds = {
        name: RowReader(encoded, corpus, rows, subword=reading.subword, layers=layers, room=spool.room)
        for name, rows in texts.rows.items()
        if len(rows.sentence)
    }
    readers: list[Reader] = list(kinds.values())
    examples = np.unique(np.concatenate([r.texts for r in kinds.values()]) // c) if kinds else np.empty(0, np.int64)
    if reading.head is not None:
        examples = np.arange(len(corpus) // c)
        vectors = HeadInputReader(model, len(examples), choices=c, mean=reading.head.mean)
        scores = LogitReader(len(examples)) if reading.head.scored else None
        if scores is not None and base(model.module) is model.module:
            raise StratoscopeError(f"'{model.name}' has no task head; expected a sequence-classification checkpoint")
        readers += [vectors] if scores is None else [vectors, scores]
    if reading.losses:
        examples = np.arange(len(corpus))
        check_causal(model, encoded, int(encoded.lengths.argmax()))
        said = PredictionReader(model, len(examples), int(encoded.lengths.max()))
        readers.append(said)
    advance(len(corpus) // c - len(examples))

    def read_batch(n: int) -> None:
        hand_back()
        advance(n)

    if len(examples):
        tokens = reading.batch_tokens
        read(model, encoded, readers, examples=examples, choices=c, batch_tokens=tokens, advance=read_batch)
    hand_back()
    tensors: dict[str, Tensor] = {}
    for name, reader in kinds.items():
        places = np.searchsorted(reader.rows.sentence, np.array(bounds) - first).tolist()
        for layer in layers:
            pieces = spool.cut(reader.layers.pop(0), places)  # freed once it is cut
            for start, piece in zip(bounds, pieces, strict=False):
                place = _row_name(name, layer, start)
                if len(piece) and reading.store == HALF:
                    tensors |= halved(place, piece) | ({place + EXACT: piece} if start == 0 else {})
                elif len(piece):
                    tensors[place] = piece
    if reading.losses:
        tensors |= {"losses": torch.from_numpy(said.found.losses), "tokens": torch.from_numpy(encoded.lengths - 1.0)}
    if reading.head is not None:
        tensors |= {_head_name(k): x for k, x in enumerate(vectors.layers)}
        if scores is not None:
            check_head(model, vectors.layers[-1], scores.scores, choices=c)
            tensors["scores"] = scores.scores
    return tensors


def together(stored: Sequence[StoredRows]) -> StoredRows:
    """The layers of several models on the same rows, one after the other."""
    return StoredRows(
        stored[0].sizes,
        tuple(layer for s in stored for layer in s.files),
        tuple(eps for s in stored for eps in s.precision),
        tuple(file for s in stored for file in s.exact),
    )


def chosen_layers(model: Survey, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    """The layers asked for, checked against those the model has."""
    for k in layers or ():
        if not 0 <= k < model.layers:
            raise StratoscopeError(
                f"'{model.encoder.name}' has no layer {k}; its layers are 0-{model.layers - 1} (0 = embeddings)"
            )
    return tuple(range(model.layers)) if layers is None else layers


def _shards(reading: Reading, model: Survey, layers: int) -> list[list[int]]:
    """Bounds of the pieces of each shard: as many as give it enough texts, its memory holds them, and at least one."""
    bounds = reading.pieces()
    kinds = len(reading.rows) * layers + (model.layers if reading.head is not None else 0)
    most = min(SHARD_PIECES, max(1, int(SHARD_BYTES / (kinds * model.width * 4 * CHUNK))))
    shards, start = [], 0
    while start < len(bounds) - 1:
        enough = int(np.searchsorted(bounds, bounds[start] + SHARD_TEXTS))
        stop = min(max(enough, start + 1), start + most, len(bounds) - 1)
        shards.append(bounds[start : stop + 1])
        start = stop
    return shards


def _stored_rows(
    name: str, rows: Rows, pieces: Sequence[tuple[str, int, int]], layers: Sequence[int], eps: float
) -> StoredRows:
    """The rows of the texts between the bounds of each piece, which is in this file."""
    ends = np.searchsorted(
        rows.sentence, np.array([bounds for _, *bounds in pieces], rows.sentence.dtype).reshape(-1, 2)
    )
    sizes = np.diff(ends)[:, 0].tolist()
    kept = [(path, start) for (path, start, _), size in zip(pieces, sizes, strict=True) if size]
    return StoredRows(
        tuple(size for size in sizes if size),
        tuple(tuple((path, _row_name(name, layer, start)) for path, start in kept) for layer in layers),
        (eps,) * len(layers),
    )


def _with_exact(stored: StoredRows) -> StoredRows:
    first = [files[0] for files in stored.files if files]
    return replace(stored, exact=tuple((path, name + EXACT) for path, name in first))


def _row_name(name: str, layer: int, start: int) -> str:
    return f"{name}.layer{layer}.text{start}"


def _head_name(layer: int) -> str:
    return f"head.layer{layer}"
