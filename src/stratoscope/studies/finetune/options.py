"""How to fine-tune."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, option, overwrite


@dataclass(frozen=True)
class TrainingOptions(Working):
    """How to fine-tune, whatever is left of the model; None takes the recipe's value."""

    recipe: str = option("wu2020", "phang2021, wu2020, ren2023 or quick.")
    lr: float | None = option(None, "Learning rate in place of the recipe's.")
    batch: int | None = option(None, "Batch size in place of the recipe's.")
    epochs: float | None = option(
        None, "Epochs in place of the recipe's length; with --max-steps, whichever ends first."
    )
    max_steps: int | None = option(None, "Steps in place of the recipe's length.")
    warmup: float | None = option(None, "Warm-up steps; below 1, a share of the run.")
    length: int | None = option(None, "Truncate texts to N tokens.")
    seeds: int = option(1, "Number of runs, with seeds 0, 1, ...", work=True)
    first_seed: int = option(0, "Seed of the first run.", work=True)
    checkpoint_steps: int | None = option(
        None, "Steps between checkpoints; None = about every minute.", hidden=True, work=True
    )
    overwrite: bool = overwrite()


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """How to fine-tune: flags, YAML keys and keywords are these fields."""

    freeze: str | None = option(None, "Blocks to freeze: top:k, or bottom:k with the embeddings.")
