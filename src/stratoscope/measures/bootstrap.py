"""Intervals: how much would a score move had other sentences been drawn?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.measure import Item
from stratoscope.measures.score import Setting, run_parts, score_layers
from stratoscope.measures.table import Request, parse
from stratoscope.statistics.rows import LayerRows, MemoryRows, count, gather

Interval = tuple[Tensor, Tensor]


def bootstrap(
    rows: LayerRows,
    sentence: Tensor,
    wanted: Sequence[Request],
    values: dict[str, Tensor],
    *,
    replicates: int,
    setting: Setting,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile intervals over resampled sentences, by the request's name.

    Rows of one sentence are drawn together. A resample repeats rows, which lifts most similarities a little (they act
    as fewer rows), so its percentiles are taken about its own mean and laid around the score, within its bounds.
    """
    if replicates < 20:
        raise StratoscopeError(f"expected at least 20 bootstrap replicates for a 95 % interval, got {replicates}")
    width = sum(rows.chunk(k, 0).shape[1] for k in range(rows.layers))
    need = 2 * count(rows) * width * 4 * setting.engine.workers
    if need > setting.memory:
        raise StratoscopeError(
            f"resamples of {count(rows)} rows of all layers are held in memory: {need / 1e9:.1f} GB, but --memory is"
            f" {setting.memory / 1e9:.1f} GB; give fewer rows with --limit, or more memory"
        )
    names = [r.name for r in wanted]
    items = [
        {"rows": rows, "sentence": sentence, "measures": names, "seed": setting.seed, "replicate": b}
        for b in range(replicates)
    ]
    done = run_parts(_replicate, items, "bootstrap", setting, "bootstrap over sentences")
    tail = 100 * (1 - level) / 2
    intervals = {}
    for request in wanted:
        drawn = torch.stack([part[request.name] for part in done]).numpy()
        low, high = np.percentile(drawn - drawn.mean(0), [tail, 100 - tail], axis=0)
        score, bounds = values[request.name], request.measure.bounds
        low, high = ((score + torch.from_numpy(end)).clamp(*bounds) for end in (low, high))
        intervals[request.name] = (low, high)
    return intervals


def _replicate(item: Item) -> dict[str, Tensor]:
    """Scores of one resample of the sentences."""
    rows, sentence = item["rows"], item["sentence"]
    starts = torch.cat([torch.tensor([0]), sentence.diff().nonzero().flatten() + 1, torch.tensor([len(sentence)])])
    generator = np.random.default_rng([item["seed"], item["replicate"]])
    drawn = generator.integers(len(starts) - 1, size=len(starts) - 1)
    index = torch.cat([torch.arange(int(starts[s]), int(starts[s + 1])) for s in drawn])
    resampled = MemoryRows(
        [gather(rows, k, index) for k in range(rows.layers)], [rows.eps(k) for k in range(rows.layers)]
    )
    wanted = [parse(name) for name in item["measures"]]
    scoring = score_layers(resampled, wanted, Setting(seed=item["seed"]))
    return {name: s.values for name, s in scoring.scored.items()}
