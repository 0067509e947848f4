"""Keep the top or bottom blocks of a model as they are while the rest is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import base, blocks, family_of, final_norm
from stratoscope.models.heads.reading import POOLER


@dataclass(frozen=True)
class Frozen:
    """What was frozen, by number of parameters."""

    frozen: int
    trained: int


def parse_freeze(text: str, total: int) -> tuple[str, int]:
    """Read `top:k` or `bottom:k` for a model of `total` blocks; `bottom:0` freezes the embeddings alone."""
    form = re.fullmatch(r"(top|bottom):(\d+)", text.strip())
    if form is None or form[0] == "top:0":
        raise StratoscopeError(
            f"blocks to freeze are written top:k or bottom:k with k a whole number, got '{text}'; write for example"
            " bottom:4"
        )
    end, k = form[1], int(form[2])
    if k > total:
        raise StratoscopeError(f"cannot freeze {k} blocks of a model that has {total}; freeze at most {total} ({text})")
    return end, k


def freeze_(model: nn.Module, text: str | None) -> Frozen:
    """Let the named blocks take no gradient; None trains all.

    `bottom` also freezes what feeds the blocks from outside (embeddings, and position tables that blocks share), so
    that no gradient is computed below the freeze at all.
    """
    model.requires_grad_(True)
    if text is not None:
        family = family_of(model)
        applied = blocks(model, family)
        end, k = parse_freeze(text, len(applied))
        held, rest = (applied[:k], applied[k:]) if end == "bottom" else (applied[-k:], applied[:-k])
        if {id(b) for b in held} & {id(b) for b in rest}:
            raise StratoscopeError(
                f"'{family.name}' applies the same block again and again, so {k} of its {len(applied)} cannot be frozen"
                f" alone; freeze all {len(applied)}, bottom:0 (the embeddings) or nothing"
            )
        for block in held:
            block.requires_grad_(False)
        if end == "bottom":  # the encoder's parameters outside its blocks, but for what comes after them
            after = [*applied, final_norm(model, family)]
            kept = {id(p) for part in after if part is not None for p in part.parameters()}
            for name, p in base(model).named_parameters():
                if id(p) not in kept and not name.startswith(f"{POOLER}."):
                    p.requires_grad_(False)
    count = {free: sum(p.numel() for p in model.parameters() if p.requires_grad == free) for free in (False, True)}
    return Frozen(frozen=count[False], trained=count[True])
