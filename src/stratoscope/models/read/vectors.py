"""The vector a task head reads, at every layer, from one pass over a split; kept in the run folder shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import digest
from stratoscope.core.progress import Progress
from stratoscope.core.provenance import code_key
from stratoscope.models.families import base, family_of, final_norm
from stratoscope.models.heads.reading import reading
from stratoscope.models.read.hidden import (
    BATCH_BYTES,
    BATCH_TOKENS,
    BATCH_TOKENS_ELSEWHERE,
    batches,
    evaluating,
    forward_options,
)
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs
from stratoscope.runs.folder import RunFolder

SHARD_BYTES = 2.5e8
"""Memory the vectors of one shard may take: what a killed run loses at most, and enough text to sort by length."""
TOLERANCE = 1e-3
"""How far the head's answer to the vectors of the last layer may be from the model's own, against its largest score."""


@dataclass(frozen=True)
class Vectors:
    """What the head of a model reads at every layer for the texts of some examples."""

    layers: Tensor
    """(L+1, texts, width) float32 on the CPU; below layer L already through the final norm, where there is one."""
    scores: Tensor | None
    """(examples, k) float64: the model's own output for the examples; None for a bare encoder."""


def read_vectors(
    module: Any,
    inputs: Inputs,
    *,
    rows: IntArray | None = None,
    mean: bool = False,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Vectors:
    """Run the model once over the examples; `mean` for heads that read the mean over the tokens instead of one.

    A model with a head also gives its scores, and the head's answer to the last layer is held against them: a head
    that reads anything but this vector is an error, never a wrong curve.
    """
    rows = np.arange(len(inputs)) if rows is None else rows
    parameter = next(module.parameters())
    bare = base(module) is module
    config = module.config.get_text_config()
    per_token = (config.num_hidden_layers + 1) * config.hidden_size * parameter.element_size()
    most = BATCH_TOKENS.get(parameter.device.type, BATCH_TOKENS_ELSEWHERE)
    budget = batch_tokens or max(1, min(most, BATCH_BYTES // per_token))
    extra = forward_options(module)
    c = inputs.choices
    layers: Tensor | None = None
    scores: Tensor | None = None
    with evaluating(module):
        for batch in batches(inputs.lengths[rows], budget):
            given = {k: v.to(parameter.device) for k, v in inputs.batch(rows[batch]).items() if k != "labels"}
            flat = {k: v.flatten(0, 1) if c > 1 else v for k, v in given.items()}
            with torch.inference_mode():
                output = module(**(flat if bare else given), output_hidden_states=True, **extra)
                found = _vectors(module, list(output.hidden_states), flat, mean=mean)
            if layers is None:
                layers = torch.empty(len(found), len(rows) * c, found.shape[-1])
                scores = None if bare else torch.empty(len(rows), output.logits.shape[1], dtype=torch.float64)
            where = torch.from_numpy((batch[:, None] * c + np.arange(c)).ravel())
            layers[:, where] = found.to("cpu", torch.float32)
            if scores is not None:
                scores[torch.from_numpy(batch)] = output.logits.to("cpu", torch.float64)
            advance(len(batch))
    assert layers is not None
    _check_finite(layers, inputs)
    if scores is not None:
        _check_head(scores, head_scores(module, layers[-1], choices=c))
    return Vectors(layers, scores)


def head_scores(module: Any, vectors: Tensor, *, choices: int = 1) -> Floats:
    """Scores (examples, k) of the model's own head for the vectors (texts, width) of one layer."""
    parameter = next(module.parameters())
    with evaluating(module), torch.inference_mode(), reading(module) as head:
        found = head(vectors.to(parameter.device, parameter.dtype)).double().cpu().numpy()
    return found.reshape(-1, choices) if choices > 1 else found


def reads_mean(module: Any) -> bool:
    """Whether the head reads the mean over the tokens (ModernBERT, if its configuration says so)."""
    return getattr(module.config, "classifier_pooling", None) == "mean"


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of a split, as the run folder holds them."""

    paths: tuple[str, ...]
    """One file per shard, in the order of the examples."""
    depth: int
    """L: layers are 0 to L."""

    def layer(self, k: int) -> Tensor:
        """(texts, width) of one layer."""
        return self._read(_layer(k))

    @property
    def scores(self) -> Floats:
        """(examples, k): the model's own output."""
        found: Floats = self._read("scores").numpy()
        return found

    def _read(self, name: str) -> Tensor:
        parts = []
        for path in self.paths:
            with safe_open(path, framework="pt") as f:
                parts.append(f.get_tensor(name))
        return torch.cat(parts)


def keep_vectors(
    load: Callable[[], nn.Module],
    inputs: Inputs,
    folder: RunFolder,
    *,
    layers: int,
    width: int,
    made_from: Sequence[Any],
    label: str,
    mean: bool = False,
    batch_tokens: int | None = None,
    progress: Progress,
) -> StoredVectors:
    """Read and keep the vectors of all examples; `load` is called only if a shard is missing or damaged.

    `made_from` says in plain data what the vectors depend on: the model, the texts and how they are cut.
    """
    size = max(1, int(SHARD_BYTES / (layers * width * 4 * inputs.choices)))
    bounds = [*range(0, len(inputs), size), len(inputs)]
    shards = list(pairwise(bounds))
    names = [f"vectors-{digest([*made_from, mean, shard, code_key()])}.safetensors" for shard in shards]
    missing = [k for k, name in enumerate(names) if not folder.has(name)]
    if missing:
        module = load()
        with progress.step(label, sum(shards[k][1] - shards[k][0] for k in missing)) as advance:
            for k in missing:
                found = read_vectors(
                    module, inputs, rows=np.arange(*shards[k]), mean=mean, batch_tokens=batch_tokens, advance=advance
                )
                tensors = {_layer(i): x.clone() for i, x in enumerate(found.layers)}
                if found.scores is not None:
                    tensors["scores"] = found.scores
                folder.save(names[k], partial(save_file, tensors))
    return StoredVectors(tuple(str(folder.part(name)) for name in names), layers - 1)


def _layer(k: int) -> str:
    return f"layer{k}"


def _vectors(module: nn.Module, hidden: list[Tensor], given: dict[str, Tensor], *, mean: bool) -> Tensor:
    """(L+1, texts, width): the one token the head reads (or the mean over all), as a truncated model would give it."""
    family = family_of(module)
    norm = final_norm(module, family)
    ids, mask = given["input_ids"], given["attention_mask"]
    config: Any = module.config
    if family.cls == "first":
        position = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    else:  # as heads of decoders look for it: the last token that is not the padding token, wherever that stands
        columns = torch.arange(ids.shape[1], device=ids.device)
        padding = config.get_text_config().pad_token_id
        real = mask.bool() if padding is None else ids != padding
        position = (columns * real).argmax(dim=1)
    texts = torch.arange(len(ids), device=ids.device)
    found = []
    for k, states in enumerate(hidden):
        last = k == len(hidden) - 1
        x = states if mean else states[texts, position]
        if norm is not None and not last:  # the last of the hidden states has been through it
            x = norm(x)
        found.append((x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True) if mean else x)
    return torch.stack(found)


def _check_finite(layers: Tensor, inputs: Inputs) -> None:
    for k, x in enumerate(layers):
        if not bool(x.sum(dtype=torch.float64).isfinite()):
            raise StratoscopeError(
                f"'{inputs.encoder.name}' gives a value that is not finite at layer {k}",
                "check its weights",
                "load it with --dtype float32",
            )


def _check_head(scores: Tensor, got: Floats) -> None:
    apart = float(np.abs(scores.numpy() - got).max())
    if apart > TOLERANCE * max(1.0, float(scores.abs().max())):
        raise StratoscopeError(
            f"the head of this model does not read the vector that stands for a text in its family (scores are"
            f" {apart:.3g} apart); truncation is defined only for heads that read one vector"
        )
