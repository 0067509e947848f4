from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from study_cases import add_other, make_comparison, make_study, quartered

from stratoscope.core.errors import StratoscopeError
from stratoscope.results.study import Study
from stratoscope.report.studyparts import drift, largest_difference, matrices, panels, quarters


def test_four_panels_and_the_control_with_rows_from_the_first_name():
    parts = make_study()
    whole = parts.comparisons["cls"]["ckasim"]
    found = {p.title: p.matrix for p in panels(parts, whole)}
    assert list(found) == ["ORIG–ORIG", "FT–ORIG", "FT–FT", "FT[1]–FT[2]", "RANDOM–RANDOM"]
    models = [(m.rows[0].model, m.columns[0].model) for m in found.values()]
    assert models == [("base", "base"), ("ft-1", "base"), ("ft-1", "ft-1"), ("ft-1", "ft-2"), ("random", "random")]
    assert found["FT–ORIG"].values[9, 4] == whole.at(("ft-1", 9), ("base", 4))
    assert found["FT–ORIG"].values[9, 4] != whole.at(("base", 9), ("ft-1", 4))


def test_one_restart_and_no_control_leave_three_panels():
    parts = dataclasses.replace(make_study(), tuned=("ft-1",), control=None)
    assert len(panels(parts, parts.comparisons["cls"]["ckasim"])) == 3


def test_another_model_adds_a_panel_with_the_tuned_layers_on_the_rows():
    block = np.arange(13 * 7).reshape(13, 7) / 100
    parts = add_other(make_study(), block)
    found = {p.title: p.matrix for p in panels(parts, parts.comparisons["mean"]["ckasim"])}
    assert list(found)[3:] == ["FT[1]–FT[2]", "FT–OTHER", "RANDOM–RANDOM"]
    got = found["FT–OTHER"]
    assert [got.rows[0].model, got.columns[0].model] == ["ft-1", "other"]
    np.testing.assert_array_equal(got.values, block)
    two = add_other(parts, block[:, :5] + 0.01, name="second")
    found = {p.title: p.matrix for p in panels(two, two.comparisons["mean"]["ckasim"])}
    assert list(found)[4:6] == ["FT–OTHER[1]", "FT–OTHER[2]"]
    np.testing.assert_array_equal(found["FT–OTHER[2]"].values, block[:, :5] + 0.01)


def test_quarters_are_means_of_halves_of_any_depth_without_layer_0():
    parts = add_other(make_study(), quartered(0.7, 0.6, 0.2))
    matrix = parts.comparisons["mean"]["ckasim"]
    assert quarters(matrix, "ft-1", "other") == pytest.approx((0.7, 0.6, 0.2))
    block = np.full((13, 6), np.nan)
    block[1:7, 1:3], block[7:, 4:], block[1:7, 4:], block[7:, 1:3] = 0.8, 0.5, 0.1, 0.3
    odd = add_other(make_study(), block)
    matrix = odd.comparisons["mean"]["ckasim"]
    assert quarters(matrix, "ft-1", "other") == pytest.approx((0.8, 0.5, 0.2)), "block 3 of 5 is in neither half"
    shallow = add_other(make_study(), np.ones((13, 2)))
    assert quarters(shallow.comparisons["mean"]["ckasim"], "ft-1", "other") is None


def test_drift_is_one_minus_the_diagonal_with_the_interval_turned_over():
    matrix = make_study().comparisons["cls"]["ckasim"]
    got, block = drift(matrix, "base", "ft-1"), matrix.between("base", "ft-1")
    assert np.isnan(got.values[0])
    assert got.values[8] == pytest.approx(1 - block.values[8, 8])
    assert got.low[8] == pytest.approx(1 - block.high[8, 8])
    assert got.high[8] == pytest.approx(1 - block.low[8, 8])
    assert got.low[8] < got.values[8] < got.high[8]
    assert drift(make_comparison(intervals=False)["ckasim"], "base", "ft-1").low is None


def test_models_of_other_depths_have_no_drift(comparison):
    assert drift(comparison["ckasim"], "base", "mini") is None


def test_the_largest_difference_of_biased_and_debiased_is_found():
    parts = make_study()
    comparison = parts.comparisons["cls"]
    got = largest_difference(parts, comparison)
    gaps = np.abs(comparison["ckasim"].values - comparison["ckasim-debiased"].values)
    shown = [name in ("base", "ft-1") for name in (layer.model for layer in comparison["ckasim"].rows)]
    assert got.size == pytest.approx(np.nanmax(gaps[np.ix_(shown, shown)]))
    where = (got.row.model, got.row.index), (got.column.model, got.column.index)
    assert got.biased == comparison["ckasim"].at(*where)
    assert got.debiased == comparison["ckasim-debiased"].at(*where)
    only = dataclasses.replace(comparison, matrices=comparison.matrices[:1])
    assert largest_difference(parts, only) is None


def test_bad_parts_say_what_to_do(make_findings):
    with pytest.raises(StratoscopeError, match="at least one fine-tuned model, got none; name it after the base model"):
        Study({}, "base", ())
    with pytest.raises(
        StratoscopeError, match="expected ckasim or ckasim-debiased, got svsim; compare again with them"
    ):
        matrices(make_findings({}, measures=("svsim",)))
