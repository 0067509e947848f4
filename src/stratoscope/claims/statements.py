"""Every claim that applies to a result, judged: which models play which part, and what guards them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from stratoscope.claims import durrani2021, phang2021, ren2023, wu2020
from stratoscope.claims.claim import (
    BY_CHANCE,
    MISSING,
    MODEL_AT_CHANCE,
    CannotTellError,
    Claim,
    Evidence,
    Reason,
)
from stratoscope.claims.judge import Outcome, statement, unknown, weigh
from stratoscope.claims.scores import DEBIASED, Scores, debiased_is_free_of_chance, deciders
from stratoscope.core.model import SAVED, ModelInfo
from stratoscope.core.statement import OPEN, Statement
from stratoscope.measures.structure import LOCALIZING
from stratoscope.results.attention import Attention
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.study import LOCALIZATION, Study

CLAIMS: tuple[Claim, ...] = (*wu2020.CLAIMS, *phang2021.CLAIMS, *durrani2021.CLAIMS, *ren2023.CLAIMS)
"""Every claim, paper by paper."""


SAME = 1e-5
"""Similarity that a model has with itself loses no more than this by rounding."""


def judge_comparison(comparison: Comparison) -> tuple[Statement, ...]:
    """Claims about any models side by side: fine-tuned pairs, other architectures, and localization."""
    if not comparison.matrices:
        return ()
    judge = _Judge(comparison)
    trained = [m for m in comparison.models if not m.is_control]
    pairs = [(a, b) for a, b in _tuned_pairs(trained) if not unchanged(comparison, a, b)]
    statements = [s for base, tuned in pairs for s in judge.tuned(base, tuned)]
    known = {m.family for m in trained} - {SAVED}
    for first, second in combinations(trained, 2):
        saved = [m.name for m in (first, second) if m.family == SAVED]
        if _same_shape(first, second) and not saved:
            continue
        roles = {"first": first.name, "second": second.name}
        if first.family == second.family in known and len(known) > 1:
            statements.append(judge.on_scores(wu2020.FAMILY_MORE_ALIKE, roles))
        unknown_kind = Reason(
            MISSING, f"{' and '.join(saved)}: saved activations do not say which architecture made them"
        )
        across = replace(judge, guard=unknown_kind) if saved else judge
        statements.append(across.on_scores(wu2020.LOWER_MORE_ALIKE, roles))
    statements += [judge.on_scores(wu2020.ADJACENT_MORE_ALIKE, {"model": m.name}) for m in trained]
    return (*statements, *judge.localization(pairs))


def judge_freezing(runs: Sequence[Finetuned]) -> tuple[Statement, ...]:
    """Claims about runs with blocks frozen: of each model and task, as many of the top as of the bottom."""
    return _top_and_bottom(wu2020.BOTTOM_CHEAPER, [(r, r.freeze) for r in runs if r.freeze])


def judge_pruning(runs: Sequence[Finetuned]) -> tuple[Statement, ...]:
    """Claims about runs with blocks dropped before tuning: as many of the top as of the bottom."""
    return _top_and_bottom(durrani2021.BOTTOM_HURTS_MORE, [(r, str(r.pruned["drop"])) for r in runs if r.pruned])


def _top_and_bottom(claim: Claim, runs: Sequence[tuple[Finetuned, str]]) -> tuple[Statement, ...]:
    """A claim about runs, each with what was done to it (`top:k` or `bottom:k`)."""
    pairs = []
    for base, task in dict.fromkeys((str(r.base["name"]), str(r.task["name"])) for r, _ in runs):
        own: dict[str, list[Finetuned]] = {}
        for r, how in runs:
            if (r.base["name"], r.task["name"]) == (base, task):
                own.setdefault(how, []).append(r)
        for top in (how for how in own if how.startswith("top:")):
            bottom = top.replace("top:", "bottom:")
            if bottom not in own:
                continue
            learnt = any(r.score.low > r.baselines["majority"] for how in (top, bottom) for r in own[how])
            guard = None if learnt else Reason(MODEL_AT_CHANCE, f"no run of {base} beats always the commonest label")
            outcome = weigh(claim, claim.statistic(own, top=top, bottom=bottom))
            about = {"base": base, "task": task, "top": top, "bottom": bottom}
            pairs.append(statement(claim, outcome, about=about, subject=[base, task, top], guard=guard))
    return tuple(pairs)


def judge_attention(attention: Attention) -> tuple[Statement, ...]:
    """Claims about attention: of fine-tuned pairs, of models side by side, and of each model.

    Jensen-Shannon similarity decides, as in the paper; without it the first measure of heads.
    """
    if not attention.head_measures:
        return ()
    judge, measure = _Judge(attention), attention.head_measure()
    trained = [m for m in attention.models if not m.is_control]

    def on(claim: Claim, roles: Mapping[str, str], premise: str = "") -> Statement:
        return judge.on_scores(replace(claim, only=measure), roles, premise=premise)

    pairs = _tuned_pairs(trained)
    statements = [
        on(wu2020.ATTENTION_TOP_CHANGES_MORE, {"base": base, "tuned": tuned}, judge.premise(base, tuned))
        for base, tuned in pairs
    ]
    statements += [on(wu2020.FIRST_RECURS, {"model": m.name}) for m in trained]
    if len(trained) > 2:
        statements.append(on(wu2020.FAMILIES_ALIKE, {}))
    if {"js", "ckasim"} <= set(attention):
        heads, aggregate = (Scores.of(attention, name) for name in ("js", "ckasim"))
        control = next((m.name for m in attention.models if m.is_control), None)
        for first, second in combinations(trained, 2):
            if not _same_shape(first, second):
                roles = {"first": first.name, "second": second.name}
                outcome = _outcome(wu2020.HEADS_MATCH_MORE, heads, **roles, aggregate=aggregate, control=control)
                statements.append(judge.statement(wu2020.HEADS_MATCH_MORE, outcome, roles, "js, ckasim"))
    return tuple(statements)


def judge_depth(depth: Depth) -> tuple[Statement, ...]:
    """Claims about dropping and skipping blocks; those whose curves were asked for."""
    curves = {c.name for c in depth.curves}
    asked = {
        phang2021.TOP_DROPPABLE: UNTUNED in curves,
        phang2021.UNTUNED_ENCODER_WORSE: {TUNED, TUNEDORIG} <= curves,
        phang2021.LATER_SKIPPABLE: depth.skip is not None,
        phang2021.FIRST_COSTLY: depth.skip is not None,
    }
    about = {
        "model": depth.model.name,
        "task": str(depth.task.get("name") or ""),
        "metric": str(depth.task.get("metric") or "the metric"),
    }
    guard = at_chance(depth)
    return tuple(
        statement(claim, _outcome(claim, depth), about=about, subject=[depth.model.name], guard=guard)
        for claim in phang2021.ON_DEPTH
        if asked[claim]
    )


def judge_study(study: Study) -> tuple[Statement, ...]:
    """Claims about a base model and what was tuned from it, unit by unit, then localization and depth.

    Where the first tuned model has not learnt its task, no claim is judged.
    """
    guard = None if study.depth is None else at_chance(study.depth)
    statements: list[Statement] = []
    first, *others = study.tuned
    for unit, comparison in study.comparisons.items():
        judge = _Judge(comparison, unit, guard, study.control)
        if unchanged(comparison, study.base, first):
            continue
        for name in study.tuned:
            statements += judge.tuned(study.base, name)
        statements.append(judge.on_scores(phang2021.TOP_UNLIKE_BASE, {"base": study.base, "tuned": first}))
        if others:
            roles = {"first": first, "second": others[0], "base": study.base}
            statements.append(judge.on_scores(phang2021.RESTARTS_AGREE, roles))
        for name in study.across:
            premise, control = f"{name} was tuned on the same task", judge.control_of(study.base)
            roles = {"tuned": first, "other": name}
            statements.append(judge.on_scores(phang2021.ALIKE_ACROSS, roles, premise=premise, control=control))
    if study.localization is not None:
        judge = _Judge(study.localization, LOCALIZATION, guard)
        statements += judge.localization([(study.base, name) for name in study.tuned])
    return (*statements, *(judge_depth(study.depth) if study.depth is not None else ()))


def unchanged(comparison: Comparison, base: str, tuned: str) -> bool:
    """Whether two models are one and the same but for rounding: nothing was tuned, so nothing is judged of tuning."""
    matrix = comparison.matrices[0]
    across, own = (matrix.between(base, name) for name in (tuned, base))
    if across.values.shape != own.values.shape:
        return False
    if [x.index for x in across.rows] != [y.index for y in across.columns]:
        return False
    gaps = np.abs(across.values.diagonal() - own.values.diagonal())
    return bool((gaps[~np.isnan(gaps)] <= SAME).all())


def at_chance(depth: Depth) -> Reason | None:
    """Why no published claim is judged by this model; None where it is clearly above always the commonest label."""
    full, floor = depth.full, depth.majority
    if not (full.value <= floor or full.low <= floor):
        return None
    known = "has not" if full.value <= floor else "may not have"
    detail = f"{depth.model.name} {known} learnt the task ({full:.3f}, always the commonest label {floor:.3f})"
    return Reason(MODEL_AT_CHANCE, detail)


@dataclass(frozen=True)
class _Judge:
    """Judges claims on one comparison."""

    comparison: Comparison
    unit: str = ""
    """Part of the ids in a study, where a claim is judged once a unit."""
    guard: Reason | None = None
    control: str | None = None
    """The study's random initialisation; in a plain comparison there may be one of the base's shape."""

    def tuned(self, base: str, tuned: str) -> Iterator[Statement]:
        """Claims about a model and one that was, or may have been, tuned from it."""
        roles = {"base": base, "tuned": tuned}
        premise = self.premise(base, tuned)
        yield self.on_scores(wu2020.TOP_CHANGES_MORE, roles, premise=premise)
        yield self.on_scores(phang2021.TWO_BLOCKS, roles, premise=premise, control=self.control_of(base))

    def on_scores(
        self, claim: Claim, roles: Mapping[str, str], *, premise: str = "", control: str | None = None
    ) -> Statement:
        """The claim by the first measure that can decide it, and how many of the others agree."""
        parts = {**roles, **({} if control is None else {"control": control})}
        measure, outcome = self._deciding(claim, parts)
        if outcome.verdict != OPEN and outcome.evidence is not None and not claim.only:
            outcome = replace(outcome, evidence=self._with_others(claim, parts, measure, outcome))
        return self.statement(claim, outcome, roles, measure, premise)

    def localization(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Statement]:
        """Claims about localization, where neuronsim and svsim were computed."""
        if not set(LOCALIZING) <= set(self.comparison):
            return
        scores, measure = wu2020.Localization.of(self.comparison), " − ".join(LOCALIZING)
        for model in scores.curves:
            roles = {"model": model}
            outcome = _outcome(wu2020.LOCALIZATION_RISES, scores, **roles)
            yield self.statement(wu2020.LOCALIZATION_RISES, outcome, roles, measure)
        for base, tuned in pairs:
            roles = {"base": base, "tuned": tuned}
            outcome = _outcome(wu2020.LESS_LOCALIZED_AT_TOP, scores, **roles)
            premise = self.premise(base, tuned)
            yield self.statement(wu2020.LESS_LOCALIZED_AT_TOP, outcome, roles, measure, premise)

    def _deciding(self, claim: Claim, parts: Mapping[str, str]) -> tuple[str, Outcome]:
        """The first outcome that chance does not keep from a verdict, else that of the first measure."""
        measures = deciders(self.comparison, claim.only)
        if not measures:
            detail = f"{claim.only} was not computed, without which chance cannot be excluded"
            return claim.only, unknown(CannotTellError(MISSING, detail))
        if claim.only == DEBIASED and not debiased_is_free_of_chance(self.comparison):
            detail = f"the chance level of {DEBIASED} is not known where a sentence has several rows"
            return claim.only, unknown(CannotTellError(BY_CHANCE, detail))
        outcomes = {m: self._by(m, claim, parts) for m in measures}
        first = measures[0]
        if outcomes[first].left_to_chance:
            first = next((m for m, o in outcomes.items() if o.verdict != OPEN), first)
        return first, outcomes[first]

    def _with_others(self, claim: Claim, parts: Mapping[str, str], measure: str, outcome: Outcome) -> Evidence | None:
        """The evidence, with how many of the other measures reach a verdict, and how many of them the same."""
        verdicts = [self._by(m, claim, parts).verdict for m in self.comparison if m != measure]
        decided = [v for v in verdicts if v != OPEN]
        evidence, agreeing = outcome.evidence, decided.count(outcome.verdict)
        if evidence is None or not decided:
            return evidence
        counts = {"other_measures": float(len(decided)), "other_measures_agreeing": float(agreeing)}
        agreement = f"{agreeing} of {len(decided)} other measures agree"
        note = f"{evidence.note}; {agreement}" if evidence.note else agreement
        return replace(evidence, numbers={**evidence.numbers, **counts}, note=note)

    def _by(self, measure: str, claim: Claim, parts: Mapping[str, str]) -> Outcome:
        return _outcome(claim, Scores.of(self.comparison, measure), **parts)

    def statement(
        self, claim: Claim, outcome: Outcome, roles: Mapping[str, str], measure: str, premise: str = ""
    ) -> Statement:
        unit = str(self.comparison.data.get("unit") or self.unit)
        known = {"measure": measure, "unit": unit, "premise": premise}
        about = {**roles, **{name: text for name, text in known.items() if text}}
        subject = [part for part in (self.unit, *roles.values()) if part]
        return statement(claim, outcome, about=about, subject=subject, guard=self.guard)

    def premise(self, base: str, tuned: str) -> str:
        """What must be true for the claim to apply; a study, or the model itself, may know it."""
        known = self.unit or any(m.name == tuned and m.base == base for m in self.comparison.models)
        return "" if known else f"{tuned} was fine-tuned from {base}"

    def control_of(self, base: str) -> str | None:
        """The random initialisation to compare with, if the comparison has one."""
        models = {m.name: m for m in self.comparison.models}
        if self.unit:
            return self.control if self.control in models else None
        return next((m.name for m in models.values() if m.is_control and _same_shape(m, models[base])), None)


def _outcome(claim: Claim, subject: Scores | Depth | wu2020.Localization, **roles: str | Scores | None) -> Outcome:
    try:
        return weigh(claim, claim.statistic(subject, **roles))
    except CannotTellError as e:
        return unknown(e)


def _same_shape(first: ModelInfo, second: ModelInfo) -> bool:
    return (first.family, first.layers, first.width) == (second.family, second.layers, second.width)


def _tuned_pairs(trained: Sequence[ModelInfo]) -> list[tuple[str, str]]:
    """Pairs of which the second may have been made from the first.

    Where a model's base is known, no other is; else it is the first model of the same shape: base, tuned, tuned.
    """
    pairs = [(b, a) if a.base == b.name else (a, b) for a, b in combinations(trained, 2) if _same_shape(a, b)]
    names = {m.name for m in trained}
    first = {m.name: next(o.name for o in trained if _same_shape(o, m)) for m in trained}
    return [(a.name, b.name) for a, b in pairs if b.base == a.name or (b.base not in names and first[b.name] == a.name)]
