"""Claims of Phang et al. 2021, Fine-Tuned Transformers Show Clusters of Similar Representations Across Layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stratoscope.claims.claim import (
    CLEAR_DIFFERENCE,
    CONSTANT,
    FEW_LAYERS,
    FEWEST_LAYERS,
    MISSING,
    ONE_POINT,
    CannotTellError,
    Claim,
    Evidence,
)
from stratoscope.claims.scores import DEBIASED, Scores, spans
from stratoscope.core.curve import Curve
from stratoscope.core.value import Interval, Values
from stratoscope.data.metrics import INTERVAL
from stratoscope.measures.structure import stacked
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth

RESEMBLING = 0.5
"""Layers less similar than this do not resemble each other."""
TOP_SHARE = 3
"""The top third of the blocks: the paper drops the top 4 of RoBERTa's 12."""
ROUNDING = 1e-9
"""0.91 - 0.90 is not quite 0.01; that does not decide which spans cost a point."""


def _two_blocks(scores: Scores, *, base: str, tuned: str, control: str | None = None) -> Evidence:
    within, between = scores.splits(tuned)

    def beside(other: str, name: str) -> Evidence:
        own_within, own_between = scores.splits(other)
        return scores.evidence(
            raising={"within": within, "other_between": own_between},
            lowering={"between": between, "other_within": own_within},
            numbers={"contrast_tuned": float(within[0] - between[0]), name: float(own_within[0] - own_between[0])},
        )

    evidence = beside(base, "contrast_base")
    return evidence if control is None else _with_control(evidence, beside(control, "contrast_control"))


def _with_control(evidence: Evidence, beside: Evidence) -> Evidence:
    return replace(evidence, numbers={**evidence.numbers, **beside.numbers}, control=beside)


def _top_unlike_base(scores: Scores, *, base: str, tuned: str) -> Evidence:
    """Chance only adds to a score, so a low one is told however few the rows are."""
    _, upper = scores.halves(tuned)
    scores.halves(base)  # refuses a base of which only a few layers were compared: another may be the nearest
    top = upper.positions[-1]
    row = scores.between(tuned, base)[:, top]
    known = ~np.isnan(row[0])
    if not known.any():
        raise CannotTellError(CONSTANT, f"layer {scores.layers(tuned)[top]} of {tuned} does not vary over these rows")
    nearest = row[:, known].max(axis=-1)
    return scores.evidence(
        raising={},
        lowering={"similarity_nearest": nearest},
        difference=lambda s: 1 - s["similarity_nearest"],
        anchored=True,
        least_of=1 - row[:, known],
        words={
            "top": str(scores.layers(tuned)[top]),
            "nearest_layer": str(np.array(scores.layers(base))[known][row[0, known].argmax()]),
        },
    )


def _restarts_agree(scores: Scores, *, first: str, second: str, base: str) -> Evidence:
    return scores.evidence(
        raising={"similarity_restarts": scores.mean_between(first, second, (1, 1))},
        lowering={"similarity_base": scores.mean_between(first, base, (1, 1))},
        words={"upper": scores.halves(first)[1].layers},
    )


def _alike_across(scores: Scores, *, tuned: str, other: str, control: str | None = None) -> Evidence:
    """Debiased CKA decides: few rows lift the biased one of unrelated layers, and more so of layers of higher rank."""
    halves = ("similarity_lower", "similarity_upper")
    alike = {name: scores.mean_between(tuned, other, (k, k)) for k, name in enumerate(halves)}
    crossed = scores.mean_between(tuned, other, (0, 1), (1, 0))
    evidence = scores.evidence(
        raising=alike,
        lowering={"similarity_crossed": crossed},
        difference=lambda s: np.minimum(*(s[name] for name in halves)) - s["similarity_crossed"],
        least_of=np.stack([alike[name] - crossed for name in halves], axis=-1),
    )
    if control is None:
        return evidence
    floor = {f"{name}_control": scores.mean_between(tuned, control, (k, k)) for k, name in enumerate(halves)}
    beside = scores.evidence(
        raising=alike,
        lowering=floor,
        difference=lambda s: np.minimum(*(s[name] - s[f"{name}_control"] for name in halves)),
        least_of=np.stack([alike[name] - floor[f"{name}_control"] for name in halves], axis=-1),
    )
    return _with_control(evidence, beside)


def _top_droppable(depth: Depth) -> Evidence:
    blocks = _blocks(depth)
    count = max(1, round(blocks / TOP_SHARE))
    curve = _curve(depth, UNTUNED)
    kept = blocks - count
    full, value = _same_resamples(_full(depth), stacked(curve.values, curve.replicates)[:, kept])
    return Evidence(
        d=value - full,
        interval=_interval(depth),
        numbers={"metric_full": depth.full.value, "metric_cut": float(value[0])},
        words={"count": str(count), "blocks": str(blocks)},
    )


def _untuned_encoder_worse(depth: Depth) -> Evidence:
    _blocks(depth)
    tuned, base = _curve(depth, TUNED), _curve(depth, TUNEDORIG)
    known = [k for k in tuned.known if k in base.known and tuned.layers[k] > 0]
    if not known:
        raise CannotTellError(MISSING, "no layer has both a head on the tuned and one on the untuned model")
    one, two = _same_resamples(*(stacked(c.values, c.replicates)[:, known] for c in (tuned, base)))
    gaps = one - two
    least, most = int(gaps[0].argmin()), int(gaps[0].argmax())
    layers = [tuned.layers[k] for k in known]
    return Evidence(
        d=gaps.min(axis=-1),
        interval=_interval(depth),
        least_of=gaps,
        numbers={
            "mean_difference": float(gaps[0].mean()),
            "largest_difference": float(gaps[0, most]),
            "layers_within_margin": float((gaps[0] <= ONE_POINT + ROUNDING).sum()),
            "layers": float(len(known)),
        },
        words={"least_layer": str(layers[least]), "largest_layer": str(layers[most]), "all_layers": spans(layers)},
    )


def _later_skippable(depth: Depth) -> Evidence:
    blocks = _blocks(depth)
    loss = _losses(depth)
    upper = [k for k in range(blocks) if depth.model.depth(k + 1) > 0.5]
    lower = [k for k in range(blocks) if k not in upper]
    inside = {name: _spans_inside(loss, half) for name, half in (("lower", lower), ("upper", upper))}
    share = np.where(np.isnan(inside["upper"]), np.nan, inside["upper"] <= ONE_POINT + ROUNDING).mean(axis=-1)
    return Evidence(
        d=share,
        interval=_interval(depth),
        numbers={
            "mean_loss_upper": float(inside["upper"][0].mean()),
            "mean_loss_lower": float(inside["lower"][0].mean()),
            "spans": float(inside["upper"].shape[1]),
        },
        words={"upper": spans([k + 1 for k in upper]), "count": str(inside["upper"].shape[1])},
        bounds=(0.0, 1.0),
    )


def _first_costly(depth: Depth) -> Evidence:
    _blocks(depth)
    single = np.diagonal(_losses(depth), axis1=1, axis2=2)
    known = [k for k in range(1, single.shape[1]) if not np.isnan(single[0, k])]
    if np.isnan(single[0, 0]) or not known:
        raise CannotTellError(MISSING, "single blocks were not skipped")
    others = single[:, known].max(axis=-1)
    return Evidence(
        d=single[:, 0] - others,
        interval=_interval(depth),
        least_of=single[:, :1] - single[:, known],
        numbers={
            "loss_first": float(single[0, 0]),
            "loss_largest_other": float(others[0]),
            "blocks_within_point": float((single[0, [0, *known]] <= ONE_POINT + ROUNDING).sum()),
        },
        words={"other": str(known[int(single[0, known].argmax())] + 1)},
    )


def _blocks(depth: Depth) -> int:
    blocks = depth.model.layers - 1
    if blocks < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{depth.model.name} has {blocks} blocks, {FEWEST_LAYERS} are needed")
    return blocks


def _curve(depth: Depth, name: str) -> Curve:
    for curve in depth.curves:
        if curve.name == name and curve.known:
            return curve
    raise CannotTellError(MISSING, f"there is no {name} curve")


def _interval(depth: Depth) -> Interval:
    return next((c.interval for c in depth.curves if c.interval is not None), INTERVAL)


def _full(depth: Depth) -> Values:
    return stacked(np.array(depth.full.value), depth.full_replicates)


def _losses(depth: Depth) -> Values:
    """(1 + resamples, L, L): the whole model's metric minus that with each span skipped, on the same resamples."""
    if depth.skip is None:
        raise CannotTellError(MISSING, "spans of blocks were not skipped")
    full, skip = _same_resamples(_full(depth), stacked(depth.skip, depth.skip_replicates))
    return full[:, None, None] - skip


def _spans_inside(loss: Values, blocks: Sequence[int]) -> Values:
    """(1 + resamples, spans): the losses of all spans of these blocks."""
    first, last = np.triu_indices(len(blocks))
    cells = loss[:, np.array(blocks)[first], np.array(blocks)[last]]
    known = ~np.isnan(cells[0])
    if not known.any():
        raise CannotTellError(MISSING, "spans of blocks were not skipped")
    return cells[:, known]


def _same_resamples(one: Values, two: Values) -> tuple[Values, Values]:
    """Both on the resamples they share: the first ones of either; the estimate alone where one has none."""
    number = min(len(one), len(two))
    return one[:number], two[:number]


TWO_BLOCKS = Claim(
    id="phang2021-two-blocks",
    claim="After fine-tuning, early and later layers form two clusters of similar representations.",
    source="Phang et al. 2021, section 3",
    value="contrast of the best two-block split (mean similarity within minus between the blocks) of the fine-tuned"
    " model minus that of the untuned one",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a contrast that is clearly higher",
    text="The best two-block split of {tuned} has a contrast of {contrast_tuned}, that of {base} {contrast_base}, a"
    " difference of {D}",
    statistic=_two_blocks,
)
TOP_UNLIKE_BASE = Claim(
    id="phang2021-top-unlike-base",
    claim="The top layers of the fine-tuned model resemble no layer of the untuned model.",
    source="Phang et al. 2021, section 3.1 and figure 5",
    value="drift (1 − similarity) of the top layer from the nearest layer of the untuned model",
    margin=1 - RESEMBLING,
    margin_meaning="a similarity below 0.5",
    text="Layer {top} of {tuned} is nearest to layer {nearest_layer} of {base}, with a similarity of"
    " {similarity_nearest}, a drift of {D}",
    statistic=_top_unlike_base,
)
RESTARTS_AGREE = Claim(
    id="phang2021-restarts-agree-at-top",
    claim="Two random restarts reach similar top layers.",
    source="Phang et al. 2021, section 3 and figure 6",
    value="mean similarity of the upper halves of two restarts minus that of the first and the untuned model",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="In the upper half (layers {upper}) {first} and {second} have a mean similarity of {similarity_restarts},"
    " {first} and the untuned {base} {similarity_base}, a difference of {D}",
    statistic=_restarts_agree,
)
ALIKE_ACROSS = Claim(
    id="phang2021-alike-across-models",
    claim="Early layers match early layers and later layers match later ones, even across models.",
    source="Phang et al. 2021, figure 7",
    value="mean similarity of the lower halves or of the upper halves, whichever is lower, minus that of one model's"
    " lower with the other's upper half",
    margin=CLEAR_DIFFERENCE,
    margin_meaning="a difference of mean similarity that is clear",
    text="{tuned} and {other} have a mean similarity of {similarity_lower} in the lower halves, {similarity_upper} in"
    " the upper halves and {similarity_crossed} across halves; the lower of the two exceeds the last by {D}",
    statistic=_alike_across,
    only=DEBIASED,
)
TOP_DROPPABLE = Claim(
    id="phang2021-top-third-droppable",
    claim="The top layers can be dropped without further tuning and with little loss.",
    source="Phang et al. 2021, section 4",
    value="change of the metric when the head reads the model without its top third of blocks",
    margin=-ONE_POINT,
    margin_meaning="a loss of less than one point",
    text="Without the top {count} of {blocks} blocks and no tuning {metric} is {metric_cut}, with them {metric_full}, a"
    " change of {D}",
    statistic=_top_droppable,
)
UNTUNED_ENCODER_WORSE = Claim(
    id="phang2021-untuned-encoder-worse",
    claim="Heads on the untuned encoder do much worse than on the tuned one at all layers.",
    source="Phang et al. 2021, section 4",
    value="smallest difference over all layers of a head tuned on the fine-tuned model minus one on the untuned model",
    margin=ONE_POINT,
    margin_meaning="more than one point at every layer",
    text="Over layers {all_layers} heads on {model} exceed those on the untuned model by {mean_difference} on average;"
    " the smallest difference is at layer {least_layer}, {D}",
    statistic=_untuned_encoder_worse,
)
LATER_SKIPPABLE = Claim(
    id="phang2021-later-blocks-skippable",
    claim="Several of the later layers can be skipped with minimal impact.",
    source="Phang et al. 2021, section 4.1",
    value="share of the spans inside the upper half of the blocks that cost one point or less when skipped",
    margin=0.5,
    margin_meaning="most of the spans",
    text="Of the {count} spans inside the upper half (blocks {upper}) a share of {D} costs one point or less; the mean"
    " loss is {mean_loss_upper} there and {mean_loss_lower} in the lower half",
    statistic=_later_skippable,
)
FIRST_COSTLY = Claim(
    id="phang2021-first-block-costly",
    claim="Skipping a single block makes little difference, except for the first.",
    source="Phang et al. 2021, section 4.1",
    value="loss without the first block minus the largest loss without any other single block",
    margin=ONE_POINT,
    margin_meaning="one point more than any other block",
    text="Skipping the first block costs {loss_first}, skipping block {other}, the most costly of the others,"
    " {loss_largest_other}, a difference of {D}",
    statistic=_first_costly,
)
ON_DEPTH = (TOP_DROPPABLE, UNTUNED_ENCODER_WORSE, LATER_SKIPPABLE, FIRST_COSTLY)
CLAIMS = (TWO_BLOCKS, TOP_UNLIKE_BASE, RESTARTS_AGREE, ALIKE_ACROSS, *ON_DEPTH)
