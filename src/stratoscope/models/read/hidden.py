"""Rows of a unit (words, cls, means, tokens) at every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import HIDDEN, Batch, Output, Reader, read
from stratoscope.models.text.encoder import Encoded, IntArray, words_of
from stratoscope.models.text.rows import SUBWORDS, Groups, Rows, check_unit, encode_for, group_tokens, keys


class RowReader(Reader):
    """Gathers the rows of one unit; `layers` then holds a matrix (rows, width) of each chosen layer, float32."""

    needs = frozenset({HIDDEN})

    def __init__(
        self,
        encoded: Encoded,
        corpus: Corpus,
        rows: Rows,
        *,
        subword: str = "last",
        layers: Sequence[int] | None = None,
        room: Callable[[int, int], Tensor] = torch.empty,
    ) -> None:
        """`encoded` are the tokens of `corpus`, which `rows` were planned for; all layers are read when None.

        `room` gives the matrix that the rows of a layer are put into.
        """
        check_unit(rows.unit)
        if subword not in SUBWORDS:
            raise unknown_name("subword", subword, SUBWORDS)
        if rows.corpus != corpus.fingerprint:
            raise StratoscopeError(
                f"the rows were planned for corpus {rows.corpus[:8]}, but '{encoded.encoder.name}' reads corpus"
                f" {corpus.fingerprint[:8]}; plan the rows again"
            )
        self.encoded, self.corpus, self.rows, self.chosen = encoded, corpus, rows, layers
        self._room = room
        self.texts: IntArray = np.unique(rows.sentence)
        """Texts that hold a row."""
        longest, window = int(self.texts[encoded.lengths[self.texts].argmax()]), encoded.encoder.window
        if window is not None and encoded.lengths[longest] > window:
            raise StratoscopeError(
                f"sentence {longest} has {encoded.lengths[longest]} tokens, '{encoded.encoder.name}' reads {window};"
                " plan the rows with every model that is compared"
            )
        self._groups = _narrow(group_tokens(encoded, rows.unit), subword if rows.unit == "word" else "mean")
        self._group = _find(self._groups, rows, encoded.encoder.name)
        self.layers: list[Tensor] = []

    def update(self, batch: Batch, output: Output) -> None:
        first, last = (np.searchsorted(self.rows.sentence, batch.texts, side=side) for side in ("left", "right"))
        members = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
        if not len(members):
            return
        places, bags = self._places(batch, self._group[members])
        where, device = torch.from_numpy(members), output.hidden[0].device
        places, bags = places.to(device), None if bags is None else bags.to(device)
        chosen = range(len(output.hidden)) if self.chosen is None else self.chosen
        if not self.layers:
            self.layers = [self._room(len(self.rows), output.hidden[0].shape[-1]) for _ in chosen]
        for kept, k in zip(self.layers, chosen, strict=True):
            flat = output.hidden[k].flatten(0, 1)
            if bags is None:
                vectors = flat.index_select(0, places)
            else:
                vectors = nn.functional.embedding_bag(places, flat.float(), bags, mode="mean")
            vectors = vectors.to("cpu", torch.float32)
            self._check_finite(vectors, members, k)
            kept[where] = vectors

    def _places(self, batch: Batch, group: IntArray) -> tuple[Tensor, Tensor | None]:
        """Positions on the flattened (batch · sequence) axis, and where each row's begin when rows have several."""
        groups, encoded = self._groups, self.encoded
        starts, sizes = groups.starts[group], groups.starts[group + 1] - groups.starts[group]
        offsets = np.cumsum(sizes) - sizes
        tokens = groups.tokens[np.repeat(starts - offsets, sizes) + np.arange(int(sizes.sum()))]
        order = np.argsort(batch.texts)
        slot = order[np.searchsorted(batch.texts, encoded.sentence[tokens], sorter=order)]
        longest = batch.inputs["input_ids"].shape[1]
        flat = slot * longest + batch.shift[slot] + tokens - encoded.starts[batch.texts[slot]]
        single = len(tokens) == len(group)
        return torch.from_numpy(flat), None if single else torch.from_numpy(offsets)

    def _check_finite(self, found: Tensor, members: IntArray, layer: int) -> None:
        """A float64 sum of float32 values is finite exactly when all of them are."""
        if bool(found.sum(dtype=torch.float64).isfinite()):
            return
        r = int(members[int((~found.isfinite()).any(dim=1).nonzero()[0])])
        rows, k = self.rows, int(self.rows.sentence[r])
        what = f"unit {rows.unit}"
        if rows.unit == "token":
            what = f"token {rows.word[r]}"
        elif rows.unit == "word":
            what = f"word {rows.word[r]} ('{words_of(self.corpus.sentences[k])[rows.word[r]]}')"
        raise StratoscopeError(
            f"'{self.encoded.encoder.name}' gives a value that is not finite at layer {layer}, sentence"
            f" {self.corpus.positions[k]}, {what}",
            "check its weights",
            "load it with --dtype float32",
        )


def read_rows(
    model: OpenedModel,
    corpus: Corpus,
    rows: Rows,
    *,
    subword: str = "last",
    layers: Sequence[int] | None = None,
    batch_tokens: int | None = None,
) -> list[Tensor]:
    """The planned rows of every layer, or of the chosen ones, in memory: matrices (rows, width)."""
    encoded = encode_for(model.encoder, corpus.sentences, [rows.unit], rows.truncate)
    reader = RowReader(encoded, corpus, rows, subword=subword, layers=layers)
    read(model, encoded, [reader], examples=reader.texts, batch_tokens=batch_tokens)
    return reader.layers


def _narrow(groups: Groups, subword: str) -> Groups:
    """Keep of each group its first or last token, or all of them."""
    if subword == "mean":
        return groups
    tokens = groups.tokens[groups.starts[1:] - 1 if subword == "last" else groups.starts[:-1]]
    return Groups(groups.sentence, groups.word, np.arange(len(tokens) + 1), tokens)


def _find(groups: Groups, rows: Rows, name: str) -> IntArray:
    """The group of each row."""
    have, needed = keys(groups.sentence, groups.word), keys(rows.sentence, rows.word)
    places = np.minimum(np.searchsorted(have, needed), max(len(have) - 1, 0))
    missing = np.flatnonzero(have[places] != needed) if len(have) else np.arange(len(needed))
    if len(missing):
        r = missing[0]
        raise StratoscopeError(
            f"'{name}' has no word {rows.word[r]} in sentence {rows.sentence[r]} ({len(missing)} rows are missing);"
            " plan the rows with every model that is compared"
        )
    return places
