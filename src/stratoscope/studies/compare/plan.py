"""What a comparison will do: models, rows and measures, all known and checked before anything is computed."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from stratoscope.core.codekey import code_key, versions
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.core.result import Layer, ModelInfo
from stratoscope.core.runfolder import digest
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import read_corpus
from stratoscope.measures.table import Request, requests
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.loading import ModelSpec, Survey, choose_device, survey
from stratoscope.models.read.store import chosen_layers
from stratoscope.models.text.rows import Rows, plan_rows
from stratoscope.studies.compare.options import Options, check

FEWEST_ROWS = 4
"""Unbiased HSIC needs four rows."""


@dataclass(frozen=True)
class Plan:
    """Everything a comparison depends on."""

    specs: tuple[ModelSpec, ...]
    surveys: tuple[Survey, ...]
    corpus: Corpus
    rows: Rows
    wanted: tuple[Request, ...]
    notes: tuple[str, ...]
    """What the reader of the result must know already."""
    options: Options

    @property
    def models(self) -> list[tuple[ModelSpec, Survey]]:
        """Each model as asked for and as found."""
        return list(zip(self.specs, self.surveys, strict=True))

    @cached_property
    def layers(self) -> tuple[tuple[Layer, Survey], ...]:
        """Every layer compared, in the order of the axes, with its model."""
        return tuple(
            (Layer(spec.label, k), seen) for spec, seen in self.models for k in chosen_layers(seen, self.options.layers)
        )

    @cached_property
    def request(self) -> str:
        """Digest of what was asked for; the code that answers is not part of it (see `code_key`)."""
        options = self.options
        return digest(
            {
                "models": [[spec.label, seen.fingerprint, seen.dtype] for spec, seen in self.models],
                "rows": self.rows.fingerprint,
                "measures": [r.name for r in self.wanted],
                "subword": options.subword,
                "layers": options.layers,
                "seed": options.seed,
                "bootstrap": options.bootstrap,
                "standardise": options.standardise,
            },
            length=64,
        )

    @property
    def devices(self) -> dict[str, str]:
        """Where each model runs."""
        return {spec.label: str(choose_device(spec.device)) for spec in self.specs}

    @property
    def key(self) -> str:
        """Digest of all that a stored number depends on; names the parts."""
        return digest([self.request, self.devices, code_key()], length=64)

    @property
    def model_infos(self) -> tuple[ModelInfo, ...]:
        """The models as the result records them; a random initialisation is a control."""
        trained = {spec.source: spec.label for spec in self.specs if not spec.random_init}
        return tuple(
            ModelInfo(
                spec.label,
                spec.source,
                seen.family.name,
                seen.layers,
                seen.width,
                seen.fingerprint,
                role="control" if spec.random_init else "model",
                base=trained.get(spec.source) if spec.random_init else None,
            )
            for spec, seen in self.models
        )

    @property
    def data(self) -> dict[str, Any]:
        """The text as the result records it."""
        options = self.options
        return {
            "name": self.corpus.name,
            "fingerprint": self.corpus.fingerprint,
            "rows_fingerprint": self.rows.fingerprint,
            **options.columns_asked_for,
            **self.corpus.columns,
            "unit": options.unit,
            "subword": options.subword if options.unit == "word" else None,
            "sentences": len(self.corpus),
            "rows": len(self.rows),
            "dropped": dict(self.rows.dropped),
            "blank": self.corpus.skipped,
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """How to run it again."""
        options = self.options
        return {
            "request": self.request,
            "code": code_key(),
            "versions": versions() | {"python": platform.python_version()},
            "device": self.devices,
            "dtype": {spec.label: seen.dtype for spec, seen in self.models},
            "limit": options.limit,
            "layers": None if options.layers is None else list(options.layers),
            "seed": options.seed,
            "bootstrap": options.bootstrap,
            "standardise": options.standardise,
        }


def make_plan(
    models: Sequence[str | Path | ModelSpec], data: str | Path | Corpus, options: Options, progress: Progress
) -> Plan:
    """Look at the models and the text, and refuse what cannot be compared."""
    check(options)
    specs = named([m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in models], options)
    for spec in specs:
        choose_device(spec.device)
    for source, revision in dict.fromkeys((spec.source, spec.revision) for spec in specs):
        if revision is not None and locate(source).local:
            progress.note(f"revision '{revision}' is of hub models; it does nothing for the local '{source}'")
    corpus = _corpus(data, options).sample(options.limit, options.seed)
    if corpus.columns and options.text is None and not isinstance(data, Corpus):
        read = " and ".join(f"'{corpus.columns[role]}'" for role in ("text", "pair") if role in corpus.columns)
        progress.note(f"the text of {corpus.name} is read from column {read}; --text chooses another")
    surveys = [survey(spec, progress=progress) for spec in specs]
    for seen in surveys:
        chosen_layers(seen, options.layers)
    rows = plan_rows(corpus, [s.encoder for s in surveys], options.unit)
    if len(rows) < FEWEST_ROWS:
        raise StratoscopeError(f"expected at least {FEWEST_ROWS} rows to compare, got {len(rows)}; give more text")
    wanted, notes = requests(options.measures, n=len(rows), width=max(s.width for s in surveys))
    notes += _same_models(specs, surveys) + _left_out(corpus, rows)
    return Plan(tuple(specs), tuple(surveys), corpus, rows, tuple(wanted), tuple(notes), options)


def named(specs: list[ModelSpec], options: Options) -> list[ModelSpec]:
    """Give every model a label of its own: the name given, or the folder's, with its parent's where two are alike."""
    if not specs:
        raise StratoscopeError("expected at least one model, got none")
    given = [s.name for s in specs if s.name]
    if twice := next((name for name in given if given.count(name) > 1), None):
        raise StratoscopeError(f"expected a different name for each model, got '{twice}' twice; rename one")
    if options.random_init:
        specs = [*specs, replace(specs[0], random_init=True, seed=options.seed, name=f"{specs[0].label}-random")]
    labels = [s.label for s in specs]
    longer = [
        f"{Path(s.source).resolve().parent.name}/{label}" if labels.count(label) > 1 else label
        for s, label in zip(specs, labels, strict=True)
    ]
    counted = [
        label if longer.count(label) == 1 else f"{label}-{longer[: k + 1].count(label)}"
        for k, label in enumerate(longer)
    ]
    if twice := next((label for label in counted if counted.count(label) > 1), None):
        raise StratoscopeError(f"two models would be labelled '{twice}'", "give each its own --name")
    return [replace(s, name=name) for s, name in zip(specs, counted, strict=True)]


def _corpus(data: str | Path | Corpus, options: Options) -> Corpus:
    asked = options.columns_asked_for
    if not isinstance(data, Corpus):
        return read_corpus(str(data), **asked)
    if name := next((name for name, value in asked.items() if value is not None), None):
        raise StratoscopeError(f"{name}='{asked[name]}' says how to read a file, but data is a corpus; leave it out")
    return data


def _same_models(specs: Sequence[ModelSpec], surveys: Sequence[Survey]) -> list[str]:
    found = [(spec.label, (seen.fingerprint, seen.dtype)) for spec, seen in zip(specs, surveys, strict=True)]
    return [
        f"{one} and {two} are the same model: what is between them is the model compared with itself"
        for (one, a), (two, b) in combinations(found, 2)
        if a == b
    ]


def _left_out(corpus: Corpus, rows: Rows) -> list[str]:
    notes = [f"left out: {count} {reason}" for reason, count in rows.dropped.items()]
    return notes + ([f"left out: {corpus.skipped} blank rows of {corpus.name}"] if corpus.skipped else [])
