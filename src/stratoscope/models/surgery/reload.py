"""Load a written checkpoint as a stranger would, with plain transformers, and hold it against the model it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import Example, TaskData
from stratoscope.models.open.guard import guarded
from stratoscope.models.open.heads import auto_class
from stratoscope.models.read.loop import evaluating

TOLERANCE = 1e-5
"""Largest difference of the logits in float64, against the largest of them where that is above 1.

In float32 the same weights give logits up to 1e-4 apart: rounding depends on where they lie in memory, and a head tuned
on standardised vectors enlarges it.
"""


def check_reload(
    folder: Path,
    module: Any,
    task: TaskData,
    examples: Sequence[Example],
    *,
    length: int,
    trust_remote_code: bool = False,
) -> float:
    """Largest difference of the logits of `module` and of the checkpoint reloaded, for these examples as they stand.

    The Auto classes load it; texts go through its tokenizer, one example at a time, so that no padding enters.
    """
    given = [partial(_given, example=example, length=length) for example in examples]
    return apart(folder, module, auto_class(task), given, trust_remote_code=trust_remote_code)


def apart(
    folder: Path,
    module: Any,
    loads_with: Any,
    given: Sequence[Callable[[Any], Mapping[str, Tensor]]],
    *,
    trust_remote_code: bool = False,
) -> float:
    """As `check_reload`, for any Auto class; each of `given` makes inputs with the tokenizer reloaded."""
    with guarded(str(folder), "written checkpoint", local=True):
        from transformers import AutoTokenizer

        how: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        model, info = loads_with.from_pretrained(folder, output_loading_info=True, dtype=torch.float32, **how)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **how)
    strange = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
    if strange:
        raise _unlike(f"{len(strange)} parameters are missing or unexpected (first: {min(strange)})")
    want, got = ({k: v.cpu() for k, v in m.state_dict().items()} for m in (module, model))
    unlike = [k for k in want | got if k not in want or k not in got or not torch.equal(want[k], got[k])]
    if unlike:
        raise _unlike(f"{len(unlike)} weights differ (first: {unlike[0]})")
    module, model = copy.deepcopy(module).cpu().double(), model.double()
    worst, largest = 0.0, 1.0
    with evaluating(module), evaluating(model), torch.inference_mode():
        for inputs in (make(tokenizer) for make in given):
            on_device = {k: v.to(model.device) for k, v in inputs.items()}
            before, after = module(**on_device).logits, model(**on_device).logits
            worst = max(worst, float((before - after).abs().max()))
            largest = max(largest, float(before.abs().max()))
    if not worst <= TOLERANCE * largest:
        allowed = TOLERANCE * largest
        raise _unlike(f"logits are {worst:.3g} apart on {len(given)} rows, expected at most {allowed:.3g}")
    return worst


def _unlike(how: str) -> StratoscopeError:
    return StratoscopeError(f"the saved checkpoint does not match the model in memory: {how}")


def _given(tokenizer: Any, *, example: Example, length: int) -> dict[str, Tensor]:
    first, second = [text for text, _ in example.texts], [pair for _, pair in example.texts]
    several = len(first) > 1
    how = {"padding": several, "truncation": "longest_first", "max_length": length, "return_tensors": "pt"}
    encoded = tokenizer(first, None if second[0] is None else second, **how)
    return {k: v[None] if several else v for k, v in encoded.items()}
