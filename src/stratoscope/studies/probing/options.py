"""How to probe."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, batch_tokens, memory, option, overwrite, parse_layers, seed


@dataclass(frozen=True)
class ProbeOptions(Working):
    """How to probe layers and neurons: flags, YAML keys and keywords are these fields."""

    columns: str | None = option(None, "Columns of a column file, e.g. 'word pos chunk'.", answer=False)
    limit: int | None = option(None, "Use a random sample of N sentences of each split.", answer=False, least=1)
    layers: tuple[int, ...] | None = option(
        None, "Only these layers, e.g. '0,3-6'; 0 = embeddings.", parse=parse_layers
    )
    subword: str = option("last", "Sub-word that stands for a word: last, first or mean.")
    solver: str = option("solved", "solved (to --gap), or published (Adam, 10 epochs, three seeds; solved beside it).")
    gap: float = option(1e-2, "How far above its optimum a probe's objective may stay.", least=1e-6)
    neurons: bool = option(False, "Probe all layers together: rank neurons, minimal set, top and bottom, spread.")
    ranking: str = option("weights", "Ranking of neurons: weights, probeless, gaussian or iou.")
    share: float = option(0.05, "Share of the neurons taken as top and as bottom.", least=1e-4)
    delta: float = option(0.01, "How far below all neurons the minimal set may stay.", least=0)
    seed: int = seed()
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()
