"""What is computed for one layer, or for the neurons of all layers: plain data in, tensors out, on any engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.probes.codelength import online_code
from stratoscope.probes.features import Features
from stratoscope.probes.neurons import RANKINGS, entry_shares, masked, nested, rank_by_weight, subset
from stratoscope.probes.objective import Penalties, accuracy, predict
from stratoscope.probes.published import train
from stratoscope.probes.solve import solve
from stratoscope.probes.streamed import pull, stream
from stratoscope.statistics.rows import CHUNK, FileRows, Repeated, StoredRows

SEEDS = 3
"""Runs of the published schedule."""
GRID_SHARE = 0.2
"""Share of the neurons that the penalties are chosen with (Durrani et al. 2021, A.7)."""
STEP = 0.01
"""Steps of the minimal set, up to `GRID_SHARE`."""
STREAMED_VALUES = 2e7
"""Weights trained side by side over all layers: as many as memory holds several times."""
PASSES = 60
"""Passes over a subset of the neurons."""
SHOWN, CONTEXTS = 20, 5
"""Neurons whose words are shown, and words of each."""


@dataclass(frozen=True)
class Shared:
    """One model's rows with both tag sets, as plain data."""

    rows: dict[str, StoredRows]
    """By split."""
    tags: dict[str, Tensor]
    control: dict[str, Tensor]
    classes: int
    gap: float
    seed: int

    def features(self, split: str, layers: tuple[int, ...], *, control: bool = False) -> Features:
        return Features(self.rows[split], layers, (self.control if control else self.tags)[split], self.classes)


def choose(dev: Tensor, penalties: Penalties) -> int:
    """The pair with the highest value; of equals the one with the strongest l1, then l2: the sparsest."""
    best = (dev >= dev.max() - 1e-12).nonzero().flatten().tolist()
    return int(max(best, key=lambda k: (float(penalties.l1[k]), float(penalties.l2[k]))))


def right(features: Features, weight: Tensor, bias: Tensor) -> Tensor:
    """(n,) whether the first probe gives each row its tag."""
    return predict(features, weight, bias)[:, 0] == features.tags


def stopped(gap: Tensor, aim: float) -> float:
    """How many probes ended at their cap of passes before they were within the gap."""
    return float((gap > aim).sum())


def solved_layer(models: list[Shared], item: dict[str, Any]) -> dict[str, Tensor]:
    """The probe of one layer and its control task, solved; everything the curves need."""
    of, layer = models[item["model"]], (item["layer"],)
    grid = Penalties.grid()
    fit = solve(of.features("train", layer), grid, gap=of.gap)
    dev = accuracy(of.features("dev", layer), fit.weight, fit.bias)
    k = choose(dev, grid)
    one = grid[torch.tensor([k])]
    control = solve(of.features("train", layer, control=True), one, gap=of.gap, passes=PASSES)
    bits = online_code(of.features("train", layer), one, gap=of.gap)
    return {
        "right": right(of.features("test", layer), fit.weight[..., k : k + 1], fit.bias[:, k : k + 1])[None],
        "control": right(of.features("test", layer, control=True), control.weight, control.bias)[None],
        **numbers(
            dev_accuracy=float(dev[k]),
            l1=float(one.l1[0]),
            l2=float(one.l2[0]),
            gap=float(fit.gap.max()),
            certified=float(fit.certified.double().mean()),
            stopped=stopped(torch.cat([fit.gap, control.gap]), of.gap),
            bits=bits / len(of.tags["train"]),
        ),
    }


def numbers(**values: float) -> dict[str, Tensor]:
    """Numbers of a layer, by the names that `LayerProbes` gives them."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def published_layer(models: list[Shared], item: dict[str, Any]) -> dict[str, Tensor]:
    """The same by the published schedule, once per seed; the pair is best on average over the seeds."""
    of, layer = models[item["model"]], (item["layer"],)
    grid = Penalties.grid()
    fits = [train(of.features("train", layer), grid, seed=of.seed + s) for s in range(SEEDS)]
    dev = torch.stack([accuracy(of.features("dev", layer), f.weight, f.bias) for f in fits]).mean(0)
    k = choose(dev, grid)
    one = grid[torch.tensor([k])]
    controls = [train(of.features("train", layer, control=True), one, seed=of.seed + s) for s in range(SEEDS)]
    test, test_control = of.features("test", layer), of.features("test", layer, control=True)
    bits = float(torch.stack([f.bits[k] for f in fits]).mean()) / len(of.tags["train"])
    return {
        "right": torch.stack([right(test, f.weight[..., k : k + 1], f.bias[:, k : k + 1]) for f in fits]),
        "control": torch.stack([right(test_control, f.weight, f.bias) for f in controls]),
        **numbers(
            dev_accuracy=float(dev[k]), l1=float(one.l1[0]), l2=float(one.l2[0]),
            gap=math.nan, certified=math.nan, stopped=math.nan, bits=bits,
        ),
    }  # fmt: skip


def scored_pairs(shared: tuple[list[Shared], Tensor], item: dict[str, Any]) -> dict[str, Tensor]:
    """(1 + resamples, pairs) scores by which the penalties for neurons are chosen: on dev, then on resamples of it.

    Twice (A_top - A_bottom) / 2 - (A_0 - A_all) / 2: A_top and A_bottom keep the most and the least salient fifth
    without training again, A_0 is without penalties (Dalvi et al. 2019). The words of each dev sentence come with
    `shared`.
    """
    of, words, layers = shared[0][item["model"]], shared[1], tuple(item["layers"])
    data, dev, grid = of.features("train", layers), of.features("dev", layers), Penalties.grid()
    drawn = (times_drawn(len(words), [of.seed, k, 1]) for k in range(item["resamples"]))
    times = torch.stack([torch.ones(len(words), dtype=torch.int16), *(torch.from_numpy(t).short() for t in drawn)])
    together = max(1, int(STREAMED_VALUES // (data.width * of.classes)))
    bare, points = torch.zeros(0), list[Tensor]()
    for some in torch.split(torch.arange(len(grid)), together):
        weight, bias = stream(data, grid[some], seed=of.seed)
        orders = [rank_by_weight(weight[..., p]) for p in range(len(some))]
        top, bottom = (
            torch.stack([masked(weight[..., p], subset(o, GRID_SHARE, which)) for p, o in enumerate(orders)], -1)
            for which in ("top", "bottom")
        )
        of_all, of_top, of_bottom = (right_on_draws(dev, w, bias, words, times) for w in (weight, top, bottom))
        bare = bare if points else of_all[:, :1]  # the first pair of the grid has no penalty
        points.append(of_top - of_bottom - bare + of_all)
    return {"scores": torch.cat(points, 1) / (times.double() @ words.double())[:, None]}


def right_on_draws(features: Features, weight: Tensor, bias: Tensor, words: Tensor, times: Tensor) -> Tensor:
    """(draws, P) rows that every probe gives their tag, each as often as `times` (draws, sentences) has its sentence.

    Summed chunk by chunk: words of a sentence come one after the other.
    """
    right, ends = torch.zeros(len(times), bias.shape[1], dtype=torch.float64), words.long().cumsum(0)
    for start in range(0, len(features), CHUNK):
        some = features.between(start, min(start + CHUNK, len(features)))
        given = predict(some, weight, bias) == features.tags[start : some.stop, None]
        sentence = torch.searchsorted(ends, torch.arange(start, start + len(given)), right=True)
        right += times[:, sentence].double() @ given.double()
    return right


def ranked_neurons(models: list[Shared], item: dict[str, Any]) -> dict[str, Tensor]:
    """Weights of a probe on all neurons of all layers, and the ranking."""
    of = models[item["model"]]
    data = of.features("train", tuple(item["layers"]))
    weight, bias = stream(data, Penalties.grid()[[item["pair"]]], seed=of.seed)
    near = pull(data, weight, bias)
    order = RANKINGS[item["ranking"]](data, weight[..., 0], near)
    return {"weight": weight, "bias": bias, "ranking": order, **tags_of(weight[..., 0], near)}


def tags_of(weight: Tensor, near: Tensor) -> dict[str, Tensor]:
    """The tag for which each neuron enters first, and its share of that tag's weight mass.

    Of equals the tag with the largest share; for a neuron without any weight the one it is nearest to.
    """
    size, entry = weight.abs(), entry_shares(weight)
    share = size / size.sum(0).clamp(min=1e-30)
    tag = torch.where(entry == entry.amin(1, keepdim=True), share, -1.0).argmax(1)
    tag = torch.where(size.amax(1) > 0, tag, near.argmax(1))
    return {"tag": tag, "mass": share.gather(1, tag[:, None])[:, 0]}


def held(features: Features) -> Features:
    """The chosen columns in a file of their own, so that a pass does not read all layers; all where disks are full."""
    rows = FileRows.of((x for x, _ in features.chunks()), len(features), features.width)
    return features if rows is None else replace(features, rows=rows, layers=(0,), columns=None)


def probed_neurons(shared: tuple[list[Shared], list[dict[str, Tensor]]], item: dict[str, Any]) -> dict[str, Tensor]:
    """Probes on subsets of the neurons: the first 1, 2 ... %; the top, bottom and random share; ablations; control."""
    of, ranked, layers = shared[0][item["model"]], shared[1][item["model"]], tuple(item["layers"])
    data, dev, test = (of.features(split, layers) for split in ("train", "dev", "test"))
    order, weight, bias = ranked["ranking"], ranked["weight"], ranked["bias"]
    one = Penalties.grid()[[item["pair"]]]
    oracle = float(accuracy(dev, weight, bias)[0])
    steps = [round(STEP * (k + 1), 4) for k in range(round(GRID_SHARE / STEP))]
    sizes = [max(1, round(share * len(order))) for share in steps]
    first = order[: sizes[-1]]
    pairs = Penalties(one.l1.expand(len(sizes)).clone(), one.l2.expand(len(sizes)).clone())
    grown = solve(held(data.select(first)), pairs, gap=of.gap, passes=PASSES, forbidden=nested(len(first), sizes))
    dev_accuracy = accuracy(dev.select(first), grown.weight, grown.bias)
    near = (dev_accuracy >= oracle - item["delta"] - 1e-9).nonzero().flatten()
    enough = int(near[0]) if len(near) else len(sizes) - 1
    minimal = first[: sizes[enough]]
    tensors = {
        "oracle": right(test, weight, bias),
        "minimal": right(
            test.select(first), grown.weight[..., enough : enough + 1], grown.bias[:, enough : enough + 1]
        ),
    }
    gaps = [grown.gap]
    for which in ("top", "bottom", "random"):
        chosen = subset(order, item["share"], which, seed=of.seed)
        fit = solve(held(data.select(chosen)), one, gap=of.gap, passes=PASSES)
        gaps.append(fit.gap)
        tensors[which] = right(test.select(chosen), fit.weight, fit.bias)
    control, test_control = (of.features(split, layers, control=True) for split in ("train", "test"))
    tensors["oracle_control"] = right(test_control, *stream(control, one, seed=of.seed))
    fit = solve(held(control.select(minimal)), one, gap=of.gap, passes=PASSES)
    gaps.append(fit.gap)
    tensors["minimal_control"] = right(test_control.select(minimal), fit.weight, fit.bias)
    kept = [subset(order, share, which) for share, which in ((item["share"], "top"), (item["share"], "bottom"))]
    kept.append(subset(order, 1 - item["share"], "bottom"))
    ablated = torch.stack([masked(weight[..., 0], which) for which in kept], -1)
    return {
        **tensors,
        "ablated": accuracy(test, ablated, bias.expand(-1, 3)),
        "gaps": torch.cat(gaps),
        "steps": torch.tensor(steps, dtype=torch.float64),
        "step_accuracy": dev_accuracy,
        "dev_oracle": torch.tensor(oracle, dtype=torch.float64),
        "minimal_size": torch.tensor(sizes[enough] if len(near) else 0),
        "most": torch.tensor(sizes[-1]),
        "words": farthest_rows(test.select(order[:SHOWN])),
    }


def resampled_neurons(shared: tuple[list[Shared], Tensor], item: dict[str, Any]) -> dict[str, Tensor]:
    """Salient neurons by layer and what the bottom ones know, ranked and trained on a resample of training sentences.

    The resample is the same for every model, so that differences between models are paired.
    """
    of, layers = shared[0][item["model"]], tuple(item["layers"])
    times = resampled_rows(shared[1], [of.seed, item["resample"]])
    whole, one = of.features("train", layers), Penalties.grid()[[item["pair"]]]
    data = replace(whole, rows=Repeated(whole.rows, times), tags=repeated(whole.tags, times))
    weight, bias = stream(data, one, seed=of.seed)
    order = RANKINGS[item["ranking"]](data, weight[..., 0], pull(data, weight, bias))
    bottom = subset(order, item["share"], "bottom")
    fit = solve(held(data.select(bottom)), one, gap=of.gap, passes=PASSES)
    return {
        "by_layer": torch.bincount(order[: item["salient"]] // (len(order) // len(layers)), minlength=len(layers)),
        "bottom": right(of.features("test", layers).select(bottom), fit.weight, fit.bias),
    }


def resampled_rows(words: Tensor, seed: list[int]) -> Tensor:
    """How often each row is in a resample of as many sentences, which have so many words."""
    return torch.from_numpy(times_drawn(len(words), seed)).short().repeat_interleave(words.long())


def repeated(values: Tensor, times: Tensor) -> Tensor:
    """Every value so many times; torch takes these as int64 only, which all at once would take more than the values."""
    parts = zip(torch.split(values, CHUNK), torch.split(times, CHUNK), strict=True)
    return torch.cat([v.repeat_interleave(t.long()) for v, t in parts])


def times_drawn(sentences: int, seed: list[int]) -> npt.NDArray[np.int64]:
    """How often each sentence is in a resample of as many."""
    return np.random.default_rng(seed).multinomial(sentences, np.full(sentences, 1 / sentences))


def farthest_rows(features: Features) -> Tensor:
    """(neurons, words) rows at which each neuron is farthest from its mean, the farthest first; ties by row."""
    total, n = torch.zeros(features.width, dtype=torch.float64), 0
    for x, _ in features.chunks():
        total, n = total + x.sum(0, dtype=torch.float64), n + len(x)
    best, rows, start = torch.full((features.width, 0), 0.0), torch.zeros(features.width, 0, dtype=torch.int64), 0
    for x, _ in features.chunks():
        far = (x - (total / n).float()).abs().T
        best = torch.cat([best, far], dim=1)
        rows = torch.cat([rows, torch.arange(start, start + len(x)).expand(features.width, -1)], dim=1)
        place = best.argsort(dim=1, descending=True, stable=True)[:, :CONTEXTS]
        best, rows, start = best.gather(1, place), rows.gather(1, place), start + len(x)
    return rows
