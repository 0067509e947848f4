"""Two checks on a cut: an unknown architecture runs as if blocks were skipped; a checkpoint reloads as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import Family, base, block_list
from stratoscope.models.read.loop import evaluating

PLAIN = (bool, int, float, str, type(None))
PASSING = {"training", "gradient_checkpointing"}
"""Attributes that say how a module is used at the moment, not what it computes."""


def agreeing(model: nn.Module, family: Family, kept: Sequence[int]) -> Callable[[], None]:
    """Note what the whole model gives when the other blocks hand on their input; the check compares after the cut.

    The text is a few token ids, so what depends on length (a window) is not seen here.
    """
    with ExitStack() as hooks:
        for k, block in enumerate(block_list(model, family), start=1):
            if k not in kept:
                hooks.enter_context(block.register_forward_hook(_hand_on, with_kwargs=True))
        expected = _trial(model, family)

    def check() -> None:
        if not torch.allclose(_trial(model, family), expected, rtol=1e-4, atol=1e-5):
            raise StratoscopeError(
                f"cannot cut architecture '{family.name}' by leaving blocks out of '{family.blocks}': it then computes"
                " something else than with these blocks skipped; see 'stratoscope families' for what is supported"
            )

    return check


def check_standard(cut: nn.Module, family: Family) -> None:
    """Compare a cut model with an empty one that its configuration builds after a round trip to disk."""
    config: Any = cut.config
    refused = f"no standard checkpoint of '{family.name}' holds this cut"
    try:
        with torch.device("meta"):
            built = type(cut)(type(config).from_dict(config.to_dict()))
    except Exception as error:
        first_line = str(error).partition("\n")[0].rstrip(": ")
        raise StratoscopeError(f"{refused}: its configuration is refused ({first_line}); keep other blocks") from error
    reason = _difference(cut, built, family)
    if reason is not None:
        raise StratoscopeError(f"{refused}: {reason}; keep other blocks")


def _difference(cut: nn.Module, built: nn.Module, family: Family) -> str | None:
    """The first thing in which a built model differs: block count, weights, or a plain value inside a block."""
    have, want = block_list(cut, family), block_list(built, family)
    if len(have) != len(want):
        return f"a model with {len(want)} blocks does not run"
    built_parts = dict(want.named_modules())
    for name, ours in have.named_modules():
        theirs = built_parts.get(name)
        if not name or theirs is None or isinstance(ours, nn.Dropout):  # dropout does nothing at inference
            continue
        if type(ours) is not type(theirs):
            return f"{_label(name)} would be built as {type(theirs).__name__}, but is {type(ours).__name__}"
        for key, value in vars(ours).items():
            telling = isinstance(value, PLAIN) and key not in PASSING and not key.startswith("_")
            if telling and vars(theirs).get(key, value) != value:
                return f"{_label(name)} would have {key} {vars(theirs)[key]}, but has {value}"
    has, gets = ({name: tuple(weights.shape) for name, weights in m.state_dict().items()} for m in (cut, built))
    for name in has | gets:
        if has.get(name) != gets.get(name):
            return f"weights '{name}' would have shape {gets.get(name)}, but have {has.get(name)}"
    return None


def _label(name: str) -> str:
    index, _, part = name.partition(".")
    return f"'{part}' of block {int(index) + 1}" if part else f"block {int(index) + 1}"


def _hand_on(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    hidden = args[0] if args else kwargs["hidden_states"]
    return type(output)((hidden, *output[1:])) if isinstance(output, tuple | list) else hidden


def _trial(model: nn.Module, family: Family) -> Tensor:
    """The last hidden state for the few token ids that transformers keeps for such trials."""
    inner: Any = base(model)
    try:
        with evaluating(inner), torch.no_grad():
            last: Tensor = inner(**{k: v.to(inner.device) for k, v in inner.dummy_inputs.items()})[0]
    except Exception as error:
        raise StratoscopeError(
            f"cannot cut architecture '{family.name}': a trial run failed ({error});"
            " see 'stratoscope families' for what is supported"
        ) from error
    return last
