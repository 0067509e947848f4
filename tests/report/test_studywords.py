from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from study_cases import CUT, add_localization, add_other, make_comparison, make_depth, make_study, quartered

from stratoscope.report.studyparts import largest_difference
from stratoscope.report.studywords import cut_sentence, study_groups, study_sentences


def only(sentences, words):
    (found,) = [s for s in sentences if words in s]
    return found


def about(parts, unit="cls"):
    return dict(study_groups(parts))[f"Layers ({unit})"]


def test_few_rows_say_how_far_biased_and_debiased_are_apart():
    parts = make_study()
    gap = largest_difference(parts, parts.comparisons["cls"])
    said = only(about(parts), "biased and debiased CKA differ")
    assert f"300 rows for layers of 384 neurons: biased and debiased CKA differ by up to {gap.size:.3f} (" in said
    assert f"{gap.row} and {gap.column}, {gap.biased:.2f} and {gap.debiased:.2f}" in said
    assert "trust the debiased one" in said
    enough = only(about(make_study(rows=5000, bias=0.004)), "biased and debiased CKA differ")
    assert enough.startswith("5,000 rows")
    assert "at most 0.00" in enough
    assert enough.endswith("so the rows suffice.")


def test_drift_names_layer_value_interval_and_debiased():
    parts = make_study()
    matrix, debiased = parts.comparisons["cls"].matrices
    block = matrix.between("ft-1", "base")
    said = only(about(parts), "ft-1 moved furthest")
    low, high = 1 - block.high[12, 12], 1 - block.low[12, 12]
    other = 1 - debiased.at(("ft-1", 12), ("base", 12))
    want = f"at layer 12 (1 − CKA {1 - block.values[12, 12]:.2f} [{low:.2f}, {high:.2f}]; debiased {other:.2f})"
    assert want in said
    assert only(about(parts), "Mean drift of ft-1").endswith("(Wu et al. 2020, section 6) holds here.")
    still = make_study(sharp=0.0)
    assert "does NOT hold here" in only(about(still), "Mean drift of ft-1")


def test_blocks_stand_beside_the_untuned_models_own_and_the_controls():
    parts = make_study()
    found = parts.comparisons["cls"].findings["blocks"]
    tuned, own = found["ckasim"]["ft-1"], found["ckasim"]["base"]
    said = only(about(parts), "ft-1 splits best into two blocks")
    assert f"at layer {tuned['start']}, with a contrast (mean similarity within" in said
    assert f"the blocks less that between them) of {tuned['contrast']:.2f} (debiased" in said
    assert f"(debiased {found['ckasim-debiased']['ft-1']['contrast']:.2f})" in said
    assert f"own is {own['contrast']:.2f}, its second block from layer {own['start']}" in said
    numbers = " against ".join(f"{found['ckasim-debiased'][n]['contrast']:.2f}" for n in ("ft-1", "base"))
    assert said.endswith(f"holds here by ckasim-debiased ({numbers}); ckasim alone, up to 0.56 by chance, cannot tell.")
    many = make_study(rows=20_000)
    assert only(about(many), "ft-1 splits best into two blocks").endswith("holds here.")
    assert "the tuned models' are clearer" in only(about(parts), "random initialisation")
    still = about(make_study(sharp=0.0))
    assert "does NOT hold here by ckasim-debiased (" in only(still, "ft-1 splits best")
    assert only(about(make_study(sharp=0.0, rows=20_000)), "ft-1 splits best").endswith("does NOT hold here.")
    assert "the split of ft-1 is not clearer than that" in only(still, "random initialisation")


def test_top_layers_and_restarts():
    parts = make_study()
    assert only(about(parts), "The top layer of ft-1 is closest to layer 12 of base").endswith("holds here.")
    assert only(about(make_study(rows=20_000)), "have a mean CKA of").endswith("holds here.")
    assert only(about(parts), "have a mean CKA of").endswith(
        "holds here by ckasim-debiased (0.62 and 0.23); ckasim alone, up to 0.56 by chance, cannot tell."
    )
    still = make_study(sharp=0.0)
    assert only(about(still), "The top layer of ft-1").endswith("does NOT hold here.")
    single = dataclasses.replace(parts, tuned=("ft-1",))
    assert not [s for s in about(single) if "with each other" in s]


CHANCE = (
    "cannot be judged here: with so few rows unrelated layers score ckasim up to 0.56, so chance alone may decide it."
)


@pytest.mark.parametrize(
    ("words", "sharp"),
    [
        ("Mean drift of ft-1", 0.05),
        ("ft-1 splits best", 1.5),
        ("The top layer of ft-1", 0.5),
        ("have a mean CKA of", 1.5),
    ],
)
def test_what_chance_may_decide_is_judged_by_debiased_cka_or_not_at_all(words, sharp):
    parts = make_study(sharp=sharp)
    assert "by ckasim-debiased (" in only(about(parts), words)
    biased = {u: dataclasses.replace(c, matrices=c.matrices[:1]) for u, c in parts.comparisons.items()}
    for c in biased.values():
        c.findings["blocks"].pop("ckasim-debiased")
    alone = dataclasses.replace(parts, comparisons=biased)
    assert only(about(alone), words).endswith(CHANCE)
    if words == "ft-1 splits best":
        assert "higher, but with so few rows chance alone may do that" in only(about(alone), "random initialisation")
    many = {u: dataclasses.replace(c, data={**c.data, "rows": 20_000}) for u, c in biased.items()}
    assert only(about(dataclasses.replace(alone, comparisons=many)), words).endswith(("holds here.", "NOT hold here."))


def test_constant_layers_are_absent_and_only_where_they_are():
    parts = make_study()
    assert only(about(parts), "Constant on these rows: layer 0.")
    assert not [s for s in about(parts, "mean") if "Constant on these rows" in s]


FIG_7 = "'the earlier and the later layers are similar even across models' (Phang et al. 2021, Fig. 7)"


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((0.7, 0.6, 0.2), "holds here."),
        ((0.7, 0.21, 0.2), "does NOT hold here, for lack of a match of the later layers."),
        ((0.2, 0.6, 0.2), "does NOT hold here, for lack of a match of the earlier layers."),
        ((0.2, 0.2, 0.6), "does NOT hold here, for lack of a match of the earlier and of the later layers."),
    ],
)
def test_layers_across_models_match_half_by_half_or_do_not(scores, verdict):
    parts = add_other(make_study(), quartered(*scores))
    said = only(about(parts, "mean"), "Across models, ft-1 and other")
    early, late, crossed = (f"{s:.2f}" for s in scores)
    assert f"mean CKA {early} of the lower halves, {late} of the upper halves, {crossed} of one's lower with" in said
    assert f"(debiased {early}, {late} and {crossed}). If other was tuned on the same task, {FIG_7} {verdict}" in said
    assert not [s for s in about(parts, "mean") if "other moved" in s or "drift of other" in s]


def test_debiased_cka_decides_across_models():
    parts = add_other(make_study(), quartered(0.7, 0.6, 0.2))
    units = dict(parts.comparisons)
    biased, debiased = units["mean"].matrices
    biased = dataclasses.replace(biased, values=np.full_like(biased.values, 0.6))
    units["mean"] = dataclasses.replace(units["mean"], matrices=(biased, debiased))
    said = only(about(dataclasses.replace(parts, comparisons=units), "mean"), "Across models")
    assert "mean CKA 0.60 of the lower halves" in said
    assert said.endswith(f"{FIG_7} holds here, by debiased CKA; the biased one disagrees.")
    units["mean"] = dataclasses.replace(units["mean"], matrices=(biased,))
    said = only(about(dataclasses.replace(parts, comparisons=units), "mean"), "Across models")
    assert said.endswith(f"{FIG_7} is not judged here: without debiased CKA, a likeness cannot be told from chance.")


def test_a_match_across_models_that_the_control_has_too_is_no_evidence():
    chance = add_other(make_study(), quartered(0.7, 0.6, 0.2), control=0.65)
    said = only(about(chance, "mean"), "no evidence of anything learnt alike")
    assert said.startswith(
        "The upper halves of ft-1 and other are not clearly closer (debiased CKA 0.60) than those of ft-1 and"
    )
    assert "the random initialisation random (0.65)" in said
    clear = add_other(make_study(), quartered(0.7, 0.6, 0.2), control=0.5)
    assert not [s for s in about(clear, "mean") if "learnt alike" in s]
    alone = dataclasses.replace(chance, control=None)
    assert not [s for s in about(alone, "mean") if "learnt alike" in s]


def test_constant_layers_of_some_models_name_them():
    parts = add_other(make_study(), quartered(0.7, 0.6, 0.2))
    assert only(about(parts), "Constant on these rows: layer 0 of base, ft-1, ft-2, random.")


@pytest.mark.parametrize(
    ("top", "chance", "how", "verdict"),
    [
        (0.1, 0.01, "less", "holds here."),
        (1.5, 0.01, "not clearly less", "does NOT hold here."),
        (0.1, 0.9, "less", "cannot be judged here: the two are 0.85 apart, which is within svsim's chance level"),
    ],
)
def test_localization_before_and_after(top, chance, how, verdict):
    parts = add_localization(make_study(), top=top, chance=chance)
    said = dict(study_groups(parts))["Localization"]
    line = only(said, "ft-1 is")
    assert f"In the upper half (layers 7-12) ft-1 is {how} localized than base: mean {top:.2f} against 0.95." in line
    assert f"0.95. 'less localized at the top' (Wu et al. 2020, section 6) {verdict}" in line
    assert only(said, "ft-2 is not clearly less localized than base")
    assert not [s for s in said if "If ft-2" in s or "than ft-1" in s], "what was tuned from what is known here"
    assert only(
        said, "Localization of the control random, over its own layers only: 0.00 at layer 0, 1.20 at layer 12."
    )
    assert only(study_sentences(parts), "Warning: left out: 3 words")


def test_depth_cut_and_warnings_follow_once_each():
    said = study_sentences(make_study())
    assert only(said, "the top 3 of 12 blocks can go within one point")
    assert only(said, "The cut model keeps 7 of 12 blocks")
    assert only(said, "Warning: the validation rows are few")
    assert only(said, "Warning: only 300 rows")
    bare = dataclasses.replace(make_study(), depth=None, cut=None)
    assert [head for head, _ in study_groups(bare)] == [
        "Layers (cls)",
        "Layers (mean)",
    ]


def test_the_cut_in_numbers_or_why_not():
    assert cut_sentence(CUT) == (
        "The cut model keeps 7 of 12 blocks: accuracy 0.912 [0.892, 0.931] before, 0.907 [0.886, 0.926] after, on 436"
        " rows not used for the choice (at least 95% sure that the loss is within 2 points); 33.4 M parameters become"
        " 24.5 M (-27%), and it takes 0.61 of the time."
    )
    tuned = cut_sentence(CUT | {"head": {"tuned": True, "converged": True}})
    assert "[0.886, 0.926] after, its head tuned for the layer it reads now, on 436 rows" in tuned
    assert cut_sentence({"refused": "no depth stays within 0.01."}) == "No depth stays within 0.01."


@pytest.mark.parametrize("missing", ["findings", "one measure", "intervals"])
def test_words_cope_with_what_is_missing(missing):
    parts = make_study(intervals=missing != "intervals")
    units = dict(parts.comparisons)
    if missing == "findings":
        units["cls"] = dataclasses.replace(units["cls"], findings={})
    if missing == "one measure":
        units["cls"] = dataclasses.replace(units["cls"], matrices=units["cls"].matrices[1:])
    said = " ".join(about(dataclasses.replace(parts, comparisons=units)))
    assert ("splits best" in said) == (missing != "findings")
    assert ("the bias cannot be seen" in said) == (missing == "one measure")
    assert ("(1 − CKA 0.78 [" in said) == (missing == "findings")
    assert "nan" not in said


def test_models_of_other_depths_say_so():
    wide, other = make_comparison(), make_comparison(("base", "x"), layers=5)
    axis = tuple(layer for layer in wide["ckasim"].rows if layer.model == "base")
    deep = other["ckasim"].between("x", "x").rows
    rows = (*axis, *deep)
    matrix = dataclasses.replace(
        wide["ckasim"], rows=rows, columns=rows, values=wide["ckasim"].values[:18, :18], low=None, high=None
    )
    mixed = dataclasses.replace(wide, matrices=(matrix,), findings={})
    parts = dataclasses.replace(make_study(), comparisons={"cls": mixed}, tuned=("x",), control=None)
    assert only(about(parts), "x and base do not have the same layers, so there is no drift by layer.")


def test_findings_about_tuned_models_are_not_judged_by_one_at_chance():
    learnt = add_localization(add_other(make_study(), quartered(0.7, 0.6, 0.2)))
    chance = dataclasses.replace(learnt, depth=make_depth(name="ft-1", majority=0.909))
    (head, (why,)), *groups = study_groups(chance)
    assert head == "Verdicts"
    assert why == (
        "ft-1 may not have learnt the task (accuracy 0.912 [0.908, 0.916], always the commonest label 0.909), so no "
        "published finding is judged here."
    )
    said = [s for _, group in groups for s in group]
    assert not [s for s in said if "et al." in s or "holds here" in s or "NOT hold" in s]
    for words, whose, where in (
        ("Mean drift of ft-1", "Wu et al. 2020, section 6", "mean"),
        ("Mean drift of ft-2", "Wu et al. 2020, section 6", "mean"),
        ("ft-1 splits best", "Phang et al. 2021", "mean"),
        ("ft-2 splits best", "Phang et al. 2021", "mean"),
        ("The top layer of ft-1", "Phang et al. 2021", "mean"),
        ("with each other", "Phang et al. 2021", "mean"),
        ("Across models", "Phang et al. 2021", "mean"),
        ("Localization of base", "Wu et al. 2020, section 5.1", "Localization"),
        ("In the upper half (layers 7-12) ft-1", "Wu et al. 2020, section 6", "Localization"),
    ):
        head = where if where == "Localization" else f"Layers ({where})"
        (before,), (after,) = ([s for s in dict(study_groups(p))[head] if words in s] for p in (learnt, chance))
        assert before.startswith(f"{after} ")
        assert whose in before.removeprefix(after), "the verdict is all that is gone"
    assert "Verdicts" not in dict(study_groups(learnt))
    unknown = dataclasses.replace(chance, depth=None)
    assert [s for s in about(unknown, "mean") if "et al." in s] == [s for s in about(learnt, "mean") if "et al." in s]
