"""Claims of Wu et al. 2020, Similarity Analysis of Contextual Word Representation Models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np

from stratoscope.claims.claim import (
    CLEAR_DIFFERENCE,
    FEW_LAYERS,
    FEWEST_LAYERS,
    MISSING,
    ONE_POINT,
    OTHER_LAYERS,
    CannotTellError,
    Claim,
    Evidence,
)
from stratoscope.claims.scores import Scores, average, halves
from stratoscope.core.curve import Curve
from stratoscope.core.model import SAVED, ModelInfo
from stratoscope.core.value import PERCENTILES, Interval, Values
from stratoscope.measures.structure import (
    UNCHANGED,
    drift,
    localization_chance,
    localization_curves,
    stacked,
    unchanged,
)
from stratoscope.results.comparison import Comparison
from stratoscope.results.finetuned import Finetuned

MOSTLY = 2 / 3
"""Share of pairs of layers that must agree before a curve is said to rise with depth."""
QUANTILES = 400
"""Values that stand for a normal distribution, where a score has an interval and no replicates."""
Freezing = Mapping[str, Sequence[Finetuned]]
"""Runs of one model on one task by what was frozen, `top:4` or `bottom:4`; one run per seed."""


def _top_changes_more(scores: Scores, *, base: str, tuned: str) -> Evidence:
    curve = drift(scores.matrix, base, tuned)
    if curve is None:
        raise CannotTellError(OTHER_LAYERS, f"{base} and {tuned} were not compared at the same layers")
    lower, upper = scores.halves(base)
    similarity = 1 - stacked(curve.values, curve.replicates)
    low, high = (average(similarity[:, h.positions], f"layers {h.layers}") for h in (lower, upper))
    known = curve.values[curve.known]
    largest = int(known.argmax())
    return scores.evidence(
        raising={"low": low},
        lowering={"high": high},
        numbers={
            "drift_lower": float(1 - low[0]),
            "drift_upper": float(1 - high[0]),
            "drift_largest": float(known[largest]),
            "layer_largest": float(curve.layers[curve.known[largest]]),
        },
        words={"lower": lower.layers, "upper": upper.layers},
        note=f"practically unchanged, the drift is below {UNCHANGED} at every layer" if unchanged(curve) else "",
    )


def _lower_more_alike(scores: Scores, *, first: str, second: str) -> Evidence:
    return scores.evidence(
        raising={"similarity_lower": scores.mean_between(first, second, (0, 0))},
        lowering={"similarity_upper": scores.mean_between(first, second, (1, 1))},
    )


def _family_more_alike(scores: Scores, *, first: str, second: str) -> Evidence:
    """Blocks of all layers of both models; models of other families are compared with each of the two."""
    family = scores.models[first].family
    strangers = [m.name for m in scores.models.values() if not m.is_control and m.family not in (family, SAVED)]
    same = average(scores.between(first, second), f"layers of {first} and {second}")
    across = [average(scores.between(one, other), f"layers of {one} and {other}")
              for one in (first, second) for other in strangers]  # fmt: skip
    return scores.evidence(
        raising={"similarity_within": same},
        lowering={"similarity_across": np.mean(across, axis=0)},
        words={"family": family, "strangers": ", ".join(strangers)},
    )


def _adjacent_more_alike(scores: Scores, *, model: str) -> Evidence:
    layers = np.array(scores.layers(model))
    if len(layers) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(layers)} layers of {model} were compared, {FEWEST_LAYERS} are needed")
    apart = np.abs(layers[:, None] - layers)
    if not (apart == 1).any():
        raise CannotTellError(OTHER_LAYERS, f"no two adjacent layers of {model} were compared")
    own = scores.between(model, model)
    near, far = (average(own[:, where], f"layers of {model}") for where in (apart == 1, apart > 1))
    return scores.evidence(raising={"similarity_adjacent": near}, lowering={"similarity_others": far})


def bottom_less_top(runs: Freezing, *, top: str, bottom: str) -> Evidence:
    """Scores of runs are averaged over seeds; their errors count as independent, which only widens the interval."""
    low, high = (np.array([r.score.value for r in runs[how]]).mean() for how in (top, bottom))
    wide = [(r.score.high - r.score.low, len(runs[how])) for how in (top, bottom) for r in runs[how]]
    error = np.sqrt(sum((w / n) ** 2 for w, n in wide)) / (2 * NormalDist().inv_cdf(0.975))
    drawn = [NormalDist().inv_cdf((k + 0.5) / QUANTILES) for k in range(QUANTILES)]
    return Evidence(
        d=high - low + error * np.array([0.0, *drawn]),
        interval=Interval(0.95, PERCENTILES, QUANTILES),
        numbers={"score_top": float(low), "score_bottom": float(high)},
    )


@dataclass(frozen=True)
class Localization:
    """Localization scores of models, as their claims read them."""

    curves: Mapping[str, Curve]
    models: Mapping[str, ModelInfo]
    chance: float
    """How far two layers may differ by chance alone."""

    @classmethod
    def of(cls, comparison: Comparison) -> Localization:
        """Of a comparison that holds neuronsim and svsim; z-scored where its findings are."""
        findings = comparison.findings
        standardise = bool(findings.get("localization_standardised", False))
        chance = findings.get("localization_chance")
        if chance is None and isinstance(comparison.data.get("rows"), int):
            chance = localization_chance(comparison, standardise=standardise)
        curves = localization_curves(comparison, standardise=standardise)
        return cls(curves, {m.name: m for m in comparison.models}, float(chance or 0.0))


def _localization_rises(localization: Localization, *, model: str) -> Evidence:
    curve = localization.curves[model]
    known = curve.known
    if len(known) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(known)} layers of {model} have a score, {FEWEST_LAYERS} are needed")
    values = stacked(curve.values, curve.replicates)[:, known]
    apart = float(np.ptp(values[0]))
    return Evidence(
        d=_share_rising(values),
        interval=curve.interval,
        numbers={"lowest_layer": float(values[0, 0]), "highest_layer": float(values[0, -1]), "range": apart},
        words={"lowest": str(curve.layers[known[0]]), "highest": str(curve.layers[known[-1]])},
        all_by_chance=apart <= localization.chance,
        chance_level=localization.chance,
        bounds=(0.0, 1.0),
    )


def _share_rising(values: Values) -> Values:
    """(..., layers) to (...): of all pairs of layers, the share in which the deeper one has the higher value."""
    shallow, deep = np.triu_indices(values.shape[-1], k=1)
    missing = np.isnan(values).any(axis=-1)
    return np.where(missing, np.nan, (values[..., deep] > values[..., shallow]).mean(axis=-1))


def _less_localized_at_top(localization: Localization, *, base: str, tuned: str) -> Evidence:
    curves = [localization.curves[name] for name in (base, tuned)]
    upper = [halves(localization.models[c], k.layers)[1] for c, k in zip((base, tuned), curves, strict=True)]
    before, after = (
        average(stacked(c.values, c.replicates)[:, h.positions], f"layers {h.layers}")
        for c, h in zip(curves, upper, strict=True)
    )
    return Evidence(
        d=before - after,
        interval=curves[0].interval,
        numbers={"upper_before": float(before[0]), "upper_after": float(after[0])},
        words={"upper": upper[0].layers},
        chance=(-localization.chance, localization.chance),
        chance_level=localization.chance,
    )


# --- attention ----------------------------------------------------------------------------------------------------


def _families_alike(scores: Scores) -> Evidence:
    """Pairs of different models of one family against pairs of two families, over all layers of both.

    Two models of one shape may be tuned from each other, which says nothing of their family: they are no such pair.
    The paper's families are a base and a large model each, so its own figure is read as it was. This rule was set after
    MiniLM and a model tuned from it had been seen to decide the claim; it can only withhold a verdict.
    """
    trained = [m for m in scores.models.values() if not m.is_control]
    groups: dict[bool, list[Values]] = {True: [], False: []}
    for first, second in combinations(trained, 2):
        if (first.family, first.layers, first.width) == (second.family, second.layers, second.width):
            continue
        both = [scores.between(*names) for names in ((first.name, second.name), (second.name, first.name))]
        means = [average(b.reshape(len(b), -1), f"layers of {first.name} and {second.name}") for b in both]
        groups[first.family == second.family].append(np.mean(means, axis=0))
    if not all(groups.values()):
        raise CannotTellError(
            MISSING, "two models of one family, of different size, and one of another family are needed"
        )
    within, across = (np.mean(groups[same], axis=0) for same in (True, False))
    return scores.evidence(
        raising={"within_family": within},
        lowering={"across_families": across},
        words={"families": ", ".join(dict.fromkeys(m.family for m in trained))},
    )


def _first_recurs(scores: Scores, *, model: str) -> Evidence:
    """Column of the first block against the columns of the others, in rows of all other layers of the model."""
    block = scores.between(model, model)
    layers = scores.layers(model)
    if len(layers) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(layers)} blocks of {model} were compared, {FEWEST_LAYERS} are needed")
    others = ~np.eye(len(layers), dtype=np.bool_)
    means = np.stack([average(block[:, others[:, k], k], f"layer {layers[k]}") for k in range(len(layers))], axis=1)
    first, rest = means[:, 0], means[:, 1:].mean(axis=1)
    return scores.evidence(
        raising={"first": first},
        lowering={"rest": rest},
        numbers={"first_layer": float(first[0]), "other_layers": float(rest[0]), "highest": float(means[0].max())},
        words={"first": str(layers[0]), "brightest": str(layers[int(means[0].argmax())])},
    )


def _heads_match_more(
    matched: Scores, *, first: str, second: str, aggregate: Scores, control: str | None = None
) -> Evidence:
    """JS as a share of what it can be, 1 - JSD / ln 2, so that both measures go from 0 to 1.

    The best of several unrelated heads is similar too: beside a random initialisation, the difference must be more than
    the two models have with it. The paper compares the two heatmaps without a control, so D is theirs and the control a
    guard, as a chance level is: where it fails the verdict is "cannot tell", never "does not hold". The guard was added
    after first results (js of MiniLM with random weights was above that with MPNet); without a control there is none.
    """

    def both(one: str, other: str) -> tuple[Values, Values]:
        blocks = (1 - (1 - matched.between(one, other)) / np.log(2), aggregate.between(one, other))
        js, cka = (average(b.reshape(len(b), -1), f"layers of {one} and {other}") for b in blocks)
        return js, cka

    js, cka = both(first, second)
    interval, beside = matched.matrix.interval, None
    if control is not None:
        apart = np.mean([np.subtract(*both(name, control)) for name in (first, second)], axis=0)
        beside = Evidence(d=js - cka - apart, interval=interval)
    return Evidence(
        d=js - cka,
        interval=interval,
        numbers={"js": float(1 - (1 - js[0]) * np.log(2)), "js_share": float(js[0]), "ckasim": float(cka[0])},
        control=beside,
    )


ATTENTION_TOP_CHANGES_MORE = Claim(
    id="wu2020-attention-top-changes-more",
    claim="Fine-tuning changes the attention of the top layers more than that of the bottom layers.",
    source="Wu et al. 2020, section 6.1, figure 6",
    value="mean drift of the attention of the upper half of the layers minus that of the lower half",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean drift that is clear",
    text="From {base} to {tuned} the mean drift of attention is {drift_lower} in the lower half (layers {lower}) and"
    " {drift_upper} in the upper half (layers {upper}), a difference of {D}",
    statistic=_top_changes_more,
)
FAMILIES_ALIKE = Claim(
    id="wu2020-attention-families-alike",
    claim="The attention of models of one family is more alike than that of models of different families.",
    source="Wu et al. 2020, section 5.2, figure 4",
    value="mean similarity of layers of different models of one family minus that of models of two families",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="Layers of different models have a mean similarity of {within_family} within a family and {across_families}"
    " across families ({families}), a difference of {D}",
    statistic=_families_alike,
)
HEADS_MATCH_MORE = Claim(
    id="wu2020-heads-match-more",
    claim="Different models have pairs of heads that behave alike although their heads as a whole differ: across models"
    " Jensen-Shannon similarity is higher than ckasim.",
    source="Wu et al. 2020, section 5.2, figure 4",
    value="mean similarity across two models by Jensen-Shannon (1 - JSD / ln 2) minus that by ckasim",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear, both from 0 to 1",
    text="Across {first} and {second} the best heads have a mean Jensen-Shannon similarity of {js} ({js_share} of what"
    " it can be), all heads of a layer together a ckasim of {ckasim}, a difference of {D}",
    statistic=_heads_match_more,
    only="js",
)
FIRST_RECURS = Claim(
    id="wu2020-first-layer-recurs",
    claim="Many higher layers have a head that is very similar to a head of the first layer.",
    source="Wu et al. 2020, section 6.1, figure 6",
    value="mean similarity of all other layers to the first layer's heads minus the mean over the other columns",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a vertical band that is clearly brighter than the other columns",
    text="Other layers of {model} find a partner in layer {first} with a mean similarity of {first_layer}, in the other"
    " layers {other_layers} (most in layer {brightest}, {highest}), a difference of {D}",
    statistic=_first_recurs,
)

TOP_CHANGES_MORE = Claim(
    id="wu2020-top-changes-more",
    claim="Fine-tuning changes the top layers more than the bottom layers.",
    source="Wu et al. 2020, section 6.1",
    value="mean drift of the upper half of the layers minus that of the lower half",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean drift that is clear",
    text="From {base} to {tuned} the mean drift is {drift_lower} in the lower half (layers {lower}) and {drift_upper}"
    " in the upper half (layers {upper}), a difference of {D}",
    statistic=_top_changes_more,
)
LOWER_MORE_ALIKE = Claim(
    id="wu2020-lower-more-alike",
    claim="Lower layers are more similar across architectures than higher layers.",
    source="Wu et al. 2020, section 5.1",
    value="mean similarity of the lower halves of two models minus that of their upper halves",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="The lower halves of {first} and {second} have a mean similarity of {similarity_lower}, their upper halves"
    " {similarity_upper}, a difference of {D}",
    statistic=_lower_more_alike,
)
FAMILY_MORE_ALIKE = Claim(
    id="wu2020-family-more-alike",
    claim="Models of one family are more similar to each other than to models of other families.",
    source="Wu et al. 2020, section 5.1",
    value="mean similarity of the layers of two models of one family minus that of either with other families",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="Layers of {first} and {second}, both {family}, have a mean similarity of {similarity_within}, with those of"
    " {strangers} {similarity_across}, a difference of {D}",
    statistic=_family_more_alike,
)
ADJACENT_MORE_ALIKE = Claim(
    id="wu2020-adjacent-more-alike",
    claim="Adjacent layers are more similar than layers further apart.",
    source="Wu et al. 2020, section 5.1",
    value="mean similarity of adjacent layers of a model minus that of its other layers",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="Adjacent layers of {model} have a mean similarity of {similarity_adjacent}, layers further apart"
    " {similarity_others}, a difference of {D}",
    statistic=_adjacent_more_alike,
)
LOCALIZATION_RISES = Claim(
    id="wu2020-localization-rises",
    claim="Higher layers are more localized than lower ones.",
    source="Wu et al. 2020, section 5.1",
    value="share of pairs of layers in which the deeper one has the higher localization score",
    margin=MOSTLY,
    margin_meaning="two thirds of the pairs: the score mostly increases with depth",
    text="The localization of {model} goes from {lowest_layer} at layer {lowest} to {highest_layer} at layer {highest};"
    " of all pairs of layers the deeper one is the more localized in a share of {D}",
    statistic=_localization_rises,
)
LESS_LOCALIZED_AT_TOP = Claim(
    id="wu2020-less-localized-at-top",
    claim="Fine-tuned models are less localized at the top layers than pre-trained ones.",
    source="Wu et al. 2020, section 6.1",
    value="mean localization score of the upper half before fine-tuning minus that after",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean localization that is clear",
    text="The mean localization of the upper half (layers {upper}) is {upper_before} in {base} and {upper_after} in"
    " {tuned}, a difference of {D}",
    statistic=_less_localized_at_top,
)
BOTTOM_CHEAPER = Claim(
    id="wu2020-freezing-bottom-cheaper",
    claim="Freezing the bottom layers in fine-tuning costs no more than freezing as many top layers.",
    source="Wu et al. 2020, appendix D",
    value="the metric with the bottom blocks frozen minus that with as many top blocks frozen",
    margin=-ONE_POINT,
    margin_meaning="no more than one point of the metric worse",
    text="On {task} {base} reaches {score_bottom} with {bottom} frozen and {score_top} with {top} frozen, a difference"
    " of {D}",
    statistic=bottom_less_top,
)
ON_ATTENTION = (ATTENTION_TOP_CHANGES_MORE, FAMILIES_ALIKE, HEADS_MATCH_MORE, FIRST_RECURS)
CLAIMS = (
    TOP_CHANGES_MORE,
    FAMILY_MORE_ALIKE,
    LOWER_MORE_ALIKE,
    ADJACENT_MORE_ALIKE,
    LOCALIZATION_RISES,
    LESS_LOCALIZED_AT_TOP,
    BOTTOM_CHEAPER,
    *ON_ATTENTION,
)
