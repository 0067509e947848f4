"""The neurons of all layers of every model: ranked, probed in subsets, ranked anew on resamples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.probes.objective import Penalties
from stratoscope.results.probing import Neuron, NeuronProbes
from stratoscope.runs.run import Run
from stratoscope.studies.probing.plan import Plan
from stratoscope.studies.probing.resamples import Resamples, value_of
from stratoscope.studies.probing.work import (
    SHOWN,
    Shared,
    choose,
    probed_neurons,
    ranked_neurons,
    resampled_neurons,
    scored_pairs,
)

RERANKED = 20
"""Resamples of the sentences on which neurons are ranked anew."""
NEIGHBOURS = 4
"""Words shown on either side of a word in context."""


def neuron_probes(plan: Plan, shared: list[Shared], resamples: Resamples, running: Run, key: Any) -> list[NeuronProbes]:
    """The ranked neurons of every model.

    All take the penalties and the number of salient neurons of the first, the base: no difference between models is
    one of these (Durrani et al. 2021, Tables 7 and 8 have one for a task and kind of model). On resamples all is done
    anew but that number: penalties are chosen on resampled development sentences, neurons ranked and the bottom ones
    trained on training sentences, and scored on test sentences. Data and choices are both sources of variance
    (Bouthillier et al. 2021).
    """
    options = plan.options
    items: list[dict[str, Any]] = [
        {"model": m, "layers": list(range(len(plan.layers(surveyed)))), "ranking": options.ranking}
        for m, (_, surveyed) in enumerate(plan.models)
    ]
    train, dev = (torch.from_numpy(words_by_sentence(plan.rows[split].sentence)) for split in ("train", "dev"))
    (scored,) = running.map(
        scored_pairs,
        [{**items[0], "resamples": RERANKED}],
        name="pairs",
        label="choosing penalties for neurons",
        shared=(shared, dev),
        key=key,
    )
    pair, *pairs = (choose(scores, Penalties.grid()) for scores in scored["scores"])
    items = [{**item, "pair": pair} for item in items]
    ranked = running.map(ranked_neurons, items, name="ranking", label="ranking neurons", shared=shared, key=key)
    items = [{**item, "share": options.share, "delta": options.delta} for item in items]
    probed = running.map(
        probed_neurons, items, name="neurons", label="probes of neurons", shared=(shared, ranked), key=key
    )
    salient = int(probed[0]["minimal_size"] or probed[0]["most"])
    drawn = running.map(
        resampled_neurons,
        [{**item, "salient": salient, "resample": k, "pair": pairs[k]} for item in items for k in range(RERANKED)],
        name="reranked",
        label="ranking neurons on resamples",
        shared=(shared, train),
        key=key,
    )
    return [
        _probes(plan, item, {**ranked[m], **probed[m]}, drawn[m * RERANKED : (m + 1) * RERANKED], salient, resamples)
        for m, item in enumerate(items)
    ]


def _probes(
    plan: Plan,
    item: Mapping[str, Any],
    parts: Mapping[str, Tensor],
    reranked: Sequence[Mapping[str, Tensor]],
    salient: int,
    resamples: Resamples,
) -> NeuronProbes:
    spec, surveyed = plan.models[item["model"]]
    names = ("oracle", "top", "bottom", "random", "minimal", "oracle_control", "minimal_control")
    values, drawn = resamples.shares(parts[name].numpy() for name in names)
    of = {name: value_of(values[k], drawn[:, k]) for k, name in enumerate(names)}
    order, tag = parts["ranking"].numpy(), parts["tag"].numpy()
    layers, width, one = plan.layers(surveyed), surveyed.width, Penalties.grid()[[item["pair"]]]
    counts = np.zeros((len(layers), len(plan.corpus.tags)))
    np.add.at(counts, (order[:salient] // width, tag[order[:salient]]), 1)
    first = tuple(
        Neuron(
            layers[int(k) // width],
            int(k) % width,
            plan.corpus.tags[tag[k]],
            float(parts["mass"][k]),
            tuple(in_context(plan, int(row)) for row in parts["words"][place]),
        )
        for place, k in enumerate(order[:SHOWN])
    )
    keep_top, keep_bottom, zero_top = parts["ablated"].tolist()
    return NeuronProbes(
        model=spec.label, width=width, layers=layers, ranking=order.astype(np.float64),
        weights=parts["weight"][..., 0].numpy(), tag=tag.astype(np.float64), first=first,
        l1=float(one.l1), l2=float(one.l2),
        oracle=of["oracle"], oracle_selectivity=value_of(values[0] - values[5], drawn[:, 0] - drawn[:, 5]),
        share=plan.options.share, top=of["top"], bottom=of["bottom"], random=of["random"],
        keep_top=keep_top, keep_bottom=keep_bottom, zero_top=zero_top,
        steps=parts["steps"].numpy(), step_accuracy=parts["step_accuracy"].numpy(),
        dev_oracle=float(parts["dev_oracle"]), delta=plan.options.delta,
        minimal=int(parts["minimal_size"]), minimal_accuracy=of["minimal"],
        minimal_selectivity=value_of(values[4] - values[6], drawn[:, 4] - drawn[:, 6]),
        counts=counts,
        resampled=np.stack([r["by_layer"].double().numpy() for r in reranked]),
        bottom_resampled=resamples.shares(r["bottom"].numpy() for r in reranked)[1].diagonal().copy(),
        gaps=parts["gaps"].numpy(),
    )  # fmt: skip


def words_by_sentence(sentence: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """How many of the rows, given by their sentences in order, each sentence with rows has."""
    first = np.flatnonzero(np.diff(sentence, prepend=-1))
    return np.diff(first, append=len(sentence)).astype(np.int32)


def in_context(plan: Plan, row: int) -> str:
    """A test word between its neighbours of the same sentence, in brackets."""
    rows = plan.rows["test"]
    words, place = plan.corpus.splits["test"].sentences[int(rows.sentence[row])].words or (), int(rows.word[row])
    first = max(0, place - NEIGHBOURS)
    near = enumerate(words[first : place + NEIGHBOURS + 1], first)
    return " ".join(f"[{word}]" if k == place else word for k, word in near)


def unsolved_subsets(neurons: Sequence[NeuronProbes], gap: float) -> list[str]:
    """Models whose probes of subsets ended at their cap of passes."""
    return [
        f"{p.model}: {int(n)} of {len(p.gaps)} probes of subsets of the neurons stopped before they were within"
        f" {gap:g} of their optimum, at most {p.gaps.max():.3f} above it"
        for p in neurons
        if (n := (p.gaps > gap).sum())
    ]
