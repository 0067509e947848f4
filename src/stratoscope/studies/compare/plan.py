"""What a comparison will do: models, rows and measures, all known and checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.matrix import Layer
from stratoscope.core.model import ModelInfo
from stratoscope.core.names import ALL
from stratoscope.core.options import check_names, check_options
from stratoscope.core.progress import Progress
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import Data, corpus_of
from stratoscope.measures.bootstrap import check_replicates
from stratoscope.measures.table import Request as Asked
from stratoscope.measures.table import parse, requests
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.loading import ModelSpec, Survey, choose_device
from stratoscope.models.read.store import chosen_layers
from stratoscope.models.saved.source import survey_source
from stratoscope.models.text.rows import SUBWORDS, Rows, check_unit, plan_rows
from stratoscope.runs.run import Request
from stratoscope.studies.asked import Model, model_info, request_for, spec_of
from stratoscope.studies.compare.options import STORES, CompareOptions

FEWEST_ROWS = 4
"""Unbiased HSIC needs four rows."""
LEAST_MEMORY = 1e8


@dataclass(frozen=True)
class Plan:
    """Everything a comparison depends on."""

    specs: tuple[ModelSpec, ...]
    surveys: tuple[Survey, ...]
    corpus: Corpus
    rows: Rows
    wanted: tuple[Asked, ...]
    notes: tuple[str, ...]
    """What the reader of the result must know already."""
    options: CompareOptions

    @property
    def models(self) -> list[tuple[ModelSpec, Survey]]:
        """Each model as asked for and as found."""
        return list(zip(self.specs, self.surveys, strict=True))

    @cached_property
    def layers(self) -> tuple[tuple[Layer, Survey], ...]:
        """Every layer compared, in the order of the axes, with its model."""
        return tuple(
            (Layer(spec.label, k), surveyed)
            for spec, surveyed in self.models
            for k in chosen_layers(surveyed, self.options.layers)
        )

    @cached_property
    def request(self) -> Request:
        """What is asked for; the code that answers is not part of it (see `code_key`)."""
        return request_for("comparison", self.inputs, self.options, measures=[r.name for r in self.wanted])

    @property
    def inputs(self) -> dict[str, Any]:
        """Identity of the models and of the rows."""
        return {
            "models": [[spec.label, surveyed.fingerprint, surveyed.dtype] for spec, surveyed in self.models],
            "rows": self.rows.fingerprint,
        }

    @property
    def devices(self) -> dict[str, str]:
        """Where each model runs."""
        return {spec.label: str(choose_device(spec.device)) for spec in self.specs}

    @property
    def key(self) -> Any:
        """All that a stored score depends on besides the measures; names the parts."""
        o = self.options
        return [self.inputs, self.devices, o.unit, o.subword, o.layers, o.store]

    @property
    def model_infos(self) -> tuple[ModelInfo, ...]:
        """The models as the result records them; a random initialisation is a control."""
        trained = {spec.source: spec.label for spec in self.specs if not spec.random_init}
        return tuple(
            model_info(spec, surveyed, role="control", base=trained.get(spec.source))
            if spec.random_init
            else model_info(spec, surveyed)
            for spec, surveyed in self.models
        )

    @property
    def data(self) -> dict[str, Any]:
        """The text as the result records it."""
        options = self.options
        return {
            "name": self.corpus.name,
            "fingerprint": self.corpus.fingerprint,
            "rows_fingerprint": self.rows.fingerprint,
            **options.how_to_read,
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
        """How to run it again, besides the request."""
        return {"device": self.devices, "dtype": {spec.label: surveyed.dtype for spec, surveyed in self.models}}


def make_plan(models: Sequence[Model], data: Data, options: CompareOptions, progress: Progress) -> Plan:
    """Look at the models and the text, and refuse what cannot be compared."""
    check(options)
    specs = named([spec_of(m) for m in models], random_init=options.random_init, seed=options.seed)
    for spec in specs:
        choose_device(spec.device)
    for source, revision in dict.fromkeys((s.source, s.revision) for s in specs if s.loaded is None):
        if revision is not None and locate(source).local:
            progress.note(f"revision '{revision}' is of hub models; it does nothing for the local '{source}'")
    corpus = corpus_of(data, **options.how_to_read).sample(options.limit, options.seed)
    if corpus.columns and options.text is None and not isinstance(data, Corpus):
        read = " and ".join(f"'{corpus.columns[role]}'" for role in ("text", "pair") if role in corpus.columns)
        progress.note(f"the text of {corpus.name} is read from column {read}; --text chooses another")
    surveys = [survey_source(spec, progress=progress) for spec in specs]
    for surveyed in surveys:
        chosen_layers(surveyed, options.layers)
    return plan_of(specs, surveys, corpus, options)


def plan_of(
    specs: Sequence[ModelSpec],
    surveys: Sequence[Survey],
    corpus: Corpus,
    options: CompareOptions,
    *,
    truncate: int | None = None,
) -> Plan:
    """The rows that all models can give, the measures that fit them, and what a reader must know of both."""
    rows = plan_rows(corpus, [s.encoder for s in surveys], options.unit, truncate=truncate)
    if len(rows) < FEWEST_ROWS:
        raise StratoscopeError(f"expected at least {FEWEST_ROWS} rows to compare, got {len(rows)}; give more text")
    requested, notes = requests(options.measures, n=len(rows), width=max(s.width for s in surveys))
    identities = [
        (spec.label, (surveyed.fingerprint, surveyed.dtype)) for spec, surveyed in zip(specs, surveys, strict=True)
    ]
    for (one, a), (two, b) in combinations(identities, 2):
        if a == b:
            notes.append(f"{one} and {two} are the same model: what is between them is the model compared with itself")
    notes += [note for surveyed in surveys for note in surveyed.notes]
    notes += [f"left out: {count} {reason}" for reason, count in rows.dropped.items()]
    notes += [f"{n} texts are read up to {rows.truncate} tokens by {name}" for name, n in rows.truncated.items()]
    notes += [f"left out: {corpus.skipped} blank rows of {corpus.name}"] if corpus.skipped else []
    return Plan(tuple(specs), tuple(surveys), corpus, rows, tuple(requested), tuple(notes), options)


def named(specs: list[ModelSpec], *, random_init: bool = False, seed: int = 0) -> list[ModelSpec]:
    """Give every model a label of its own: the name given, or the folder's, with its parent's where two are alike."""
    if not specs:
        raise StratoscopeError("expected at least one model, got none")
    given = [s.name for s in specs if s.name]
    if twice := next((name for name in given if given.count(name) > 1), None):
        raise StratoscopeError(f"expected a different name for each model, got '{twice}' twice; rename one")
    if random_init:
        specs = [*specs, replace(specs[0], random_init=True, seed=seed, name=f"{specs[0].label}-random")]
    labels = [s.label for s in specs]
    longer = [s.full_label if labels.count(label) > 1 else label for s, label in zip(specs, labels, strict=True)]
    counted = [
        label if longer.count(label) == 1 else f"{label}-{longer[: k + 1].count(label)}"
        for k, label in enumerate(longer)
    ]
    if twice := next((label for label in counted if counted.count(label) > 1), None):
        raise StratoscopeError(f"two models would be labelled '{twice}'", "give each its own --name")
    return [replace(s, name=name) for s, name in zip(specs, counted, strict=True)]


def check(options: CompareOptions) -> None:
    """Refuse what cannot work whatever the models and the text are."""
    check_options(options)
    check_names(options)
    check_unit(options.unit)
    if options.store not in STORES:
        raise unknown_name("precision to store", str(options.store), STORES)
    if options.subword not in SUBWORDS:
        raise unknown_name("subword", options.subword, SUBWORDS)
    for name in options.measures:
        if name != ALL:
            parse(name)
    if options.layers is not None and not options.layers:
        raise StratoscopeError("expected at least one layer, got none; leave --layers out to compare all")
    if options.layers is not None and len(set(options.layers)) < len(options.layers):
        raise StratoscopeError(f"expected each layer once, got {', '.join(map(str, options.layers))}")
    check_replicates(options.bootstrap)
    if options.save_activations is not None and options.unit != "word":
        raise StratoscopeError(f"activations are saved by word, but the unit is '{options.unit}'; use unit 'word'")
    if options.memory is not None and options.memory < LEAST_MEMORY:
        raise StratoscopeError(f"expected --memory of at least 100MB, got {options.memory / 1e6:g}MB")
