"""What layers and neurons know of a property of words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import BIASED, Interval, Value, Values, spread
from stratoscope.results.result import Result

SOLVED, PUBLISHED = SOLVERS = ("solved", "published")
"""To a stated gap of the objective; or 10 epochs of Adam, as the paper trains."""

NUMBERS = ("bits", "dev_accuracy", "l1", "l2", "gap", "certified", "stopped")
"""Fields of `LayerProbes` with one number per layer, besides curves."""


@dataclass(frozen=True)
class LayerProbes:
    """One model's probes, a linear one on every layer; the curves of a result share their resamples."""

    model: str
    solver: str
    """One of `SOLVERS`."""
    accuracy: Curve
    """On test words; the mean over seeds for the published schedule."""
    control: Curve
    """The same probe on the control task."""
    selectivity: Curve
    """Accuracy less accuracy on the control task."""
    bits: Values
    """Description length per training word (online code)."""
    dev_accuracy: Values
    l1: Values
    l2: Values
    """Penalties chosen on the development words."""
    gap: Values
    """Largest gap of the objective over all penalties; NaN for the published schedule."""
    certified: Values
    """Share of the penalties whose gap is a bound by duality; the others' is an estimate."""
    stopped: Values
    """Probes, of all penalties and the control task, that ended at their cap of passes above the gap; NaN likewise."""
    deviation: Values
    """Standard deviation of the accuracy over seeds; NaN for one fit."""

    def at_best(self) -> int:
        """Place of the layer with the highest accuracy."""
        return int(np.nanargmax(self.accuracy.values))

    def to_frame(self) -> pd.DataFrame:
        """One row per layer."""
        rows = {"model": self.model, "solver": self.solver, "layer": self.accuracy.layers}
        points = {
            name: getattr(curve, part)
            for curve, names in ((self.accuracy, ("accuracy", "low", "high")), (self.selectivity, ("selectivity",)))
            for name, part in zip(names, ("values", "low", "high"), strict=False)
        }
        own = {k: getattr(self, k) for k in NUMBERS}
        own |= {"deviation": self.deviation}
        return pd.DataFrame({**rows, **points, "control": self.control.values, **own})


@dataclass(frozen=True)
class Layers:
    """The probes of all models."""

    probes: tuple[LayerProbes, ...]

    def __repr__(self) -> str:
        return f"Layers({', '.join(f'{p.model} ({p.solver})' for p in self.probes)}: to_frame(), of(model))"

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html())

    def to_frame(self) -> pd.DataFrame:
        """One row per model, solver and layer."""
        return pd.concat([p.to_frame() for p in self.probes], ignore_index=True)

    def of(self, model: str, solver: str = SOLVED) -> LayerProbes:
        """One model's probes."""
        for probe in self.probes:
            if (probe.model, probe.solver) == (model, solver):
                return probe
        raise unknown_name("model with probes", model, dict.fromkeys(p.model for p in self.probes))


@dataclass(frozen=True)
class Neuron:
    """One neuron, with the words that move it most."""

    layer: int
    index: int
    """Within the layer."""
    tag: str
    """The tag for which it enters first."""
    share: float
    """Its share of the weight mass of that tag."""
    words: tuple[str, ...] = ()
    """Test words in context at which it is farthest from its mean, the word in brackets."""


@dataclass(frozen=True)
class NeuronProbes:
    """What the neurons of all layers of one model know together, ranked."""

    model: str
    width: int
    """Neurons of a layer; those of layer k are numbered from k * width in `ranking`."""
    layers: tuple[int, ...]
    ranking: Values = field(metadata={"stored": "arrays"})
    """All neurons, the most salient first."""
    weights: Values = field(metadata={"stored": "arrays"})
    """(neurons, tags): of the probe with all neurons, in the order of their numbers."""
    tag: Values = field(metadata={"stored": "arrays"})
    """(neurons,): place of the tag for which each enters first, in the order of their numbers; for one without any
    weight that to which it is nearest."""
    first: tuple[Neuron, ...]
    """The first of the ranking."""
    l1: float
    l2: float
    oracle: Value
    """Test accuracy with all neurons."""
    oracle_selectivity: Value
    share: float
    """Share of the neurons in `top`, `bottom` and `random`."""
    top: Value
    bottom: Value
    random: Value
    """Test accuracy of probes trained on these neurons alone."""
    keep_top: float
    keep_bottom: float
    zero_top: float
    """Test accuracy without training again: only these neurons, or these at 0."""
    steps: Values
    """Shares of the neurons tried for the minimal set."""
    step_accuracy: Values
    """Development accuracy of a probe on the first so many neurons."""
    dev_oracle: float
    """Development accuracy with all neurons."""
    delta: float
    """How far below `dev_oracle` the minimal set may stay."""
    minimal: int
    """Neurons of the minimal set; 0 where none of the steps came within delta of the oracle."""
    minimal_accuracy: Value
    minimal_selectivity: Value
    counts: Values
    """(layers, tags): salient neurons by layer and by the tag they enter for: for every model as many of its ranking as
    the minimal set of the base has, else as the last step."""
    resampled: Values
    """(resamples, layers): salient neurons by layer, ranked anew on resamples of the training sentences, with penalties
    chosen on resamples of the development sentences."""
    bottom_resampled: Values
    """(resamples,): accuracy of the bottom neurons of these rankings, their probes trained on the same resamples, on
    resamples of the test sentences."""
    gaps: Values
    """How far each probe of a subset of the neurons is above its optimum: the steps, top, bottom, random, control."""

    @property
    def salient(self) -> int:
        """Neurons counted by layer."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class Ranked:
    """The neurons of one model, for `top` and `by_layer`."""

    probes: NeuronProbes
    tags: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Ranked({len(self.probes.ranking):,} neurons of {self.probes.model}: top(n), by_layer(), probes)"

    def _repr_html_(self) -> str:
        return str(self.top().to_html())

    def top(self, n: int = 20, *, tag: str | None = None) -> pd.DataFrame:
        """The n most salient neurons, one row each; of one tag those of the largest |weight|, ties by number.

        With the tag for which each enters first (or the one asked for), its weight for that tag in the probe with all
        neurons, its share of the tag's weight mass, and for the first of the ranking words in context. A neuron
        without any weight for the tag asked for is not listed.
        """
        p = self.probes
        order, place = p.ranking.astype(int), p.tag.astype(int)
        if tag is not None:
            if tag not in self.tags:
                raise unknown_name("tag of this property", tag, self.tags)
            place = np.full(len(order), self.tags.index(tag))
            size = np.abs(p.weights[:, place[0]])
            order = np.argsort(-size, kind="stable")[: int((size > 0).sum())]
        order = order[: max(n, 0)]
        weight = p.weights[order, place[order]].astype(np.float64)
        mass = np.abs(p.weights).sum(axis=0, dtype=np.float64)[place[order]]
        words = {(one.layer, one.index): one.words for one in p.first}
        frame = pd.DataFrame(
            {
                "layer": np.array(p.layers)[order // p.width],
                "index": order % p.width,
                "tag": [self.tags[k] for k in place[order]],
                "weight": weight,
                "share": np.abs(weight) / np.maximum(mass, 1e-30),
            }
        )
        frame["words"] = [words.get(where, ()) for where in zip(frame["layer"], frame["index"], strict=True)]
        return frame

    def by_layer(self) -> pd.DataFrame:
        """How many salient neurons each layer has, by the tag they enter for (Durrani et al. 2021, Fig. 2 and 3)."""
        layers = pd.Index(self.probes.layers, name="layer")
        return pd.DataFrame(self.probes.counts.astype(int), index=layers, columns=list(self.tags))


@dataclass(frozen=True)
class Probing(Result):
    """What every layer, and the neurons of all layers together, know of a property of words."""

    KIND = "probing"

    models: tuple[ModelInfo, ...]
    """The first is the base of the others, where there are several."""
    data: Mapping[str, Any]
    """Corpus, property, fingerprint, and of each split where it is from, its sentences and words."""
    tags: tuple[str, ...]
    tag_words: tuple[int, ...]
    """Training words of each tag."""
    majority: Value
    """Always the commonest tag."""
    by_word: Value
    """Each word's commonest tag in training."""
    layers: Layers
    neuron_probes: tuple[NeuronProbes, ...] = ()

    def __repr__(self) -> str:
        what = "layers and neurons" if self.neuron_probes else "layers"
        return f"Probing({self.data.get('property')}: {what} of {', '.join(m.name for m in self.models)})"

    def neurons(self, model: str) -> Ranked:
        """The ranked neurons of one model."""
        if not self.neuron_probes:
            raise StratoscopeError("the neurons of this result were not ranked; probe with neurons=True (--neurons)")
        for probes in self.neuron_probes:
            if probes.model == model:
                return Ranked(probes, self.tags)
        raise unknown_name("model with ranked neurons (--neurons)", model, (p.model for p in self.neuron_probes))

    def depths(self, model: str) -> Values:
        """(1 + resamples,) mean depth of a model's salient neurons: on all sentences, then on resamples."""
        probes = self.neurons(model).probes
        info = next(m for m in self.models if m.name == model)
        by_layer = np.concatenate([probes.counts.sum(axis=1)[None], probes.resampled])
        means: Values = by_layer @ np.array([info.depth(k) for k in probes.layers]) / by_layer.sum(axis=1)
        return means

    def mean_depth(self, model: str) -> Value:
        """The mean depth with its interval over the sentences that choose, rank and train."""
        depths = self.depths(model)
        low, high = spread(depths[0], depths[1:], self.over_splits)
        return Value(float(depths[0]), float(low), float(high))

    @property
    def over_splits(self) -> Interval:
        """What intervals over resamples of all splits are; their size is that of the smallest. Rankings jump."""
        return Interval(0.95, BIASED, min(self.data["sentences"].values()))
