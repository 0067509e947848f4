from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import Told, choices, classification, regression

import tiny
from stratoscope.TODO.depth import DEPTH
from stratoscope.results.depth import Depth
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read import store
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.blocks import truncated_to, without
from stratoscope.models.text.examples import tokenise
from stratoscope.studies.depth import parts as depthparts
from stratoscope.studies.depth.study import DepthOptions, depth
from stratoscope.studies.finetune.study import FinetuneOptions, finetune

LAYERS = tiny.LAYERS + 1
LEARN = FinetuneOptions(recipe="quick", lr=3e-3, epochs=10, batch=8, length=24)


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("depth") / "base"
    return tiny.checkpoint("bert", folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="module")
def tuned(base: Path) -> Path:
    return finetune(base, classification(), out=base.parent / "tuned", options=LEARN)[0].folder


@pytest.fixture(scope="module")
def found(base: Path, tuned: Path) -> Depth:
    return depth(tuned, classification(), base=base, out=base.parent / "run")


def naive(folder: Path, task: TaskData, cut: Callable[..., object], length: int = 24) -> float:
    """The metric of a model cut by surgery, in an evaluation of its own."""
    model = open_model(ModelSpec(str(folder), device="cpu"), task)
    with cut(model.module):  # type: ignore[attr-defined]
        scores = predict(model, tokenise(task, "validation", model.encoder, length=length))
    return metric_named(task.metric).score(scores, task.targets("validation"))


def test_untuned_is_the_truncated_model_and_ends_with_the_whole_one(found: Depth, tuned: Path) -> None:
    points = found.curve("untuned").points
    for k in range(LAYERS):
        assert points[k].value == naive(tuned, classification(), lambda m, k=k: truncated_to(m, k))
    assert points[-1] == found.full
    assert found.full.value > 0.9  # it learned something to be taken away
    assert found.full.low <= found.full.value <= found.full.high


def test_every_span_is_that_of_surgery(found: Depth, tuned: Path) -> None:
    assert found.skip is not None
    assert found.skip_agreement is not None
    for first in range(1, LAYERS):
        for last in range(1, LAYERS):
            got = found.skip[first - 1, last - 1]
            if last < first:
                assert np.isnan(got)
                continue
            assert got == naive(tuned, classification(), lambda m, a=first, b=last: without(m, a, b))
            assert 0 <= found.skip_agreement[first - 1, last - 1] <= 1


def test_tuned_heads_on_every_layer(found: Depth) -> None:
    assert [c.name for c in found.curves] == ["untuned", "tuned", "tunedorig"]
    for name in ("tuned", "tunedorig"):
        points = found.curve(name).points
        assert points[0].value == found.majority  # the first token is the same in every text
        assert all(p.value > found.majority + 0.2 for p in points[1:])  # no cliff: the last word gives the class away
    assert any("layer 0 gives the head the same vector for every text" in w for w in found.warnings)


def test_the_result_is_kept_and_the_parts_are_not(found: Depth, base: Path, tuned: Path) -> None:
    run = base.parent / "run"
    assert not (run / "parts").exists()
    assert Depth.load(run).curves == found.curves
    assert found.task["n_train"] == found.task["n_validation"] == 32
    assert found.provenance["length"] == 24  # as it was fine-tuned
    told = Told()
    depth(tuned, classification(), base=base, out=run, progress=told)
    assert any("already holds this result" in n for n in told.notes)


@pytest.mark.parametrize(
    ("of", "at"), [("reading", 3), ("reading", 9), ("reading", 13), ("tuning", 2), ("tuning", 5), ("skipping", 2)]
)
def test_a_killed_run_ends_with_the_same_numbers(
    of: str, at: int, found: Depth, base: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHUNK", 8)
    monkeypatch.setattr(store, "SHARD_BYTES", 4 * LAYERS * tiny.HIDDEN * 8)  # eight examples
    monkeypatch.setattr(depthparts, "SPAN_ROWS", 8)
    units = 0

    def stop(done: int) -> None:
        nonlocal units
        units += 1
        if units > at:
            raise KilledError

    with pytest.raises(KilledError):
        depth(tuned, classification(), base=base, out=tmp_path, progress=Told(stop, of))
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "parts").glob("*.safetensors")}
    assert kept
    remade = []
    monkeypatch.setattr(depthparts, "save_file", lambda tensors, path: (remade.append(path.name), SAVE(tensors, path)))
    again = depth(tuned, classification(), base=base, out=tmp_path)
    assert not {name for name in kept if any(name in path for path in remade)}
    assert again.curves == found.curves
    np.testing.assert_equal(again.skip, found.skip)
    np.testing.assert_equal(again.skip_agreement, found.skip_agreement)


SAVE = depthparts.save_file


@pytest.mark.parametrize("task", [regression(), choices()], ids=lambda t: t.name)
def test_regressions_and_choices(task: TaskData, base: Path, tmp_path: Path) -> None:
    folder = finetune(base, task, out=tmp_path / "tuned", options=LEARN)[0].folder
    got = depth(folder, task, base=base, out=tmp_path / "run")
    for k, point in enumerate(got.curve("untuned").points):
        assert point.value == pytest.approx(naive(folder, task, lambda m, k=k: truncated_to(m, k)), abs=1e-6)
    assert got.full.value > 0.8
    assert all(p.value > got.majority + 0.2 for p in got.curve("tuned").points[1:])
    assert got.skip_agreement is not None
    assert np.isnan(got.skip_agreement).all() == task.regression


def test_without_base_and_without_skipping(tuned: Path, tmp_path: Path) -> None:
    got = depth(tuned, classification(), out=tmp_path, options=DepthOptions(skip=False))
    assert [c.name for c in got.curves] == ["untuned", "tuned"]
    assert got.base is got.skip is got.skip_agreement is None


def test_a_model_worse_than_its_baselines_is_said_to_be(base: Path, tmp_path: Path) -> None:
    names = {0: "bad", 1: "good"}
    folder = tiny.checkpoint(
        "bert", tmp_path / "poor", head="classification", id2label=names, label2id={"bad": 0, "good": 1}
    )
    got = depth(folder, classification(), out=tmp_path / "run", options=DepthOptions(skip=False))
    assert got.full.value < got.bag_of_words
    assert "does not beat the bag of words" in got.warnings[0]


def test_long_texts_are_cut_and_counted(tuned: Path, tmp_path: Path) -> None:
    got = depth(tuned, classification(), out=tmp_path, options=DepthOptions(skip=False, length=8))
    assert any("are longer than 8 tokens and were cut" in w for w in got.warnings)


def test_another_result_is_not_overwritten_unasked(tuned: Path, tmp_path: Path) -> None:
    brief = DepthOptions(skip=False)
    depth(tuned, classification(), out=tmp_path, options=brief)
    other = replace(brief, seed=1)
    with pytest.raises(StratoscopeError, match="holds another result; choose another --out or give --overwrite"):
        depth(tuned, classification(), out=tmp_path, options=other)
    depth(tuned, classification(), out=tmp_path, options=replace(other, overwrite=True))
    plain = json.loads((tmp_path / DEPTH).read_text())
    assert plain["provenance"]["seed"] == 1
    (tmp_path / DEPTH).write_text("{}")
    assert depth(tuned, classification(), out=tmp_path, options=brief).provenance["seed"] == 0


def test_a_base_of_another_shape_is_refused(tuned: Path, tmp_path: Path) -> None:
    small = tiny.checkpoint("bert", tmp_path / "small", layers=2)
    with pytest.raises(StratoscopeError, match=r"was not tuned from 'small' \(bert, 2 blocks, width 32\); give"):
        depth(tuned, classification(), base=small, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DepthOptions(seed=-1), "expected a --seed of at least 0 and below 2.63, got -1"),
        (DepthOptions(batch_tokens=0), "expected --batch-tokens of at least 1, got 0"),
        (DepthOptions(length=4096), "expected --length of at most 128"),
    ],
)
def test_bad_options_are_refused(options: DepthOptions, words: str, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=words):
        depth(tuned, classification(), out=tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_fitting_head_is_refused(base: Path, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="'base' has no task head"):
        depth(base, classification(), out=tmp_path)
    with pytest.raises(StratoscopeError, match=r"has 2 labels \(bad, good\), rated needs 1 label"):
        depth(tuned, regression(), out=tmp_path)
