"""Run a model with some of its blocks only, or write such a model as a checkpoint of its own.

Blocks are numbered 1..L, as the model stands: inside `keeping` the blocks that are left count from 1 again. Layer k is
the output of block k; with no block left the head reads the embeddings, through the final norm where there is one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import Family, base, depth, family_of
from stratoscope.models.families import blocks as all_blocks
from stratoscope.models.surgery.check import agreeing, check_standard

Model = TypeVar("Model", bound=nn.Module)

DEPTH, GROUPS = "num_hidden_layers", "num_hidden_groups"
"""How configurations name the number of blocks (each family answers to it) and of the groups ALBERT loops over."""

INDICES = ("layer_idx", "layer_id")
"""Attributes by which a part of a block knows its number (from 0), and so its place in the cache of keys and values."""


@contextmanager
def keeping(model: Model, blocks: Sequence[int]) -> Iterator[Model]:
    """Run `model` with only these blocks (1-based, increasing); whatever the body does, all is put back.

    The kept blocks are the model's own, so training inside changes it. A cut inside a cut numbers the blocks left.
    """
    family, kept = family_of(model), list(blocks)
    total = len(_applied(model, family))
    _check(model, family, kept, total)
    _record_everywhere(base(model))
    with ExitStack() as undo:
        # An architecture nobody has looked at is trusted only as far as it agrees with itself run block by block.
        check = agreeing(model, family, kept) if family.detected and len(kept) < total else None
        _cut(model, family, kept, undo)
        if check is not None:
            check()
        yield model


@contextmanager
def wearing(module: nn.Module, parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Put these parameters, by name, in the place of the model's own; all is put back afterwards."""
    own = {name: p for name, p in module.named_parameters() if name in parameters}
    before = {name: p.data for name, p in own.items()}
    try:
        for name, p in own.items():
            p.data = parameters[name].to(p.device, p.dtype)
        yield
    finally:
        for name, p in own.items():
            p.data = before[name]


def exported(model: Model, blocks: Sequence[int]) -> Model:
    """A deep copy with only these blocks, which plain `from_pretrained` reloads after `save_pretrained`.

    Raises when no configuration of the architecture describes the cut (ModernBERT's first block has no norm of its own,
    so another cannot take its place): a checkpoint that loads as a different model is never made.
    """
    with keeping(model, blocks):
        cut = copy.deepcopy(model)
    family = family_of(model)
    if family.looped:
        _share_groups(cut, family)
    check_standard(cut, family)
    return cut


def parameters_kept(model: nn.Module, blocks: Sequence[int]) -> int:
    """Parameters of the model with only these blocks; what several share counts once."""
    applied = _applied(model, family_of(model))
    kept = {id(p) for k in blocks for p in applied[k - 1].parameters()}
    gone = {id(p) for block in applied for p in block.parameters()} - kept
    return sum(p.numel() for p in model.parameters() if id(p) not in gone)


def parse_drop(text: str, blocks: int) -> tuple[int, ...]:
    """The blocks that stay when `top:k` or `bottom:k` of them go."""
    form = re.fullmatch(r"(top|bottom):([1-9]\d*)", text.strip())
    if form is None:
        raise StratoscopeError(
            f"blocks to drop are written top:k or bottom:k with k at least 1, got '{text}'; write for example top:2"
        )
    end, k = form[1], int(form[2])
    if k > blocks:
        raise StratoscopeError(f"cannot drop {k} blocks of a model that has {blocks}; drop at most {blocks} ({text})")
    return tuple(range(1, blocks - k + 1)) if end == "top" else tuple(range(k + 1, blocks + 1))


def _check(model: nn.Module, family: Family, kept: list[int], total: int) -> None:
    if kept != sorted(set(kept) & set(range(1, total + 1))):
        raise StratoscopeError(
            f"blocks to keep must be increasing numbers from 1 to {total}, got {', '.join(map(str, kept))}"
        )
    config = _config(base(model))
    if depth(config) != total:
        raise StratoscopeError(
            f"cannot cut architecture '{family.name}': its configuration counts {depth(config)} blocks,"
            f" the list at '{family.blocks}' holds {total}"
        )
    if getattr(config, "is_heterogeneous", False):
        raise StratoscopeError(
            f"cannot cut this '{family.name}': its configuration sets blocks apart by number (per_layer_config)"
        )


def _cut(model: nn.Module, family: Family, kept: Sequence[int], undo: ExitStack) -> None:
    """Put the kept blocks in the list and tell everything that counts blocks; `undo` takes it all back."""
    inner = base(model)
    applied = _applied(model, family)
    left = [applied[k - 1] for k in kept]
    for position, (block, k) in enumerate(zip(left, kept, strict=True)):
        for part in block.modules():
            for name in INDICES:
                if getattr(part, name, None) == k - 1:
                    _assign(part, name, position, undo)
    for path, field in family.with_first:
        parent, name = _place(inner, path)
        if 1 not in kept and getattr(parent, name) is not None:
            _assign(parent, name, None, undo)
            _configure(model, field, 0, undo)
    for field in family.per_layer:
        listed = getattr(_config(inner), field)
        _configure(model, field, [listed[k - 1] for k in kept], undo)
    _configure(model, DEPTH, len(left), undo)
    if family.looped:  # one group per application: the loop then takes them in turn
        _configure(model, GROUPS, len(left), undo)
    if family.needs_block and not left:
        left = [_Through()]
    parent, name = _place(inner, family.blocks)
    _assign(parent, name, nn.ModuleList(left), undo)


def _applied(model: nn.Module, family: Family) -> list[nn.Module]:
    """The blocks in order of application, none when only a stand-in is left."""
    return [block for block in all_blocks(model, family) if not isinstance(block, _Through)]


class _Through(nn.Module):
    """Stands in where a model cannot do without a block: hands on what it is given."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        return hidden, None


def _share_groups(cut: nn.Module, family: Family) -> None:
    """Write unrolled applications as ALBERT does: few groups, each applied equally often (in its own rounding)."""
    applied = _applied(cut, family)
    groups = list(dict.fromkeys(applied))
    numbers = [groups.index(group) for group in applied]
    if numbers != [int(k / (len(numbers) / len(groups))) for k in range(len(numbers))]:
        raise StratoscopeError(
            f"no configuration of '{family.name}' applies its shared blocks in the order"
            f" {', '.join(str(g + 1) for g in numbers)}; keep a number of blocks that is the same for each"
        )
    parent, name = _place(base(cut), family.blocks)
    setattr(parent, name, nn.ModuleList(groups))
    for config in _configs(cut):
        setattr(config, GROUPS, len(groups))


def _record_everywhere(inner: Any) -> None:
    """Let transformers hook all blocks now: inside a cut it would hook the kept ones and think that was all."""
    with suppress(ImportError):  # other releases hook at every call
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        maybe_install_capturing_hooks(inner)


def _config(model: Any) -> Any:
    return model.config.get_text_config()


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration that counts the blocks; a model with a head usually shares its base's."""
    return list({id(c): c for c in (_config(model), _config(base(model)))}.values())


def _configure(model: nn.Module, field: str, value: Any, undo: ExitStack) -> None:
    for config in _configs(model):
        _assign(config, field, value, undo)


def _assign(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _place(inner: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds what `path` names, and the name it has there."""
    parent, _, name = path.rpartition(".")
    return inner.get_submodule(parent), name
