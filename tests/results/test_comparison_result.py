"""A comparison is a mapping from measures to matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from results.result_cases import BASE, COMPARISON, SQUARE, TUNED, square
from stratoscope.core.errors import StratoscopeError
from stratoscope.results.comparison import Comparison


def test_a_comparison_is_a_mapping_of_matrices() -> None:
    assert list(COMPARISON) == ["linreg", "ckasim"]
    assert len(COMPARISON) == 2
    assert COMPARISON["ckasim"].measure == "ckasim"
    assert "cca" not in COMPARISON
    assert COMPARISON.get("cca") is None
    with pytest.raises(StratoscopeError, match=r"'cka'.*linreg, ckasim"):
        COMPARISON["cka"]


def test_a_comparison_is_shown_in_one_short_line() -> None:
    assert repr(COMPARISON) == "Comparison(linreg, ckasim of base, tuned)"


def test_a_missing_value_is_null_on_disk_and_nan_in_memory(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    assert "NaN" not in (tmp_path / "result.json").read_text(encoding="utf-8")
    loaded = Comparison.load(tmp_path)["ckasim"].values
    assert np.isnan(loaded[0]).all()
    assert not np.isnan(loaded[1:, 1:]).any()


def test_a_block_keeps_its_axes_and_resamples_through_a_file(tmp_path: Path) -> None:
    block = square(intervals=True).between("tuned", "base")
    replace(COMPARISON, matrices=(block,)).save(tmp_path)
    loaded = Comparison.load(tmp_path)["linreg"]
    assert (loaded.rows, loaded.columns) == (TUNED, BASE)
    np.testing.assert_array_equal(loaded.values, SQUARE[3:, :3])
    assert block.replicates is not None
    assert loaded.replicates is not None
    np.testing.assert_array_equal(loaded.replicates, block.replicates)
