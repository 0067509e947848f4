"""How often the 95 % interval of a claim about neurons holds the true value, on planted data.

Two models whose neurons hold a tag alike: the true difference of the bottom neurons' accuracies and of the salient
neurons' mean depths is 0. Each round draws sentences, ranks and trains on them and on 20 resamples as a study does
(the penalties are fixed). `python bench/probe_coverage.py [rounds] [sentences]`
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from stratoscope.core.value import BIASED, BOOTSTRAP, Interval, spread
from stratoscope.probes import streamed
from stratoscope.statistics.rows import MemoryRows
from stratoscope.studies.probing import work
from stratoscope.studies.probing.neurons import RERANKED
from stratoscope.studies.probing.resamples import Resamples
from stratoscope.studies.probing.work import Shared, resampled_neurons

LAYERS, WIDTH, WORDS, PAIR, SHARE, SALIENT = 4, 12, 6, 27, 0.25, 10
"""Words of a sentence; number of the pair of penalties in the grid; shares and numbers of neurons as in a study."""


def drawn_model(strength: torch.Tensor, tags: dict[str, torch.Tensor], generator: torch.Generator) -> Shared:
    """One model's neurons: the tag times their strength, and noise that a sentence's words share in part."""
    rows = {}
    for split, y in tags.items():
        noise = torch.randn(LAYERS, len(y), WIDTH, generator=generator)
        noise += torch.randn(LAYERS, len(y) // WORDS, WIDTH, generator=generator).repeat_interleave(WORDS, 1)
        rows[split] = MemoryRows(list(noise + strength[:, None] * (2 * y[:, None] - 1)))
    return Shared(rows, tags, tags, 2, 1e-2, 0)  # type: ignore[arg-type]


def whole(model: Shared, words: torch.Tensor, item: dict[str, Any]) -> Any:
    """The same on all sentences, each once."""
    with patch.object(work, "resampled_rows", lambda of, seed: torch.ones(int(of.sum()), dtype=torch.int16)):
        return resampled_neurons(([model], words), {**item, "resample": 0})


def differences(sentences: int, generator: torch.Generator) -> np.ndarray:
    """(1 + resamples, 2) bottom accuracy and mean depth of one model less the other's."""
    tags = {s: torch.randint(2, (WORDS * sentences,), generator=generator) for s in ("train", "test")}
    words = torch.full((sentences,), WORDS)
    strength = torch.linspace(0.0, 0.6, LAYERS * WIDTH)[torch.randperm(LAYERS * WIDTH, generator=generator)]
    resamples, of_models = Resamples(np.repeat(np.arange(sentences), WORDS), 0), []
    for _ in range(2):
        model = drawn_model(strength.view(LAYERS, WIDTH), tags, generator)
        item = {"model": 0, "layers": list(range(LAYERS)), "ranking": "weights", "pair": PAIR}
        item |= {"share": SHARE, "salient": SALIENT}
        parts = [whole(model, words, item)] + [
            resampled_neurons(([model], words), {**item, "resample": k}) for k in range(RERANKED)
        ]
        right = np.stack([p["bottom"].numpy() for p in parts])
        values, drawn = resamples.shares(right)
        bottom = np.r_[values[0], drawn[: len(right) - 1, 1:].diagonal()]
        depth = np.stack([p["by_layer"].double().numpy() for p in parts]) @ np.arange(LAYERS) / LAYERS / SALIENT
        of_models.append(np.stack([bottom, depth], axis=1))
    return np.asarray(of_models[0] - of_models[1])


def main(rounds: int, sentences: int) -> None:
    torch.set_num_threads(1)
    streamed.FEWEST_STEPS = 60
    generator = torch.Generator().manual_seed(0)
    every = np.stack([differences(sentences, generator) for _ in range(rounds)])
    for method in (BIASED, BOOTSTRAP):
        ends = [spread(d[0], d[1:], Interval(0.95, method, sentences)) for d in every]
        inside = np.mean([(low <= 0) & (high >= 0) for low, high in ends], axis=0)
        width = np.mean([high - low for low, high in ends], axis=0)
        for k, name in enumerate(("bottom accuracy", "mean depth")):
            print(
                f"{method}, {name}: holds the true 0 in {inside[k]:.1%} of {rounds} rounds, mean width {width[k]:.3f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, int(sys.argv[2]) if len(sys.argv) > 2 else 60)
