"""A comparison saves its activations, and from the file gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import Told

import stratoscope as ss
from stratoscope.core.errors import StratoscopeError

MEASURES = ["ckasim", "svsim", "neuronsim", "knn"]


@pytest.mark.parametrize("name", ["kept.hdf5", "kept.json"])
def test_a_comparison_from_the_file_is_that_from_the_models(
    name: str, checkpoints: Path, text: str, tmp_path: Path
) -> None:
    models = [str(checkpoints / m) for m in ("base", "other")]
    whole = ss.compare(models, data=text, measures=MEASURES, save_activations=str(tmp_path / name))
    files = [tmp_path / f"kept-{m}{Path(name).suffix}" for m in ("base", "other")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    again = ss.compare(files, data=text, measures=MEASURES)
    mixed = ss.compare([files[0], models[1]], data=text, measures=MEASURES)
    for measure in MEASURES:
        for other in (again, mixed):
            np.testing.assert_allclose(other[measure].values, whole[measure].values, atol=1e-6)
    assert [(m.family, m.layers, m.width) for m in again.models] == [("saved", 4, 32), ("saved", 3, 48)]
    assert again.data["rows_fingerprint"] == whole.data["rows_fingerprint"]
    assert sum("layer 0 of" in w for w in again.warnings) == 2


def test_one_model_is_saved_under_the_name_given_and_resumes(checkpoints: Path, text: str, tmp_path: Path) -> None:
    kept, told = tmp_path / "kept.hdf5", Told()
    first = ss.compare(checkpoints / "base", data=text, out=tmp_path / "a", save_activations=str(kept), layers="1,3")
    assert kept.is_file()
    run = ss.compare(kept, data=text, out=tmp_path / "b")
    np.testing.assert_allclose(run["ckasim"].values, first["ckasim"].values, atol=1e-6)
    assert [str(r) for r in run["ckasim"].rows] == ["kept.hdf5:0", "kept.hdf5:1"]
    with pytest.raises(StratoscopeError, match=r"kept\.hdf5 exists already"):
        ss.compare(checkpoints / "base", data=text, out=tmp_path / "a", save_activations=str(kept), layers="1,3")
    kept.unlink()
    ss.compare(
        checkpoints / "base", data=text, out=tmp_path / "a", save_activations=str(kept), layers="1,3", progress=told
    )
    assert any("was not written" in note for note in told.notes)


def test_sentences_that_lack_a_word_are_not_saved(checkpoints: Path, tmp_path: Path) -> None:
    data, told = tmp_path / "t.txt", Told()
    data.write_text("the lazy dog\n" + "the dog " * 100 + "\nbirds sing\nyes\nit rains\nnobody carries\n")
    ss.compare(checkpoints / "base", data=data, save_activations=str(tmp_path / "x.hdf5"), progress=told)
    assert any(note.startswith("1 sentences are not in") for note in told.notes)
    with pytest.raises(StratoscopeError, match="holds 5 sentences, but not 'the dog the dog"):
        ss.compare(tmp_path / "x.hdf5", data=data)


def test_only_words_are_saved(checkpoints: Path, text: str, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="activations are saved by word, but the unit is 'mean'"):
        ss.compare(checkpoints / "base", data=text, unit="mean", save_activations=str(tmp_path / "x.hdf5"))


def test_a_control_needs_a_checkpoint_first(checkpoints: Path, text: str, tmp_path: Path) -> None:
    kept = tmp_path / "x.hdf5"
    ss.compare(checkpoints / "base", data=text, save_activations=str(kept))
    with pytest.raises(StratoscopeError, match="no weights to draw; give a checkpoint first"):
        ss.compare([kept, checkpoints / "base"], data=text, random_init=True)
    result = ss.compare([checkpoints / "base", kept], data=text, random_init=True)
    assert len(result.models) == 3
