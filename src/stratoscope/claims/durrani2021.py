"""Claims of Durrani et al. 2021, How transfer learning impacts linguistic knowledge in deep NLP models?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stratoscope.claims.claim import (
    FEW_LAYERS,
    FEWEST_LAYERS,
    MISSING,
    MODEL_AT_CHANCE,
    NO_INTERVAL,
    ONE_POINT,
    OTHER_LAYERS,
    CannotTellError,
    Claim,
    Evidence,
    Reason,
)
from stratoscope.claims.judge import statement, unknown, weigh
from stratoscope.claims.scores import spans
from stratoscope.claims.wu2020 import Freezing, bottom_less_top
from stratoscope.core.statement import Statement
from stratoscope.core.value import PERCENTILES, Interval, Values
from stratoscope.measures.structure import stacked
from stratoscope.results.probing import PUBLISHED, SOLVED, LayerProbes, NeuronProbes, Probing

INTERVAL = Interval(0.95, PERCENTILES)
FEWEST_SENTENCES = 10
"""Test sentences below which an interval over resamples of them means nothing."""
OVER_TEST = "the interval is over test sentences, for the probes as they were trained"
OVER_SPLITS = "the interval is over sentences of all splits: penalties, ranking and probes are made anew"
"""What intervals cover. Layers are not probed anew on other training sentences: 64 probes of every layer for each
resample; so a verdict on layers is about these probes, and another training sample could change a close one."""
SHIFT = 0.02
"""Mean depths closer than this are not called different."""


def _losses(result: Probing, base: str, tuned: str) -> tuple[tuple[int, ...], Values]:
    """(1 + resamples, layers) accuracy before less accuracy after tuning, on the same resamples."""
    one, two = (result.layers.of(name).accuracy for name in (base, tuned))
    if one.layers != two.layers:
        raise CannotTellError(OTHER_LAYERS, f"{base} and {tuned} were probed at different layers")
    if len(one.layers) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(one.layers)} layers were probed, {FEWEST_LAYERS} are needed")
    return one.layers, stacked(one.values, one.replicates) - stacked(two.values, two.replicates)


def _half(result: Probing, base: str, layers: Sequence[int], *, upper: bool) -> list[int]:
    info = next(m for m in result.models if m.name == base)
    inside = [k for k, layer in enumerate(layers) if (info.depth(layer) > 0.5) == upper]
    if not inside:
        raise CannotTellError(MISSING, f"no layer of the {'upper' if upper else 'lower'} half was probed")
    return inside


def _forgotten_above(result: Probing, *, base: str, tuned: str) -> Evidence:
    layers, loss = _losses(result, base, tuned)
    upper = _half(result, base, layers, upper=True)
    worst = int(loss[0, upper].argmax())
    return Evidence(
        d=loss[:, upper].mean(axis=-1),
        interval=INTERVAL,
        numbers={"loss_largest": float(loss[0, upper[worst]]), "loss_top": float(loss[0, -1])},
        words={"upper": spans([layers[k] for k in upper]), "worst": str(layers[upper[worst]])},
        note=OVER_TEST,
    )


def _kept_below(result: Probing, *, base: str, tuned: str) -> Evidence:
    layers, loss = _losses(result, base, tuned)
    lower = _half(result, base, layers, upper=False)
    worst = int(loss[0, lower].argmax())
    return Evidence(
        d=-loss[:, lower].max(axis=-1),
        interval=INTERVAL,
        least_of=-loss[:, lower],
        numbers={"loss_mean": float(loss[0, lower].mean())},
        words={"lower": spans([layers[k] for k in lower]), "worst": str(layers[lower[worst]])},
        note=OVER_TEST,
    )


def _neurons(result: Probing, name: str) -> NeuronProbes:
    for probes in result.neuron_probes:
        if probes.model == name:
            return probes
    raise CannotTellError(MISSING, f"the neurons of {name} were not ranked (--neurons)")


def _less_distributed(result: Probing, *, base: str, tuned: str) -> Evidence:
    """Which neurons are at the bottom is itself chance: they are ranked and trained anew on the same resamples."""
    one, two = (_neurons(result, name) for name in (base, tuned))
    drawn = one.bottom_resampled - two.bottom_resampled
    return Evidence(
        d=np.concatenate([[one.bottom.value - two.bottom.value], drawn]),
        interval=result.over_splits,
        numbers={
            "bottom_base": one.bottom.value,
            "bottom_tuned": two.bottom.value,
            "top_base": one.top.value,
            "top_tuned": two.top.value,
        },
        words={"share": f"{one.share:.0%}"},
        note=OVER_SPLITS,
    )


def _neurons_move_down(result: Probing, *, base: str, tuned: str) -> Evidence:
    """Both models are ranked anew on the same resamples of the sentences."""
    _losses(result, base, tuned)  # refuses other and too few layers
    one, two = (result.depths(_neurons(result, name).model) for name in (base, tuned))
    return Evidence(
        d=one - two,
        interval=result.over_splits,
        numbers={"depth_base": float(one[0]), "depth_tuned": float(two[0])},
        note=OVER_SPLITS,
    )


def _schedule_suffices(result: Probing, *, model: str) -> Evidence:
    one, two = (_of(result, model, solver).accuracy for solver in (SOLVED, PUBLISHED))
    loss = stacked(one.values, one.replicates) - stacked(two.values, two.replicates)
    worst = int(loss[0].argmax())
    return Evidence(
        d=-loss.max(axis=-1),
        interval=INTERVAL,
        least_of=-loss,
        numbers={"loss_mean": float(loss[0].mean()), "loss_least": float(loss[0].min())},
        words={"worst": str(one.layers[worst])},
        note=OVER_TEST,
    )


def _of(result: Probing, model: str, solver: str) -> LayerProbes:
    for probes in result.layers.probes:
        if (probes.model, probes.solver) == (model, solver):
            return probes
    raise CannotTellError(MISSING, f"there is no {solver} probe of {model}")


def _bottom_hurts_more(runs: Freezing, *, top: str, bottom: str) -> Evidence:
    less = bottom_less_top(runs, top=top, bottom=bottom)
    return replace(less, d=-less.d)


FORGOTTEN_ABOVE = Claim(
    "durrani2021-forgotten-above", "Fine-tuning forgets the property in the higher layers.",
    "Durrani et al. 2021, section 4.1 and Figure 1", "mean accuracy lost in the upper half of the layers",
    ONE_POINT, "one point of accuracy",
    "Probes of layers {upper} lose {D} on average, most at layer {worst} ({loss_largest})", _forgotten_above,
)  # fmt: skip
KEPT_BELOW = Claim(
    "durrani2021-kept-below", "The lower layers keep the property after fine-tuning.",
    "Durrani et al. 2021, section 4.1 and Figure 1", "least gain (largest loss, negated) over the lower layers",
    -ONE_POINT, "a loss of one point of accuracy",
    "Of layers {lower} the worst, layer {worst}, changes by {D}; their mean loss is {loss_mean}", _kept_below,
)  # fmt: skip
NEURONS_MOVE_DOWN = Claim(
    "durrani2021-neurons-move-down", "Salient neurons move to lower layers after fine-tuning.",
    "Durrani et al. 2021, section 4.2 and Figure 2", "mean depth of the salient neurons before less after",
    SHIFT, "two hundredths of the model's depth",
    "The salient neurons' mean depth is {depth_base} before and {depth_tuned} after: {D}", _neurons_move_down,
)  # fmt: skip
LESS_DISTRIBUTED = Claim(
    "durrani2021-less-distributed", "The property becomes less distributed over the neurons after fine-tuning.",
    "Durrani et al. 2021, section 4.2 and Table 1", "accuracy of the bottom neurons before less after",
    ONE_POINT, "one point of accuracy",
    "The bottom {share} reach {bottom_base} before and {bottom_tuned} after (top: {top_base}, {top_tuned}): {D}",
    _less_distributed,
)  # fmt: skip
SCHEDULE_SUFFICES = Claim(
    "durrani2021-schedule-suffices", "Ten epochs of Adam train the probes of all layers alike.",
    "Durrani et al. 2021, section 3", "least gain of the schedule over the solved probe (largest loss, negated)",
    -ONE_POINT, "a loss of one point of accuracy",
    "At layer {worst} the published schedule is {D} from the solved probe; the mean loss is {loss_mean}",
    _schedule_suffices,
)  # fmt: skip
BOTTOM_HURTS_MORE = Claim(
    "durrani2021-pruning-bottom-hurts-more", "Pruning the bottom layers before fine-tuning hurts more than the top.",
    "Durrani et al. 2021, section 5 and Table 2", "the metric without the top blocks minus that without the bottom",
    ONE_POINT, "one point of the metric",
    "On {task} {base} reaches {score_top} without {top} and {score_bottom} without {bottom}, a difference of {D}",
    _bottom_hurts_more,
)  # fmt: skip
CLAIMS = (
    FORGOTTEN_ABOVE,
    KEPT_BELOW,
    NEURONS_MOVE_DOWN,
    LESS_DISTRIBUTED,
    SCHEDULE_SUFFICES,
    BOTTOM_HURTS_MORE,
)


def judge_probing(result: Probing) -> tuple[Statement, ...]:
    """Claims about a base model and each that was tuned from it, then about the schedule."""
    base, *tuned = [m.name for m in result.models]
    statements = []
    on_layers = [FORGOTTEN_ABOVE, KEPT_BELOW]
    on_neurons = [NEURONS_MOVE_DOWN, LESS_DISTRIBUTED] if result.neuron_probes else []
    for name in tuned:
        about = {"base": base, "tuned": name, "property": str(result.data.get("property", ""))}
        for claim in (*on_layers, *on_neurons):
            statements.append(_judged(claim, result, about, [base, name], base, base=base, tuned=name))
    for name in dict.fromkeys(p.model for p in result.layers.probes if p.solver == PUBLISHED):
        about = {"model": name, "property": str(result.data.get("property", ""))}
        statements.append(_judged(SCHEDULE_SUFFICES, result, about, [name], name, model=name))
    return tuple(statements)


def _judged(
    claim: Claim, result: Probing, about: dict[str, str], subject: list[str], guarded: str, **roles: str
) -> Statement:
    try:
        outcome = weigh(claim, claim.statistic(result, **roles))
    except CannotTellError as e:
        outcome = unknown(e)
    return statement(claim, outcome, about=about, subject=subject, guard=at_chance(result, guarded))


def at_chance(result: Probing, model: str) -> Reason | None:
    """Why nothing is judged by a model: too few sentences to resample, or its best layer not clearly above a baseline.

    Baselines are always the commonest tag, and each word's commonest tag in training.
    """
    sentences = result.data.get("sentences", {}).get("test", FEWEST_SENTENCES)
    if sentences < FEWEST_SENTENCES:
        return Reason(NO_INTERVAL, f"{sentences} test sentences are too few to resample, {FEWEST_SENTENCES} are needed")
    floor, what = max(
        (result.majority.value, "always the commonest tag"), (result.by_word.value, "each word's own tag")
    )
    best = max(result.layers.of(model).accuracy.points, key=lambda p: p.value)
    if best.low > floor:
        return None
    return Reason(MODEL_AT_CHANCE, f"the best layer of {model} reaches {best:.3f}, {what} {floor:.3f}")
