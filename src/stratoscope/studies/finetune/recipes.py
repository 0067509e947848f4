"""Fine-tuning recipes as data, and what the user asks for in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.studies.finetune.options import TrainingOptions


@dataclass(frozen=True)
class Recipe:
    """How to fine-tune; Adam without weight decay, a linear schedule, gradients clipped at norm 1."""

    name: str
    summary: str
    reference: str
    lr: float
    batch: int
    epochs: float | None
    max_steps: int | None = None
    warmup: float = 0.0
    """Steps; below 1, a share of the run."""
    length: int | None = None
    """Tokens kept of a text; None = as many as the model reads, at most 512."""
    epsilon: float = 1e-8
    task_epochs: Mapping[str, float] = field(default_factory=dict)
    """Epochs of tasks that differ."""
    grouped: bool = False
    """Whether a batch holds texts of about one length: half the work where texts are short and few are long."""


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "phang2021",
        "many small careful steps: 10,000 of batch 4",
        "Phang et al. 2021, section 3",
        lr=1e-5,
        batch=4,
        epochs=None,
        max_steps=10_000,
        warmup=1000,
    ),
    Recipe(
        "wu2020",
        "transformers' defaults: batch 8, three epochs",
        "Wu et al. 2020, appendix D",
        lr=5e-5,
        batch=8,
        epochs=3,
    ),
    Recipe(
        "ren2023",
        "transformers' GLUE example: batch 32, three epochs (MRPC five), 128 tokens",
        "Ren et al. 2023; the batch size is that of the example, the paper gives none",
        lr=2e-5,
        batch=32,
        epochs=3,
        length=128,
        task_epochs={"mrpc": 5},
    ),
    Recipe(
        "quick",
        "two epochs at a high learning rate, batches of texts alike in length: for small models on a CPU",
        "not published",
        lr=1e-4,
        batch=16,
        epochs=2,
        warmup=0.1,
        length=128,
        grouped=True,
    ),
)
"""Every recipe; a name given twice is a programming error."""

if len({r.name for r in RECIPES}) != len(RECIPES):
    raise ValueError("two recipes share a name")


def recipe_named(name: str) -> Recipe:
    """The row of `RECIPES` with this name."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    raise unknown_name("recipe", name, (r.name for r in RECIPES))


def resolve(options: TrainingOptions, task: str) -> Recipe:
    """The recipe with the user's own values in place; what cannot work is refused before anything is read."""
    recipe = recipe_named(options.recipe)
    recipe = replace(recipe, epochs=recipe.task_epochs.get(task, recipe.epochs))
    for name, low in (("lr", 0.0), ("epochs", 0.0)):
        _number(f"--{name}", getattr(options, name), above=low)
    _number("--warmup", options.warmup, least=0)
    for name, most in (("batch", 1e6), ("max_steps", 1e9), ("length", 1e9), ("seeds", 1e3)):
        _number(f"--{name.replace('_', '-')}", getattr(options, name), least=1, most=most, whole=True)
    _number("checkpoint_steps", options.checkpoint_steps, least=1, whole=True)
    _number("--first-seed", options.first_seed, least=0, whole=True)
    if options.first_seed + options.seeds > 2**32:
        raise StratoscopeError(f"expected seeds below 2^32, got {options.first_seed + options.seeds - 1}")
    if options.warmup is not None and options.warmup > 1 and options.warmup != int(options.warmup):
        raise StratoscopeError(
            f"expected --warmup as a whole number of steps, or a share of the run below 1; got {options.warmup:g}"
        )
    if options.epochs is not None or options.max_steps is not None:
        recipe = replace(recipe, epochs=options.epochs, max_steps=options.max_steps)
    own = {name: getattr(options, name) for name in ("lr", "batch", "warmup", "length")}
    return replace(recipe, **{name: value for name, value in own.items() if value is not None})


def _number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StratoscopeError(f"expected {name} as a number, got '{value}'")
    if whole and value != int(value):
        raise StratoscopeError(f"expected {name} as a whole number, got {value}")
    if value < least:
        raise StratoscopeError(f"expected {name} of at least {least:g}, got {value:g}")
    if value > most:
        raise StratoscopeError(f"expected {name} of at most {most:,.0f}, got {value:,}")
    if value <= above:
        raise StratoscopeError(f"expected {name} above {above:g}, got {value:g}")
