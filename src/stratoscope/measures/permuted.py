"""Chance levels of word and token rows: what the layers at hand score once the sentences of one are permuted.

Rows of one sentence are alike, so unrelated layers that both see the sentence score more than on independent rows, for
which `chance` has levels: debiased CKA is then not about 0 either. Permuting whole sentences of like length keeps what
rows of a sentence, and rows at one place in it, have in common, and breaks every other tie between two layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.measure import Item
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import Request, parse
from stratoscope.runs.run import Run, Tensors
from stratoscope.statistics.cross import Pairing
from stratoscope.statistics.rows import LayerRows, MemoryRows, gather

DRAWS = 19
"""Number of permutations: an unrelated pair exceeds the largest of so many scores in one case of 20."""
MOST_ROWS = 10_000
"""Rows of a permutation at most, in whole sentences. Fewer rows than were compared never make a level too low."""


def permuted_chance(
    rows: LayerRows,
    sentence: Tensor,
    wanted: Sequence[Request],
    *,
    pairs: Sequence[Pairing] | None = None,
    draws: int = DRAWS,
    most_rows: int = MOST_ROWS,
    run: Run | None = None,
    key: Any = None,
    seed: int = 0,
) -> dict[str, float]:
    """Chance level of each request, by its name: the largest score of `draws` pairs of layers, one of them permuted.

    `sentence` (n) has one number per row, the same for neighbouring rows of one sentence. Each draw takes one of the
    `pairs` (by default any two layers) and a permutation of its own; both directions count. NaN if no drawn layer
    varies.
    """
    run = run or Run()
    candidates = list(pairs or combinations(range(rows.layers), 2)) or [(0, 0)]
    order = np.random.default_rng(seed).permutation(len(candidates))
    names = [r.name for r in wanted]
    items = [
        {"measures": names, "pair": candidates[order[k % len(order)]], "draw": k, "most_rows": most_rows, "seed": seed}
        for k in range(draws)
    ]
    shared = {"rows": rows, "sentence": sentence, "memory": run.memory / run.engine.workers}
    parts = run.map(_draw, items, name="chance", key=key, label="chance level", shared=shared)
    scores = {name: torch.cat([part[name] for part in parts]) for name in names}
    return {name: float(s[~s.isnan()].max()) if not s.isnan().all() else math.nan for name, s in scores.items()}


def matched_rows(sentence: Tensor, generator: np.random.Generator, most_rows: int) -> tuple[Tensor, Tensor]:
    """Rows of sentences drawn at random, and for each a row at the same place of another sentence of like length.

    No sentence meets itself, and each is met once. Lengths are equal but for those that only one sentence has: these
    meet the next in length, and what the longer has more is left out.
    """
    lengths = torch.unique_consecutive(sentence, return_counts=True)[1].numpy()
    if len(lengths) < 2:
        raise StratoscopeError(
            f"expected at least 2 sentences to permute for a chance level, got {len(lengths)}; add sentences"
        )
    starts = np.cumsum(lengths) - lengths
    drawn = generator.permutation(len(lengths))
    drawn = drawn[: max(2, int((np.cumsum(lengths[drawn]) <= most_rows).sum()))]
    meets = np.empty(len(lengths), dtype=np.int64)
    for group in _of_like_length(drawn, lengths):
        meets[group] = np.roll(group, int(generator.integers(1, len(group))))
    drawn = np.sort(drawn)
    common = np.minimum(lengths[drawn], lengths[meets[drawn]])
    place = np.arange(common.sum()) - np.repeat(np.cumsum(common) - common, common)
    own, other = (torch.from_numpy(np.repeat(starts[s], common) + place) for s in (drawn, meets[drawn]))
    return own, other


def _of_like_length(drawn: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The sentences, in random order within a length, in groups of at least two."""
    groups: list[list[int]] = []
    for s in drawn[np.argsort(lengths[drawn], kind="stable")].tolist():
        if groups and (len(groups[-1]) == 1 or lengths[s] == lengths[groups[-1][-1]]):
            groups[-1].append(s)
        else:
            groups.append([s])
    if len(groups[-1]) == 1:
        alone = groups.pop()
        groups[-1] += alone
    return groups


def _draw(shared: Any, item: Item) -> Tensors:
    """Scores, in both directions, of a pair of layers whose sentences do not match."""
    rows, (x, y) = shared["rows"], item["pair"]
    generator = np.random.default_rng([item["seed"], item["draw"]])
    own, other = matched_rows(shared["sentence"], generator, item["most_rows"])
    losses = [rows.loss(x), rows.loss(y)]
    both = MemoryRows([gather(rows, x, own), gather(rows, y, other)], [rows.eps(x), rows.eps(y)], losses)
    requested = [parse(name) for name in item["measures"]]
    scoring = score_layers(both, requested, run=Run(memory=shared["memory"]), seed=item["seed"])
    return {name: torch.stack([s.values[0, 1], s.values[1, 0]]) for name, s in scoring.scored.items()}
