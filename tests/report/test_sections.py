"""The answer in numbers, kind by kind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import report_cases as cases

from results.result_cases import PROBING
from stratoscope.aligners.fit import METHODS
from stratoscope.core.matrix import Layer
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value
from stratoscope.report.outline import answer, sections_of
from stratoscope.report.pictures import PALETTE, Curves, Panels
from stratoscope.report.sections.alignment import CEILING_TINT, TINTS
from stratoscope.report.sections.cutting.depth import droppable
from stratoscope.results.alignment import IDENTITY, SHUFFLED


def cards(result):
    return {c.label: c for c in answer(result, sections_of(result))}


def section(result, id):
    return next(s for s in sections_of(result).sections if s.id == id)


def test_a_comparison_says_where_it_changed_most_and_what_is_unchanged():
    made = cards(cases.pair([1.0, 0.999, 0.99, 0.7, 0.31]))
    assert made["tuned changed most at"].value == "layer 4"
    assert "0.690" in made["tuned changed most at"].note
    assert made["tuned: practically unchanged"].value == "layers 0–2"
    assert "0.010" in made["tuned: practically unchanged"].note


def test_a_layer_whose_interval_reaches_a_change_is_not_called_unchanged():
    made = cards(cases.pair([1.0, 0.99, 0.3], half_width=0.015))
    assert made["tuned: practically unchanged"].value == "layer 0"


def test_models_that_hardly_differ_are_practically_unchanged_with_digits_that_show_it():
    made = cards(cases.pair([1.0, 0.9999, 0.9997]))
    (card,) = made.values()
    assert card.label == "tuned: practically unchanged"
    assert card.value == "all 3 layers"
    assert "0.00030 at layer 2" in card.note


def test_drift_is_one_minus_similarity_with_the_ends_exchanged():
    comparison = cases.comparison()
    (line,) = next(p for p in section(comparison, "drift").pictures if p.when == {"measure": "ckasim"}).lines
    block = comparison["ckasim"].between("base", "tuned")
    np.testing.assert_allclose(line.values, 1 - np.diag(block.values))
    np.testing.assert_allclose(line.low, 1 - np.diag(block.high), atol=1e-9)
    np.testing.assert_allclose(line.high, 1 - np.diag(block.low))
    assert line.name == "tuned"


def test_identical_models_have_no_negative_drift():
    (line,) = section(cases.pair([1 + 1e-12, 1.0, 0.5]), "drift").pictures[0].lines
    assert line.values[0] == 0


def test_without_a_known_base_the_first_model_is_compared_with_each_other_of_its_depth():
    comparison = cases.comparison()
    models = tuple(dataclasses.replace(m, base=None) for m in comparison.models)
    lines = section(dataclasses.replace(comparison, models=models), "drift").pictures[0].lines
    assert [line.name for line in lines] == ["tuned"]


def test_a_control_beside_them_does_not_hide_the_drift_of_the_models():
    base = cases.comparison(("a", "b", "random"), depths=(4, 4, 4))
    roles = ({"base": None, "role": "model"}, {"base": None, "role": "model"}, {"base": "a", "role": "control"})
    models = tuple(dataclasses.replace(m, **role) for m, role in zip(base.models, roles, strict=True))
    result = dataclasses.replace(base, models=models)
    assert [line.name for line in section(result, "drift").pictures[0].lines] == ["b", "random"]
    assert "b changed most at" in cards(result)


def test_models_of_other_depths_have_no_drift_but_their_most_alike_layers():
    names = ("a", "b", "c")
    base = cases.comparison(names, depths=(5, 6, 7))
    models = tuple(dataclasses.replace(m, base=None, role="model") for m in base.models)
    result = dataclasses.replace(base, models=models)
    assert "drift" not in {s.id for s in sections_of(result).sections}
    best = np.nanmax(result["ckasim"].between("a", "b").values)
    assert f"{best:.3f}" in cards(result)["Most alike layers of a and b"].note


def test_chosen_layers_keep_their_numbers():
    whole = cases.comparison()
    keep = [k for k, r in enumerate(whole["ckasim"].rows) if r.model != "mini" and r.index in (4, 8, 12)]
    axis = tuple(whole["ckasim"].rows[k] for k in keep)
    few = dataclasses.replace(
        whole["ckasim"], rows=axis, columns=axis, values=whole["ckasim"].values[np.ix_(keep, keep)], low=None, high=None
    )
    result = dataclasses.replace(whole, matrices=(few,), models=whole.models[:2], findings={})
    made = sections_of(result)
    assert made.first.rows.ticks == ("4", "8", "12") * 2
    assert section(result, "drift").pictures[0].lines[0].layers == (4, 8, 12)
    assert made.switches == ()


def test_a_result_without_findings_or_matrices_still_has_sections():
    comparison = cases.comparison()
    bare = dataclasses.replace(comparison, findings={}, statements=(), provenance={}, warnings=())
    assert [s.id for s in sections_of(bare).sections] == ["similarity", "drift"]
    empty = dataclasses.replace(bare, matrices=())
    assert sections_of(empty).sections == ()
    assert sections_of(empty).cards


def test_a_model_alone_has_its_layers_and_blocks_but_no_drift():
    pair = cases.comparison()
    alone = tuple(m.between("base", "base") for m in pair.matrices)
    blocks = {"blocks": {m: {"base": s["base"]} for m, s in pair.findings["blocks"].items()}}
    result = dataclasses.replace(pair, matrices=alone, models=pair.models[:1], findings=blocks, statements=())
    assert [s.id for s in sections_of(result).sections] == ["similarity", "blocks"]


def test_localization_dashes_the_control_and_says_the_chance_level():
    (picture,) = section(cases.comparison(), "localization").pictures
    assert [(line.name, line.dashed) for line in picture.lines] == [
        ("base", False),
        ("tuned", False),
        ("mini (own layers)", True),
    ]
    assert "0.21" in picture.caption


def test_published_claims_are_counted():
    assert cards(cases.comparison())["Published claims on these models"].value == (
        "1 holds · 1 does not hold · 2 cannot tell"
    )


def test_depth_counts_droppable_blocks_by_value_and_with_confidence():
    depth = cases.depth(half_width=0.004)
    curve = depth.curve("untuned")
    assert droppable(depth, curve, sure=False) == 3
    wide = cases.depth(half_width=0.02)
    assert droppable(wide, wide.curve("untuned"), sure=True) == 0
    card = cards(wide)["Top blocks droppable within 1 point (untuned)"]
    assert card.value == "3 of 12"
    assert card.note.startswith("0 with 95 %")


def test_the_paired_difference_decides_where_resamples_were_kept():
    wide = cases.depth(half_width=0.02)
    curve = wide.curve("untuned")
    noise = np.random.default_rng(0).normal(0, 0.01, 200)
    paired = dataclasses.replace(curve, replicates=curve.values + noise[:, None])
    depth = dataclasses.replace(wide, curves=(paired,), full_replicates=0.912 + noise)
    assert droppable(depth, paired, sure=True) == 3


def test_a_model_that_does_not_beat_a_bag_of_words_is_a_caution():
    card = cards(cases.depth(bag_of_words=0.95))["Whole model: accuracy"]
    assert card.caution
    assert "0.950" in card.note
    assert not cards(cases.depth())["Whole model: accuracy"].caution
    assert cards(cases.depth(majority=0.91))["Whole model: accuracy"].caution


def test_a_span_within_a_point_despite_rounding_is_marked():
    skip = np.array([[0.90, 0.5], [np.nan, 0.899]])
    depth = cases.depth(2, full=Value(0.91), skip=skip, skip_agreement=None)
    (picture,) = section(depth, "skip").pictures
    assert picture.marks.tolist() == [[True, False], [False, False]]
    assert "change in points" in picture.beside
    assert len(picture.beside) == 1


def test_skip_intervals_come_from_kept_resamples():
    depth = cases.depth(3)
    replicates = depth.skip[None] + np.linspace(-0.02, 0.02, 41)[:, None, None]
    (picture,) = section(dataclasses.replace(depth, skip_replicates=replicates), "skip").pictures
    assert picture.low[0, 0] == pytest.approx(depth.skip[0, 0] - 0.019)


def test_depth_without_curves_or_skip_has_no_such_section():
    assert [s.id for s in sections_of(cases.depth(curves=())).sections] == ["skip"]
    assert [s.id for s in sections_of(cases.depth(skip=None, skip_agreement=None)).sections] == ["truncation"]


def test_a_study_has_panels_per_unit_and_measure_drift_blocks_depth_and_cut():
    study = cases.study(other=7)
    made = sections_of(study)
    assert [s.id for s in made.sections] == [
        *("layers", "drift", "blocks", "localization", "truncation", "skip", "cut", "choice")
    ]
    assert [s.options for s in made.switches] == [("cls", "mean"), ("ckasim", "ckasim-debiased")]
    panels = [p for p in made.pictures if isinstance(p, Panels)]
    assert [p.when for p in panels] == [{"unit": u, "measure": m} for u in study.comparisons for m in study["cls"]]
    assert [h.title for h in panels[0].panels][-2:] == ["FT–OTHER", "RANDOM–RANDOM"]
    assert panels[0].panels[1].rows.groups[0].name == "ft-1"
    assert len({h.range for p in panels if p.when["unit"] == "cls" for h in p.panels}) == 1
    drift = [p for p in made.pictures if isinstance(p, Curves) and p.stem == "drift-cls"]
    assert [line.name for line in drift[0].lines] == ["ft-1", "ft-2"]
    blocks = section(study, "blocks").tables[0]
    assert blocks.head[2] == "Minus base"
    by_name = {row[0]: row for row in blocks.rows}
    assert by_name["base"][2] == by_name["other"][2] == "–"
    assert by_name["ft-1"][2] == pytest.approx(by_name["ft-1"][1] - by_name["base"][1])


def test_a_study_keeps_the_warnings_of_its_parts_once_and_says_why_nothing_was_cut():
    study = cases.study(cut=None, refused="no cut is within the budget", warnings=("Only 300 rows.",))
    made = sections_of(study)
    assert made.warnings.count("Only 300 rows.") == 1
    assert "The validation rows are few." in made.warnings
    assert "no cut is within the budget" in section(study, "cut").lead
    assert cards(study)["Cut model"].value == "none"


def test_a_tuned_model_of_other_depth_has_no_drift():
    study = dataclasses.replace(cases.study(other=7), tuned=("other",), across=())
    assert section(study, "drift").pictures == ()
    assert section(study, "drift").lead


def test_too_few_rows_are_a_caution_and_the_bias_is_said_per_unit():
    study = cases.study()
    card = cards(study)["Rows per neuron"]
    assert card.caution
    assert card.value == "0.78"
    lead = section(study, "layers").lead
    one, two = (study["cls"][m].between("ft-1", "base").values for m in ("ckasim", "ckasim-debiased"))
    gap = np.nanmax(np.abs(one - two))
    assert f"cls rows: ckasim and ckasim-debiased differ by at most {gap:.3f}" in lead
    assert "mean rows" in lead
    assert "Rows per neuron" not in cards(cases.comparison())


def test_perplexity_says_what_the_top_block_is_worth():
    made = cards(cases.perplexities())
    assert made["Whole model: perplexity"].value.startswith("22.00")
    assert "3.10" in made["Without the top block"].note
    assert section(cases.perplexities(), "perplexity").pictures[0].log


def test_a_cut_says_blocks_change_parameters_and_time():
    made = cards(cases.cut())
    assert made["Blocks kept"].value == "7 of 12"
    assert made["Change of accuracy"].value == "−0.5 points"
    assert "−1.8 points" in made["Change of accuracy"].note
    assert made["Parameters"].value == "−27%"
    assert made["Time for the same rows"].value.startswith("0.61")
    table = section(cases.cut(), "cut").tables[0]
    assert table.rows[2] == ("Parameters", 33_360_000, 24_490_000)
    (tried,) = section(cases.cut(), "choice").tables
    assert [row[0] for row in tried.rows] == ["1–9", "1–7"]
    assert tried.rows[1][4] == Value(-0.005, -0.018, 0.008)
    assert tried.rows[1][5:] == (24_490_000, 0.61, "chosen")
    assert "all 872" in made["Judged on"].note


def test_measures_without_a_summary_are_shown_all_the_same():
    made = sections_of(cases.pair([1.0, 0.5], measure="homemade"))
    assert "homemade" in made.first.unit


def test_more_models_than_two_pairs_do_not_flood_the_cards():
    study = cases.study_unit(("base", "a", "b", "c", "d"), unit="mean", layers=5, other=5)
    models = tuple(
        ModelInfo(n, n, "bert", 5, 8, n, base=None if n == "base" else "base") for n in ["base", "a", "b", "c", "d"]
    )
    assert len(cards(dataclasses.replace(study, models=models))) <= 4


def test_every_method_is_averaged_over_blocks_and_pairs_with_an_interval_of_the_mean():
    result = cases.alignment()
    fits = [f.fit for f in result.fits if (f.group, f.fit.method) == ("models", "inn")]
    embeddings = dataclasses.replace(
        result.fits[0], x=Layer("seed-0", 0), fit=dataclasses.replace(fits[0], error=Value(9))
    )
    result = dataclasses.replace(result, fits=(*result.fits, embeddings))  # which are no block
    page = sections_of(result)
    (table,) = [t for s in page.sections for t in s.tables if t.id == "means"]
    rows = {row[0]: row[1:] for row in table.rows}
    error, mse, deviation, inversion = rows["inn"]
    assert error.value == pytest.approx(sum(f.error.value for f in fits) / len(fits))
    drawn = sum(f.replicates for f in fits) / len(fits)
    assert (error.low, error.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
    assert mse == pytest.approx(np.mean([f.mse.value for f in fits]))
    assert deviation == pytest.approx(np.std([f.mse.value for f in fits]))
    assert inversion == 3e-8
    assert {"ridge", "inn, before fine-tuning", "identity", "ridge on shuffled pairs"} < set(rows)
    assert rows["inn, before fine-tuning"] != rows["inn"]


def test_every_method_has_a_look_of_its_own_in_all_pictures():
    looks = {(tint % len(PALETTE), tint // len(PALETTE)) for tint in (*TINTS.values(), CEILING_TINT)}
    assert set(TINTS) == {*METHODS, SHUFFLED, IDENTITY}
    assert len(looks) == len(TINTS) + 1
    assert max(tint for tint in TINTS.values()) < 3 * len(PALETTE)


def test_the_best_linear_map_leads_and_is_held_against_the_floor_the_identity_and_a_ceiling():
    result = cases.alignment()
    seed = dataclasses.replace(next(result.of("inn", layer=6)), group="ceiling")
    worse = [dataclasses.replace(f, fit=dataclasses.replace(f.fit, method="linreg")) for f in result.of(IDENTITY)]
    found = dataclasses.replace(result, fits=(*result.fits, seed, *worse))
    labels = [label.partition(":")[0] for label in cards(found)]
    assert labels[:5] == ["ridge", "inn", "ridge on shuffled pairs", "identity", "inn from another seed"]
    assert "then linreg 0." in next(c.note for c in sections_of(found).cards)


def test_the_steps_of_the_neurons_stand_against_all_of_them_and_what_is_near_enough():
    (drawn,) = section(PROBING, "steps").pictures
    (line,) = drawn.lines
    assert line.layers == (1, 2)
    assert line.values.tolist() == [0.5, 0.6]
    assert [level.value for level in drawn.levels] == [0.9, pytest.approx(0.89)]
    low, high = drawn.range
    assert low < 0.5 < 0.9 < high
    frame = drawn.tidy()
    assert list(frame) == ["curve", "percent", "value", "low", "high"]
    assert frame.percent.tolist()[:2] == [1, 2]


def test_penalties_are_numbers_of_two_columns():
    frames = [t.tidy() for name in ("penalties", "neurons") for t in section(PROBING, name).tables]
    layers, neurons = (f for f in frames if "λ1" in f)
    assert neurons[["λ1", "λ2"]].astype(float).to_numpy().tolist() == [[0.001, 0.0]]
    assert layers["λ1"].astype(float).tolist()[2:] == [0.2, 0.3]
