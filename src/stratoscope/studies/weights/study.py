"""What training did to the weights: no data and no forward pass, tensor by tensor from safetensors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.progress import Progress, Silent
from stratoscope.models.open.checkpoints import Checkpoint
from stratoscope.models.open.loading import ModelSpec, identity, resolve
from stratoscope.models.open.states import Adapter
from stratoscope.models.weights.change import effective_rank, square_sum
from stratoscope.models.weights.stored import (
    Pair,
    open_lora,
    open_stored,
    pair_of,
    row_changes,
    vocabulary,
)
from stratoscope.results.weights import ParameterChange, TokenChange, Weights
from stratoscope.runs.run import Draw, Item, Run
from stratoscope.studies.asked import Model, chosen, models_asked, names_asked, request_for, run_study, spec_of
from stratoscope.studies.compare.plan import named
from stratoscope.studies.weights.options import WeightsOptions

MOST_TOKENS = 20
"""Tokens that a result names."""
COARSE = {"BF16": 2.0**-9, "F16": 2.0**-12}
"""Relative error of a weight rounded to a narrow dtype."""


def weights(
    base: Model,
    tuned: Model | None = None,
    *,
    out: str | Path | None = None,
    options: WeightsOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Weights:
    """Relative change and effective rank of every parameter of `tuned` against `base`, read from safetensors.

    `tuned` may be a LoRA adapter, read as its factors; alone in the place of `base`, it is compared with the model it
    names. Further keywords are the fields of `WeightsOptions`.
    """
    options, progress = chosen(WeightsOptions, options, keywords), progress or Silent()
    before, after = two_models(spec_of(base), None if tuned is None else spec_of(tuned))
    pair, models, adapter = opened_weights(before, after, progress)
    given = [spec_of(m) for m in (base, tuned) if m is not None]
    asked = {"base": given[0].source, "tuned": given[1].source if tuned else None}
    asked |= models_asked(given) | names_asked(given)
    return run_study(
        request_for("weights", {"models": [[m.name, m.fingerprint] for m in models]}, options),
        options,
        out,
        lambda running: compare_weights(pair, models, adapter, options, running),
        asked=asked,
        work=sum(math.prod(s) * min(s) for n in pair.names if len(s := pair.base.shapes[n]) == 2),
        progress=progress,
        draw=draw,
    )


def opened_weights(
    before: ModelSpec, after: ModelSpec, progress: Progress
) -> tuple[Pair, tuple[ModelInfo, ...], dict[str, Any]]:
    """Both models by their tensors, who they are, and what is known of the adapter, if one is."""
    if before.loaded is not None or after.loaded is not None:
        raise StratoscopeError("weights are read from checkpoints on disk; save the model in memory first")
    places = [resolve(spec) for spec in (before, after)]
    for place in places:
        if place.note:
            progress.note(place.note)
    pair, adapter = _opened(before, after, places[0], places[1])
    prints = [identity(spec, place) for spec, place in zip((before, after), places, strict=True)]
    return (
        pair,
        tuple(_info(s, pair, fingerprint) for s, fingerprint in zip((before, after), prints, strict=True)),
        adapter,
    )


def two_models(base: ModelSpec, tuned: ModelSpec | None) -> tuple[ModelSpec, ModelSpec]:
    """Base and tuned model, labelled; an adapter alone brings its base."""
    if tuned is None:
        place = resolve(base)
        if place.adapter is None:
            raise StratoscopeError(f"expected two models, got '{base.source}' alone, which is no adapter; name both")
        whole = place.source if place.revision is None else f"{place.source}@{place.revision}"
        base, tuned = replace(base, source=whole, name=None, revision=None), base
    elif tuned.base is None:
        tuned = replace(tuned, base=base.source)
    one, two = named([base, tuned])
    return one, two


def _opened(before: ModelSpec, after: ModelSpec, base: Checkpoint, tuned: Checkpoint) -> tuple[Pair, dict[str, Any]]:
    """Both models by their tensors, and what is known of the adapter, if one is."""
    if base.adapter is not None:
        raise StratoscopeError(f"'{before.source}' is an adapter; name its base first, then the adapter")
    labels = before.label, after.label
    whole = open_stored(base, before.source)
    if tuned.adapter is None:
        return pair_of(whole, open_stored(tuned, after.source), None, labels), {}
    adapter = Adapter.read(tuned.adapter)
    known = {k: adapter.config.get(k) for k in ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora")}
    return pair_of(whole, None, open_lora(adapter, whole), labels), known


def _info(spec: ModelSpec, pair: Pair, found: str) -> ModelInfo:
    config = pair.base.config
    blocks = {place for name in pair.base.files if (place := pair.place(name)[0])}
    width = config.get("hidden_size") or config.get("n_embd") or config.get("dim") or 0
    return ModelInfo(spec.label, spec.source, str(config.get("model_type", "?")), len(blocks) + 1, int(width), found)


def compare_weights(
    pair: Pair, models: tuple[ModelInfo, ...], adapter: dict[str, Any], options: WeightsOptions, running: Run
) -> Weights:
    """Every parameter of both models, layer by layer."""
    places = {name: pair.place(name) for name in pair.names}
    groups: dict[int | None, list[str]] = {}
    for name, (layer, _) in places.items():
        groups.setdefault(layer, []).append(name)
    items: list[Item] = [{"names": sorted(names), "rank": options.rank} for names in groups.values()]
    key = [m.fingerprint for m in models]
    sizes = [sum(math.prod(pair.base.shapes[n]) for n in item["names"]) for item in items]
    made = running.map(compared, items, name="weights", key=key, label="weights", shared=pair, weights=sizes)
    changes: list[ParameterChange] = []
    rows: dict[str, Tensor] = {}
    for item, numbers in zip(items, made, strict=True):
        for name, (norm, change, rank) in zip(item["names"], numbers["numbers"].tolist(), strict=True):
            changes.append(ParameterChange(name, *places[name], tuple(pair.base.shapes[name]), norm, change, rank))
        rows |= {name.removeprefix("rows:"): t for name, t in numbers.items() if name.startswith("rows:")}
    words = max(rows.values(), key=len, default=torch.zeros(0))
    return Weights(
        models,
        tuple(sorted(changes, key=lambda p: (math.inf if p.layer is None else p.layer, p.name))),
        missing=_missing(pair, models),
        adapter=adapter,
        tokens=_tokens(words, pair),
        moved_tokens=int((words > 0).sum()),
        all_tokens=len(words),
        warnings=tuple(_warnings(pair, models)),
    )


def compared(pair: Pair, item: Item) -> dict[str, Tensor]:
    """Norm, norm of the change and effective rank of some parameters, one after the other; rows of embeddings."""
    made: dict[str, Tensor] = {}
    numbers = []
    for name in item["names"]:
        before = pair.base.tensor(name)
        change, size = pair.change(name, before), math.sqrt(square_sum(before))
        if change is None:
            numbers.append((size, 0.0, math.nan))
            continue
        ranked = item["rank"] and before.dim() == 2
        numbers.append((size, math.sqrt(square_sum(change)), effective_rank(change) if ranked else math.nan))
        if pair.place(name)[0] == 0 and before.dim() == 2:
            made[f"rows:{name}"] = row_changes(change, before)
    return {"numbers": torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3), **made}


def _tokens(words: Tensor, pair: Pair) -> tuple[TokenChange, ...]:
    """The rows of the largest table that changed most, by the tokens they stand for."""
    top = [k for k in torch.argsort(words, descending=True, stable=True)[:MOST_TOKENS].tolist() if words[k] > 0]
    known = vocabulary(pair.base.folder) if top else {}
    return tuple(TokenChange(k, known.get(k, ""), float(words[k])) for k in top)


def _missing(pair: Pair, models: tuple[ModelInfo, ...]) -> dict[str, tuple[str, ...]]:
    """Parameters that only one of the models has."""
    both = set(pair.names)
    others = pair.tuned.files if pair.tuned else pair.lora.saved if pair.lora else {}
    lacking = {} if pair.tuned is None else pair.base.files
    missing = {m.name: tuple(sorted(set(has) - both)) for m, has in zip(models, (lacking, others), strict=True)}
    return {name: names for name, names in missing.items() if names}


def _warnings(pair: Pair, models: tuple[ModelInfo, ...]) -> list[str]:
    notes = []
    if pair.tuned is not None and pair.tuned.dtypes != pair.base.dtypes:
        kinds = {*pair.tuned.dtypes, *pair.base.dtypes}
        error = max((COARSE.get(kind, 0.0) for kind in kinds), default=0.0)
        one, two = ("/".join(s.dtypes).lower() for s in (pair.base, pair.tuned))
        notes.append(
            f"{models[0].name} is stored as {one}, {models[1].name} as {two}: a relative change up to about {error:.1g}"
            " is rounding, not training"
        )
    if pair.tuned is not None:
        resized = [n for n in pair.names if pair.base.shapes[n] != pair.tuned.shapes[n]]
        notes += [f"{n} has {pair.tuned.shapes[n][0]} rows, {pair.base.shapes[n][0]} before: those of both are compared"
                  for n in resized]  # fmt: skip
    return notes


__all__ = ["WeightsOptions", "weights"]
