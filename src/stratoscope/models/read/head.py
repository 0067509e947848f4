"""What a task head reads at every layer, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import family_of, final_norm
from stratoscope.models.heads.reading import reading
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import HIDDEN, LOGITS, Batch, Output, Reader, evaluating, read
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs, texts_of

TOLERANCE = 1e-3
"""How far the head's answer to the vectors of the last layer may be from the model's own, against its largest score."""


class LogitReader(Reader):
    """The outputs of a model's own head; `scores` then holds them (examples, k), float64."""

    needs = frozenset({LOGITS})

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.scores = torch.empty(0, 0)

    def update(self, batch: Batch, output: Output) -> None:
        assert output.logits is not None
        if not self.scores.numel():
            self.scores = torch.empty(self.examples, output.logits.shape[1], dtype=torch.float64)
        self.scores[torch.from_numpy(batch.positions)] = output.logits.to("cpu", torch.float64)


class HeadInputReader(Reader):
    """The vector a head would read of every text if it sat on each layer; `layers` then holds them (texts, width).

    Below layer L they have been through the final norm, where there is one, as in a model truncated there.
    """

    needs = frozenset({HIDDEN})

    def __init__(self, model: OpenedModel, examples: int, *, choices: int = 1, mean: bool = False) -> None:
        """`mean` for heads that read the mean over the tokens instead of one token."""
        self.module, self.name = model.module, model.name
        self.family = family_of(model.module)
        self.norm = final_norm(model.module, self.family)
        self.texts, self.choices, self.mean = examples * choices, choices, mean
        self.layers: list[Tensor] = []

    def update(self, batch: Batch, output: Output) -> None:
        if not self.layers:
            self.layers = [torch.empty(self.texts, output.hidden[0].shape[-1]) for _ in output.hidden]
        where = torch.from_numpy(texts_of(batch.positions, self.choices))
        mask, position = batch.inputs["attention_mask"], self._position(batch.inputs)
        texts = torch.arange(len(mask), device=mask.device)
        for k, (kept, states) in enumerate(zip(self.layers, output.hidden, strict=True)):
            x = states if self.mean else states[texts, position]
            if self.norm is not None and k < len(self.layers) - 1:  # the last of the states has been through it
                x = self.norm(x)
            if self.mean:
                x = (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            if not bool(x.sum(dtype=torch.float64).isfinite()):
                raise StratoscopeError(
                    f"'{self.name}' gives a value that is not finite at layer {k}",
                    "check its weights",
                    "load it with --dtype float32",
                )
            kept[where] = x.to("cpu", torch.float32)

    def _position(self, inputs: dict[str, Tensor]) -> Tensor:
        """Column of the token the head reads."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if self.family.cls == "first":
            return torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        # As heads of decoders look for it: the last token that is not the padding token, wherever that stands.
        padding = self.module.config.get_text_config().pad_token_id
        real = mask.bool() if padding is None else ids != padding
        return (torch.arange(ids.shape[1], device=ids.device) * real).argmax(dim=1)


def check_head(model: OpenedModel, last: Tensor, scores: Tensor, *, choices: int = 1) -> None:
    """Hold the head's answer to the last layer against the model's own scores.

    A head that reads anything but this vector is an error, never a wrong curve.
    """
    apart = float(np.abs(scores.numpy() - head_scores(model.module, last, choices=choices)).max())
    if apart > TOLERANCE * max(1.0, float(scores.abs().max())):
        raise StratoscopeError(
            f"the head of '{model.name}' does not read the vector that stands for a text in its family (scores are"
            f" {apart:.3g} apart); truncation is defined only for heads that read one vector"
        )


def head_scores(module: Any, vectors: Tensor, *, choices: int = 1) -> Floats:
    """Scores (examples, k) of the model's own head for the vectors (texts, width) of one layer."""
    parameter = next(module.parameters())
    with evaluating(module), torch.inference_mode(), reading(module) as head:
        scores: Floats = head(vectors.to(parameter.device, parameter.dtype)).double().cpu().numpy()
    return scores.reshape(-1, choices) if choices > 1 else scores


def reads_mean(config: Any) -> bool:
    """Whether the head reads the mean over the tokens (ModernBERT, if its configuration says so)."""
    return getattr(config, "classifier_pooling", None) == "mean"


def predict(
    model: OpenedModel,
    inputs: Inputs,
    *,
    rows: IntArray | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Floats:
    """Scores (n, k) of a model with a head for all examples or for `rows`: logits, or the value of a regression."""
    rows = np.arange(len(inputs)) if rows is None else rows
    reader, choices = LogitReader(len(rows)), inputs.choices
    read(model, inputs.encoded, [reader], examples=rows, choices=choices, batch_tokens=batch_tokens, advance=advance)
    scores: Floats = reader.scores.numpy()
    return scores
