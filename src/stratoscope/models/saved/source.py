"""Saved activations in place of a checkpoint: what looks states up in a file is a module like any other.

A word is one token, and its id says in which sentence of the file it is; the module answers with the states of that
sentence. So rows are planned, read in batches and stored by the code that reads Transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import file_sha256
from stratoscope.core.model import SAVED
from stratoscope.core.progress import Progress
from stratoscope.data.corpus import Sentence
from stratoscope.models.families import Family
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, open_model, survey
from stratoscope.models.saved.files import JoinedFile, SavedFile, is_saved, open_files, paths_of, split_sources
from stratoscope.models.text.encoder import Encoded, Encoder, words_of

FAMILY = Family(
    name=SAVED,
    blocks="",
    description="Activations saved elsewhere",
    reference="",
)
LONGEST_QUOTE = 60
"""Letters of a sentence in an error message."""


@dataclass(frozen=True)
class SavedEncoder(Encoder):
    """Finds sentences in a file of activations; the words of a corpus must be those of the file."""

    file: SavedFile
    shape: tuple[int, int]
    """Layers and features."""

    @property
    def pad_id(self) -> int:
        return 0

    def encode(self, sentences: Sequence[Sentence], *, by_word: bool = False, truncate: int | None = None) -> Encoded:
        """One token per word, whose id is the number of the sentence in the file; anything else is refused."""
        if not by_word or truncate is not None:
            what = "truncated texts" if by_word else "other units"
            raise StratoscopeError(f"'{self.name}' holds vectors of words, not of {what}; use unit 'word'")
        where = [self._find(s) if words_of(s) else 0 for s in sentences]
        lengths = np.array([len(words_of(s)) for s in sentences], dtype=np.int64)
        total = int(lengths.sum())
        starts = np.append(0, np.cumsum(lengths))
        return Encoded(
            encoder=self,
            starts=starts,
            ids=np.repeat(np.array(where, dtype=np.int32), lengths),
            segments=np.zeros(total, dtype=np.int32),
            real=np.ones(total, dtype=np.bool_),
            word=(np.arange(total) - np.repeat(starts[:-1], lengths)).astype(np.int32),
            truncated=np.zeros(len(lengths), dtype=np.bool_),
        )

    def _find(self, sentence: Sentence) -> int:
        words = words_of(sentence)
        text = " ".join(words)
        shown = text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."
        if sentence.pair is not None:
            raise StratoscopeError(f"'{self.name}' holds single sentences, got a pair of texts ('{shown}')")
        if text not in self.file.index:
            raise StratoscopeError(
                f"'{self.name}' holds {len(self.file.index)} sentences, but not '{shown}';"
                " compare it on the text it was saved from"
            )
        k = self.file.index[text]
        layers, count, width = self.file.shape(k)
        if count != len(words):
            raise StratoscopeError(
                f"'{self.name}' holds {count} vectors for a sentence of {len(words)} words ('{shown}'); save one vector"
                " per word, without special tokens"
            )
        if (layers, width) != self.shape:
            raise self.file.damaged(
                f"'{shown}' has {layers} layers of {width} features, other sentences {self.shape[0]} of {self.shape[1]}"
            )
        return k


class SavedStates(nn.Module):
    """States of the words of sentences, looked up; `input_ids` are what `SavedEncoder` gives."""

    def __init__(self, file: SavedFile, shape: tuple[int, int]) -> None:
        super().__init__()
        self.file, self.layers, self.width = file, *shape
        config = SimpleNamespace(model_type=SAVED, num_hidden_layers=self.layers - 1, hidden_size=self.width)
        config.get_text_config = lambda: config
        self.config: Any = config
        self.on = nn.Parameter(torch.zeros(1), requires_grad=False)
        """Says that states are float32 on the CPU."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = True) -> Any:
        states = torch.zeros(self.layers, *input_ids.shape, self.width)
        for t, words in enumerate(attention_mask.sum(1).tolist()):
            states[:, t, :words] = torch.from_numpy(self.file.read(int(input_ids[t, 0])).astype(np.float32))
        return SimpleNamespace(hidden_states=tuple(states), last_hidden_state=states[-1])


def survey_source(spec: ModelSpec, *, progress: Progress | None = None) -> Survey:
    """Look at a checkpoint or at saved activations, whichever `spec` names, without reading either."""
    if not is_saved(spec.source):
        return survey(spec, progress=progress)
    if spec.random_init:
        raise StratoscopeError(f"'{spec.source}' holds activations and has no weights to draw; give a checkpoint first")
    groups = [paths_of(source) for source in split_sources(spec.source)]
    parts = [open_files(paths) for paths in groups]
    file = parts[0] if len(parts) == 1 else JoinedFile(parts)
    first = next(iter(file.index.values()))
    layers, _, width = file.shape(first)
    notes = [f"layer 0 of {spec.label} is the first layer that was saved"]
    if file.repeats:
        notes.append(f"{file.repeats} sentences of {spec.label} repeat: each is read where it came first")
    seal = hashlib.sha256("".join(file_sha256(p) for paths in groups for p in paths).encode())
    stored = str(file.read(first).dtype)
    return Survey(
        spec=spec,
        encoder=SavedEncoder(spec.label, None, FAMILY, None, 0, False, file, (layers, width)),
        layers=layers,
        width=width,
        fingerprint=f"sha256:{seal.hexdigest()}",
        dtype=stored if stored == "float16" else "float32",
        device="cpu",
        notes=tuple(notes),
    )


def open_source(spec: ModelSpec, *, surveyed: Survey, progress: Progress | None = None) -> OpenedModel:
    """Open what was looked at: load the weights, or get ready to look states up."""
    if not isinstance(surveyed.encoder, SavedEncoder):
        return open_model(spec, surveyed=surveyed, progress=progress)
    return OpenedModel(surveyed, SavedStates(surveyed.encoder.file, surveyed.encoder.shape).eval())
