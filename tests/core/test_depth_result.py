from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stratoscope.TODO.depth import ABSENT, DEPTH, Point
from stratoscope.core.curve import Curve
from stratoscope.results.depth import Depth
from stratoscope.core.errors import ForeignResultError, StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.files import canonical_json, digest

NAN = math.nan
FOUND = Depth(
    model=ModelInfo("tuned", "/m/tuned", "bert", 3, 32, "abc"),
    base=ModelInfo("base", "/m/base", "bert", 3, 32, "def"),
    task={"name": "toy", "metric": "accuracy", "labels": ["a", "b"], "n_train": 8, "n_validation": 4},
    full=Point(0.75, 0.5, 1.0),
    majority=0.5,
    bag_of_words=0.625,
    curves=(
        Curve("untuned", (ABSENT, Point(0.5, 0.25, 0.75), Point(0.75, 0.5, 1.0))),
        Curve("tunedorig", (ABSENT, Point(0.5, 0.25, 0.75), Point(0.5, 0.25, 1.0))),
    ),
    skip=np.array([[0.5, 0.25], [NAN, 0.75]]),
    skip_agreement=np.array([[0.5, 0.5], [NAN, 1.0]]),
    warnings=("mind the gap",),
    provenance={"seed": 3},
)


def rewritten(folder: Path, **changes: object) -> None:
    """Change fields of a saved result and seal it again."""
    plain = json.loads((folder / DEPTH).read_text())
    plain = {k: v for k, v in plain.items() if k != "sha256"} | changes
    (folder / DEPTH).write_text(canonical_json(plain | {"sha256": digest(plain, length=64)}))


@pytest.mark.parametrize("found", [FOUND, replace(FOUND, base=None, skip=None, skip_agreement=None, warnings=())])
def test_a_saved_result_comes_back_whole(found: Depth, tmp_path: Path) -> None:
    found.save(tmp_path)
    again = Depth.load(tmp_path)
    for name in ("model", "base", "task", "full", "majority", "bag_of_words", "warnings", "provenance"):
        assert getattr(again, name) == getattr(found, name)
    np.testing.assert_equal([c.name for c in again.curves], [c.name for c in found.curves])
    for a, b in zip(again.curves, found.curves, strict=True):
        np.testing.assert_equal([vars(p) for p in a.points], [vars(p) for p in b.points])
    np.testing.assert_equal(again.skip, found.skip)
    np.testing.assert_equal(again.skip_agreement, found.skip_agreement)


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "a")
    Depth.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a" / DEPTH).read_bytes() == (tmp_path / "b" / DEPTH).read_bytes()


def test_a_curve_is_found_by_name() -> None:
    assert FOUND.curve("tunedorig") is FOUND.curves[1]
    with pytest.raises(StratoscopeError, match="unknown curve in this result 'tuned'; did you mean"):
        FOUND.curve("tuned")


def test_shapes_must_fit_the_model() -> None:
    with pytest.raises(ValueError, match="curve tuned: expected 3 points, got 1"):
        replace(FOUND, curves=(Curve("tuned", (ABSENT,)),))
    with pytest.raises(ValueError, match=r"skip: expected shape \(2, 2\), got \(3, 3\)"):
        replace(FOUND, skip=np.zeros((3, 3)))


def test_a_folder_without_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=f"no {DEPTH} in .*; run 'stratoscope depth"):
        Depth.load(tmp_path)


@pytest.mark.parametrize("change", [{"format": 2}, {"kind": "cut"}])
def test_a_foreign_result_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    FOUND.save(tmp_path)
    rewritten(tmp_path, **change)
    with pytest.raises(ForeignResultError, match="this version reads 'depth' of format 1; run it again"):
        Depth.load(tmp_path)


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    FOUND.save(tmp_path)
    path = tmp_path / DEPTH
    path.write_text(path.read_text().replace("0.625", "0.626"))
    with pytest.raises(StratoscopeError, match=r"damaged \(its checksum does not match\); run the same command again"):
        Depth.load(tmp_path)


@pytest.mark.parametrize("change", [{"full": [1, 2]}, {"model": {"name": "x"}}, {"curves": [[]]}, {"skip": [3]}])
def test_a_malformed_result_is_damaged(change: dict[str, object], tmp_path: Path) -> None:
    FOUND.save(tmp_path)
    rewritten(tmp_path, **change)
    with pytest.raises(StratoscopeError, match="is damaged"):
        Depth.load(tmp_path)
