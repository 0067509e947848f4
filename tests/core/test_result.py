from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.TODO.result import ARRAYS, FORMAT, RESULT
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Interval
from stratoscope.results.comparison import Comparison
from stratoscope.core.files import digest

BASE = tuple(Layer("base", k) for k in range(3))
TUNED = tuple(Layer("tuned", k) for k in range(2))
AXES = (*BASE, *TUNED)
SQUARE = np.arange(25.0).reshape(5, 5) / 7
"""Asymmetric on purpose: row i, column j holds (5i + j) / 7."""


def square(*, intervals: bool = False) -> Matrix:
    if not intervals:
        return Matrix("linreg", AXES, AXES, SQUARE)
    return Matrix("linreg", AXES, AXES, SQUARE, SQUARE - 0.1, SQUARE + 0.2, Interval(0.95, "bootstrap"))


@pytest.fixture
def comparison() -> Comparison:
    absent = SQUARE.copy()
    absent[0] = absent[:, 0] = math.nan
    return Comparison(
        matrices=(square(intervals=True), Matrix("ckasim", AXES, AXES, absent)),
        models=(
            ModelInfo("base", "path/base", "bert", 3, 8, "sha256:1"),
            ModelInfo("tuned", "org/tuned", "bert", 2, 8, "c0ffee", role="control", base="base"),
        ),
        data={"name": "süß.txt", "rows": 90, "dropped": {"words": 2}},
        findings={"localization": {"base": [0.1, None, 0.2]}},
        warnings=("few rows",),
        provenance={"seed": 3, "versions": {"torch": "2"}},
        arrays={"neuronsim.match": np.arange(6).reshape(2, 3), "neuronsim.correlation": np.ones((2, 3), np.float32)},
    )


# --- matrices --------------------------------------------------------------------------------------------------------


def test_between_has_the_first_model_on_the_rows() -> None:
    block = square(intervals=True).between("base", "tuned")
    assert (block.rows, block.columns) == (BASE, TUNED)
    np.testing.assert_array_equal(block.values, SQUARE[:3, 3:])
    assert block.low is not None
    assert block.high is not None
    np.testing.assert_array_equal(block.low, SQUARE[:3, 3:] - 0.1)
    np.testing.assert_array_equal(block.high, SQUARE[:3, 3:] + 0.2)
    assert block.interval == Interval(0.95, "bootstrap")
    np.testing.assert_array_equal(square().between("tuned", "base").values, SQUARE[3:, :3])


def test_one_score_by_row_then_column() -> None:
    assert square().at(("base", 1), ("tuned", 0)) == SQUARE[1, 3]
    assert square().at(("tuned", 0), ("base", 1)) == SQUARE[3, 1]
    assert square().position("tuned", 1) == 4


def test_layers_keep_their_numbers_when_some_were_left_out() -> None:
    axis = (Layer("m", 2), Layer("m", 5))
    matrix = Matrix("cca", axis, axis, np.array([[1.0, 0.2], [0.3, 1.0]]))
    assert matrix.at(("m", 2), ("m", 5)) == 0.2
    with pytest.raises(StratoscopeError, match=r"m has no layer 3 here; its layers are 2, 5 \(0 = embeddings\)"):
        matrix.at(("m", 3), ("m", 5))


def test_the_frame_is_labelled_on_both_axes() -> None:
    frame = square().between("base", "tuned").to_frame()
    assert list(frame.index) == ["base:0", "base:1", "base:2"]
    assert list(frame.columns) == ["tuned:0", "tuned:1"]
    assert frame.loc["base:2", "tuned:0"] == SQUARE[2, 3]


def test_models_come_in_the_order_of_the_rows() -> None:
    assert square().models == ("base", "tuned")
    assert square().between("tuned", "base").models == ("tuned",)


def test_an_unknown_model_or_layer_is_named() -> None:
    with pytest.raises(StratoscopeError, match=r"unknown model 'bas'; did you mean 'base'\? choose from: base, tuned"):
        square().between("bas", "tuned")
    with pytest.raises(StratoscopeError, match="unknown model 'x'"):
        square().at(("base", 0), ("x", 0))
    with pytest.raises(StratoscopeError, match=r"tuned has no layer 7 here; its layers are 0-1 \(0 = embeddings\)"):
        square().position("tuned", 7)


@pytest.mark.parametrize("field", ["values", "low", "high"])
def test_values_must_fit_the_axes(field: str) -> None:
    arrays = {"values": SQUARE, "low": SQUARE, "high": SQUARE, field: SQUARE[:4]}
    with pytest.raises(ValueError, match=rf"{field} of cca: expected shape \(5, 5\) from the axes, got \(4, 5\)"):
        Matrix("cca", AXES, AXES, **arrays)


def test_a_matrix_draws_itself() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    figure = square().between("base", "tuned").plot()
    assert figure.axes


def test_a_matrix_is_shown_in_one_short_line() -> None:
    assert repr(square()) == "Matrix(linreg, 5×5 layers of base, tuned)"
    assert repr(square().between("base", "tuned")) == "Matrix(linreg, 3×2 layers of base against tuned)"


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_a_comparison_is_a_mapping_of_matrices(comparison: Comparison) -> None:
    assert list(comparison) == ["linreg", "ckasim"]
    assert len(comparison) == 2
    assert comparison["ckasim"].measure == "ckasim"
    assert "cca" not in comparison
    assert comparison.get("cca") is None
    with pytest.raises(StratoscopeError, match=r"unknown measure in this result 'cka'.*choose from: linreg, ckasim"):
        comparison["cka"]


def test_a_comparison_is_shown_in_one_short_line(comparison: Comparison) -> None:
    assert repr(comparison) == "Comparison(linreg, ckasim of base, tuned)"


def test_saved_and_loaded_it_is_the_same(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    loaded = Comparison.load(tmp_path)
    for name, matrix in comparison.items():
        for field in ("values", "low", "high"):
            expected, got = getattr(matrix, field), getattr(loaded[name], field)
            assert (expected is None) == (got is None)
            if expected is not None:
                np.testing.assert_array_equal(expected, got)
        assert (loaded[name].rows, loaded[name].columns) == (matrix.rows, matrix.columns)
        assert loaded[name].interval == matrix.interval
    assert loaded.models == comparison.models
    assert (loaded.data, loaded.findings) == (comparison.data, comparison.findings)
    assert (loaded.warnings, loaded.provenance) == (comparison.warnings, comparison.provenance)
    assert loaded.arrays.keys() == comparison.arrays.keys()
    for name, array in comparison.arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


def test_saved_twice_it_is_the_same_bytes(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path / "a")
    Comparison.load(tmp_path / "a").save(tmp_path / "b")
    for name in (RESULT, ARRAYS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_absent_value_is_null_on_disk_and_nan_in_memory(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    text = (tmp_path / RESULT).read_text(encoding="utf-8")
    assert "NaN" not in text
    assert json.loads(text)["matrices"][1]["values"][0] == [None] * 5
    loaded = Comparison.load(tmp_path)["ckasim"].values
    assert np.isnan(loaded[0]).all()
    assert not np.isnan(loaded[1:, 1:]).any()


def test_a_block_keeps_its_axes_through_a_file(comparison: Comparison, tmp_path: Path) -> None:
    replace(comparison, matrices=(square().between("tuned", "base"),)).save(tmp_path)
    loaded = Comparison.load(tmp_path)["linreg"]
    assert (loaded.rows, loaded.columns) == (TUNED, BASE)
    np.testing.assert_array_equal(loaded.values, SQUARE[3:, :3])


def test_nothing_saved_yet(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"no result.json in .*; run 'stratoscope compare ... --out .*' first"):
        Comparison.load(tmp_path / "nowhere")


def test_a_result_of_another_format(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    change(tmp_path, format=FORMAT + 1)
    with pytest.raises(StratoscopeError, match=rf"has format {FORMAT + 1}, this version reads {FORMAT}; run it again"):
        Comparison.load(tmp_path)


def test_a_result_of_another_kind(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    assert json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))["kind"] == "comparison"
    change(tmp_path, kind="depth")
    with pytest.raises(StratoscopeError, match=r"result.json holds a depth, expected a comparison; run it again"):
        Comparison.load(tmp_path)


def test_what_a_later_version_adds_is_ignored(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    plain = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))
    for place in (plain, plain["models"][0], plain["matrices"][0], plain["matrices"][0]["interval"]):
        place["mood"] = "good"
    del plain["sha256"]
    change(tmp_path, **plain, sha256=digest(plain, length=64))
    loaded = Comparison.load(tmp_path)
    assert loaded.models == comparison.models
    assert loaded["linreg"].interval == comparison["linreg"].interval


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        f'{{"format": {FORMAT}}}',
        "\x00\x00",
        '"text"',
        f'{{"format": {FORMAT}, "kind": "comparison"}}',
    ],
)
def test_a_damaged_result(comparison: Comparison, tmp_path: Path, text: str) -> None:
    comparison.save(tmp_path)
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(StratoscopeError, match=r"result.json is damaged \(.*\); run the same command again to mend it"):
        Comparison.load(tmp_path)


def test_a_result_cut_short(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    whole = (tmp_path / RESULT).read_bytes()
    (tmp_path / RESULT).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StratoscopeError, match="is damaged"):
        Comparison.load(tmp_path)


def test_one_changed_digit_is_noticed(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    text = (tmp_path / RESULT).read_text(encoding="utf-8")
    digit = str(float(SQUARE[2, 3]))
    assert digit in text
    (tmp_path / RESULT).write_text(text.replace(digit, "0.5", 1), encoding="utf-8")
    with pytest.raises(StratoscopeError, match=r"is damaged \(its checksum does not match\)"):
        Comparison.load(tmp_path)


def test_arrays_missing_or_damaged(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    data = bytearray((tmp_path / ARRAYS).read_bytes())
    data[-1] ^= 1
    (tmp_path / ARRAYS).write_bytes(data)
    words = r"arrays.safetensors is missing or damaged; run the same command again to mend it"
    with pytest.raises(StratoscopeError, match=words):
        Comparison.load(tmp_path)
    (tmp_path / ARRAYS).unlink()
    with pytest.raises(StratoscopeError, match=words):
        Comparison.load(tmp_path)


def change(folder: Path, **fields: object) -> None:
    plain = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    (folder / RESULT).write_text(json.dumps(plain | fields), encoding="utf-8")
