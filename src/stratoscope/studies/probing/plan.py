"""What a probing run depends on: the models, the words every one of them can give, and their tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import Progress
from stratoscope.data.tagged import SPLITS, Tagged, read_tagged
from stratoscope.models.open.loading import ModelSpec, Survey
from stratoscope.models.read.memory import kept_in_file
from stratoscope.models.read.store import chosen_layers
from stratoscope.models.saved.source import survey_source
from stratoscope.models.text.rows import SUBWORDS, Rows, plan_rows
from stratoscope.probes.neurons import RANKINGS
from stratoscope.results.probing import SOLVERS
from stratoscope.studies.asked import Model, spec_of
from stratoscope.studies.compare.plan import named
from stratoscope.studies.probing.options import ProbeOptions


@dataclass(frozen=True)
class Plan:
    """Everything a probing run depends on."""

    models: tuple[tuple[ModelSpec, Survey], ...]
    corpus: Tagged
    rows: dict[str, Rows]
    """Words that every model can give and that have a tag, by split."""
    tags: dict[str, Tensor]
    notes: tuple[str, ...]
    options: ProbeOptions

    @property
    def inputs(self) -> dict[str, Any]:
        """Identity of the models and of the words with their tags."""
        return {
            "models": [[spec.label, surveyed.fingerprint, surveyed.dtype] for spec, surveyed in self.models],
            "corpus": self.corpus.fingerprint,
            "rows": {s: r.fingerprint for s, r in self.rows.items()},
        }

    def layers(self, surveyed: Survey) -> tuple[int, ...]:
        return chosen_layers(surveyed, self.options.layers)


def make_plan(
    models: Sequence[Model],
    corpus: str | Path | Tagged,
    property: str,
    options: ProbeOptions,
    progress: Progress,
) -> Plan:
    """Look at the models and the corpus, and refuse what cannot be probed."""
    for name, value, known in (
        ("solver", options.solver, SOLVERS),
        ("ranking", options.ranking, tuple(RANKINGS)),
        ("subword", options.subword, SUBWORDS),
    ):
        if value not in known:
            raise unknown_name(name, value, known)
    if options.share >= 0.5:
        raise StratoscopeError(f"expected a --share below 0.5, so that top and bottom differ, got {options.share:g}")
    specs = named([spec_of(m) for m in models])
    read = (
        corpus
        if isinstance(corpus, Tagged)
        else read_tagged(corpus, property, columns=options.columns, seed=options.seed)
    )
    read = read.sample(options.limit, options.seed)
    surveys = [survey_source(spec, progress=progress) for spec in specs]
    for surveyed in surveys:
        chosen_layers(surveyed, options.layers)
    rows, tags, notes = {}, {}, [note for surveyed in surveys for note in surveyed.notes]
    if read.property_name != property and not isinstance(corpus, Tagged):
        notes.append(f"the property '{property}' is the column {read.property_name} of {read.name}")
    for split in SPLITS:
        planned = plan_rows(read.splits[split], [s.encoder for s in surveys], "word")
        numbers = read.numbers(split, planned.sentence, planned.word)
        with_tag = numbers > -2
        unseen = int((numbers == -1).sum())
        remarks = {
            **planned.dropped,
            "words without a tag, which are context only": int((~with_tag).sum()),
        }
        notes += [f"{split}: left out: {n:,} {what}" for what, n in remarks.items() if n]
        have = "1 word has a tag" if unseen == 1 else f"{unseen:,} words have tags"
        notes += [f"{split}: {have} unseen in training, which counts as wrong"] if unseen else []
        rows[split] = replace(
            planned,
            sentence=kept_in_file(planned.sentence[with_tag].astype(np.int32)),
            word=kept_in_file(planned.word[with_tag].astype(np.int32)),
            fingerprint=f"{planned.fingerprint} {read.property_name}",
        )
        tags[split] = torch.from_numpy(kept_in_file(numbers[with_tag].astype(np.int16)))
        _check_enough(read, split, tags[split])
    if read.rare:
        few = ", ".join(f"{tag} ({n})" for tag, n in list(read.rare.items())[:5])
        notes.append(f"tags with few training words: {few}{' ...' if len(read.rare) > 5 else ''}")
    return Plan(tuple(zip(specs, surveys, strict=True)), read, rows, tags, tuple(notes), options)


def _check_enough(read: Tagged, split: str, tags: Tensor) -> None:
    """Words that have a tag may be just those that a model cannot give."""
    left = [read.tags[k] for k in np.unique(tags.numpy()).tolist() if k >= 0]
    if len(left) < (2 if split == "train" else 1):
        raise StratoscopeError(
            f"{read.name}: expected words with {'at least two tags' if split == 'train' else 'a tag'} of"
            f" '{read.property_name}' in {split} that every model can read, got"
            f" {', '.join(map(repr, left)) + ' only' if left else 'none'}; give other words or models"
        )
