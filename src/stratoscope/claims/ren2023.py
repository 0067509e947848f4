"""Claims of Ren et al. 2023, All Roads Lead to Rome? Exploring the Invariance of Transformer Representations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratoscope.claims.claim import (
    CLEAR_DIFFERENCE,
    CONSTANT,
    FEW_LAYERS,
    FEWEST_LAYERS,
    MISSING,
    MODEL_AT_CHANCE,
    ONE_POINT,
    CannotTellError,
    Claim,
    Evidence,
    Reason,
)
from stratoscope.claims.judge import statement, unknown, weigh
from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Matrix
from stratoscope.core.statement import Statement
from stratoscope.core.value import PERCENTILES, Interval, Values
from stratoscope.results.alignment import Alignment, Fit, Injection, Recovery

LINEAR = ("linreg", "ridge", "shrunk", "cca", "svcca", "pwcca", "procrustes")
INN = "inn"
TOP_SHARE = 3
"""The top third of the blocks: the paper's drop is at layer 9 of 12."""
OVER_ROWS = Interval(0.95, PERCENTILES)


def _drawn(fit: Fit) -> Values:
    """(1 + resamples,): relative error and its resamples."""
    assert fit.replicates is not None
    values: Values = np.concatenate([[fit.error.value], fit.replicates])
    return values


def _errors(result: Alignment, method: str, group: str = "models") -> tuple[Values, tuple[int, ...]]:
    """(1 + resamples, blocks): relative error of each block, mean over pairs of models; and the blocks."""
    blocks, errors = [], []
    for k in result.layers(group):
        fits = [_drawn(f.fit) for f in result.of(method, group, k)]
        if k and fits and not np.isnan([f[0] for f in fits]).any():
            blocks.append(k)
            errors.append(np.mean(fits, axis=0))
    if not errors:
        raise CannotTellError(MISSING, f"no fits of {method} between {group}")
    return np.stack(errors, axis=1), tuple(blocks)


def lower_align_better(result: Alignment, *, method: str) -> Evidence:
    errors, blocks = _errors(result, method)
    if len(blocks) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(blocks)} blocks; expected at least {FEWEST_LAYERS}")
    half = len(blocks) // 2
    lower, upper = errors[:, :half].mean(1), errors[:, half:].mean(1)
    return Evidence(upper - lower, OVER_ROWS, {"lower": float(lower[0]), "upper": float(upper[0])})


def tuning_lowers(result: Alignment, *, method: str) -> Evidence:
    (after, blocks), (before, old) = _errors(result, method), _errors(result, method, "before")
    if blocks != old:
        raise CannotTellError(MISSING, "other layers before fine-tuning than after it")
    d = after.mean(1) - before.mean(1)
    return Evidence(d, OVER_ROWS, {"after": float(after.mean(1)[0]), "before": float(before.mean(1)[0])})


def attention_stays(result: Alignment, *, method: str) -> Evidence:
    evidence = tuning_lowers(result, method=method)
    return Evidence(-evidence.d, OVER_ROWS, evidence.numbers)


def inn_beats_linear(result: Alignment) -> Evidence:
    inn, blocks = _errors(result, INN)
    linear: dict[str, Values] = {}
    for method in LINEAR:
        if method in result.methods:
            errors, same = _errors(result, method)
            linear |= {method: errors.mean(1)} if same == blocks else {}
    return _beats(inn.mean(1), linear)


def inn_recovers(result: Recovery, *, features: int) -> Evidence:
    fits = {m: result.of(m, features) for m in (INN, *LINEAR)}
    drawn = {m: np.mean([_drawn(f) for f in some], axis=0) for m, some in fits.items() if some}
    if INN not in drawn:
        raise CannotTellError(MISSING, "inn was not fitted")
    return _beats(drawn.pop(INN), drawn)


def _beats(inn: Values, linear: dict[str, Values]) -> Evidence:
    """1 - error of the INN over that of the best linear map."""
    if not linear:
        raise CannotTellError(MISSING, "no linear map was fitted")
    best = min(linear, key=lambda m: float(linear[m][0]))
    if not linear[best][0] > 0:
        raise CannotTellError(CONSTANT, f"{best} has no error to improve on")
    numbers = {"inn": float(inn[0]), "linear": float(linear[best][0])}
    d = 1 - inn / linear[best]
    note = "" if d[0] > 0 else f"no better than {best} here"
    return Evidence(d, OVER_ROWS, numbers, {"best": best}, note)


def norm_drops(curve: Curve) -> Evidence:
    blocks = [k for k, layer in enumerate(curve.layers) if layer]
    if len(blocks) < FEWEST_LAYERS or curve.replicates is None:
        raise CannotTellError(FEW_LAYERS, f"{len(blocks)} blocks; expected at least {FEWEST_LAYERS}")
    values = np.concatenate([curve.values[None], curve.replicates])[:, blocks]
    top = max(1, len(blocks) // TOP_SHARE)
    rest, upper = values[:, :-top].mean(1), values[:, -top:].mean(1)
    return Evidence(rest - upper, curve.interval, {"rest": float(rest[0]), "top": float(upper[0])})


def near_align_better(matrix: Matrix) -> Evidence:
    """Of maps among the layers of one model; those half as many blocks apart as there are, or more, are far."""
    blocks = [k for k, layer in enumerate(matrix.rows) if layer.index]
    if len(blocks) < FEWEST_LAYERS:
        raise CannotTellError(FEW_LAYERS, f"{len(blocks)} blocks; expected at least {FEWEST_LAYERS}")
    drawn = matrix.values[None, :0] if matrix.replicates is None else matrix.replicates
    values = np.concatenate([matrix.values[None], drawn.reshape(-1, *matrix.values.shape)])[:, blocks][:, :, blocks]
    if np.isnan(values[0]).any():
        raise CannotTellError(CONSTANT, "a block does not vary over the rows")
    place = np.arange(len(blocks))
    apart = np.abs(place[:, None] - place)
    near, far = values[:, apart == 1].mean(1), values[:, apart >= len(blocks) / 2].mean(1)
    interval = None if matrix.replicates is None else OVER_ROWS
    return Evidence(far - near, interval, {"near": float(near[0]), "far": float(far[0])})


def injection_keeps(result: Injection, *, method: str) -> Evidence:
    second = result.own[1]
    one = next(i for i in result.injected if i.name == method)
    own, injected = (np.concatenate([[i.value.value], i.replicates]) for i in (second, one))
    return Evidence(injected - own, OVER_ROWS, {"injected": float(injected[0]), "own": float(own[0])})


PAPER = "Ren et al. 2023"
LOWER_BETTER = Claim(
    "ren2023-lower-align-better", "Lower layers align better across models than upper ones.", f"{PAPER}, section 5.1",
    "mean relative error of the upper half of the blocks minus that of the lower", CLEAR_DIFFERENCE,
    "a clear difference of errors",
    "The relative error of {method} is {lower} in lower and {upper} in upper blocks ({D} more)", lower_align_better,
)  # fmt: skip
TUNING_LOWERS = Claim(
    "ren2023-tuning-lowers-alignment", "Fine-tuning lowers the alignment of models.", f"{PAPER}, section 5.3",
    "mean relative error after fine-tuning minus before", CLEAR_DIFFERENCE, "a clear difference of errors",
    "The relative error of {method} is {before} before and {after} after fine-tuning ({D} more)", tuning_lowers,
)  # fmt: skip
ATTENTION_STAYS = Claim(
    "ren2023-attention-stays-alignable", "Attention weights stay as alignable after fine-tuning as before.",
    f"{PAPER}, section 5.3", "mean relative error of attention before fine-tuning minus after", -CLEAR_DIFFERENCE,
    "a clear difference of errors",
    "The relative error of attention by {method} is {before} before and {after} after fine-tuning ({D})",
    attention_stays,
)  # fmt: skip
INN_BEATS = Claim(
    "ren2023-inn-beats-linear", "An invertible network aligns models better than linear maps.", f"{PAPER}, Table 4",
    "1 - relative error of inn over that of the best linear map", CLEAR_DIFFERENCE, "a fiftieth less error",
    "The relative error is {inn} with inn and {linear} with {best}, solved exactly ({D} less)", inn_beats_linear,
)  # fmt: skip
INN_RECOVERS = Claim(
    "ren2023-inn-recovers", "Only an invertible network recovers a non-linear bijection.", f"{PAPER}, Table 3",
    "1 - relative error of inn over that of the best linear map", CLEAR_DIFFERENCE, "a fiftieth less error",
    "The relative error is {inn} with inn and {linear} with {best}, solved exactly ({D} less)", inn_recovers,
)  # fmt: skip
NORM_DROPS = Claim(
    "ren2023-complexity-drops", "The complexity of the feature space drops in the top layers.", f"{PAPER}, section B.2",
    "nuclear norm of the lower blocks minus that of the top third, over the largest", CLEAR_DIFFERENCE,
    "a clear difference", "The nuclear norm is {rest} of its largest in lower blocks and {top} at the top ({D} less)",
    norm_drops,
)  # fmt: skip
NEAR_BETTER = Claim(
    "ren2023-near-align-better", "Layers next to each other align better than layers far apart.", f"{PAPER}, Fig. 3",
    "mean relative error between blocks half the model apart or more, minus that between neighbours", CLEAR_DIFFERENCE,
    "a clear difference of errors",
    "Among the blocks of {model}, the relative error of ridge is {near} between neighbours and {far} between distant"
    " ones ({D} more)", near_align_better,
)  # fmt: skip
INJECTION_KEEPS = Claim(
    "ren2023-injection-keeps-accuracy", "A state mapped from another model keeps the task accuracy.",
    f"{PAPER}, Table 5", "metric with the mapped state minus the model's own", -ONE_POINT, "a loss of one point",
    "The head of {second} scores {injected} on {method} states of {first} and {own} on its own ({D})", injection_keeps,
)  # fmt: skip
CLAIMS = (
    LOWER_BETTER, TUNING_LOWERS, ATTENTION_STAYS, INN_BEATS, INN_RECOVERS, NORM_DROPS, NEAR_BETTER, INJECTION_KEEPS
)  # fmt: skip


def _judged(
    claim: Claim, result: object, about: dict[str, str], guard: Reason | None = None, **known: object
) -> Statement:
    try:
        outcome = weigh(claim, claim.statistic(result, **known))
    except CannotTellError as e:
        outcome = unknown(e)
    return statement(claim, outcome, about=about, subject=list(about.values()), guard=guard)


def judge_alignment(result: Alignment) -> tuple[Statement, ...]:
    """Claims about layers of pairs of models."""
    method, unit = result.judged, str(result.data.get("unit"))
    several = len(result.layers()) > 1
    statements = [_judged(LOWER_BETTER, result, {"method": method, "unit": unit}, method=method)] if several else []
    if any(f.group == "before" for f in result.fits):
        tuned = ATTENTION_STAYS if unit == "attention" else TUNING_LOWERS
        statements.append(_judged(tuned, result, {"method": method, "unit": unit}, method=method))
    if INN in result.methods:
        statements.append(_judged(INN_BEATS, result, {"unit": unit}))
    itself = [m for m in result.matrices if m.rows == m.columns and len(m.rows) > 1]
    statements += [_judged(NEAR_BETTER, m, {"model": m.rows[0].model, "unit": unit}) for m in itself]
    return (*statements, *(_judged(NORM_DROPS, c, {"model": c.name, "unit": unit}) for c in result.norms if several))


def judge_recovery(result: Recovery) -> tuple[Statement, ...]:
    """Recovery at every number of features."""
    every = sorted({r.features for r in result.recovered if r.fit.method == INN})
    return tuple(_judged(INN_RECOVERS, result, {"features": str(d)}, features=d) for d in every)


def judge_injection(result: Injection) -> tuple[Statement, ...]:
    """Whether the metric stays, for every method; a model at chance has nothing to keep."""
    return tuple(_injected(result))


def _injected(result: Injection) -> Iterator[Statement]:
    first, second = (m.name for m in result.models)
    own, floor = result.own[1].value, float(result.task["majority"])
    guard = (
        Reason(MODEL_AT_CHANCE, f"{second} scores {own:.3f}, the majority {floor:.3f}") if own.low <= floor else None
    )
    for one in result.injected:
        if not one.baseline:
            about = {"first": first, "second": second, "method": one.name}
            yield _judged(INJECTION_KEEPS, result, about, guard, method=one.name)
