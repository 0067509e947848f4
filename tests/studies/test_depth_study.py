from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from toys import LEARN, KilledError, Reads, choices, classification, distinct, killing, plain, regression

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Value, spread
from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read import store
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.text.examples import tokenise
from stratoscope.results.cutting.depth import Depth
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.depth import judge
from stratoscope.studies.depth.study import DepthOptions, depth
from stratoscope.studies.finetune.study import finetune

LAYERS = tiny.LAYERS + 1
BRIEF = DepthOptions(skip=False)


@pytest.fixture(scope="module")
def found(calm: Path, tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Depth:
    return depth(tuned, classification(), base=calm, out=tmp_path_factory.mktemp("depth"))


def naive(folder: Path, task: TaskData, kept: Sequence[int], length: int = 24) -> float:
    """The metric of a model cut by surgery, in an evaluation of its own."""
    model = open_model(ModelSpec(str(folder), device="cpu"), task)
    with keeping(model.module, kept):
        scores = predict(model, tokenise(task, "validation", model.encoder, length=length))
    return metric_named(task.metric).score(scores, task.targets("validation"))


# --- the numbers -----------------------------------------------------------------------------------------------------


def test_untuned_is_the_truncated_model_and_ends_with_the_whole_one(found: Depth, tuned: Path) -> None:
    curve = found.curve("untuned")
    for k in range(LAYERS):
        assert curve.points[k].value == naive(tuned, classification(), range(1, k + 1))
    assert curve.points[-1] == found.full
    assert curve.replicates is not None
    np.testing.assert_array_equal(curve.replicates[:, -1], found.full_replicates)
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
            assert got == naive(tuned, classification(), [k for k in range(1, LAYERS) if not first <= k <= last])
            assert 0 <= found.skip_agreement[first - 1, last - 1] <= 1


def test_tuned_heads_on_every_layer(found: Depth) -> None:
    assert [c.name for c in found.curves] == ["untuned", "tuned", "tunedorig"]
    for name in ("tuned", "tunedorig"):
        points = found.curve(name).points
        assert points[0].value == found.majority  # the first token is the same in every text
        assert all(p.value > found.majority + 0.2 for p in points[1:])  # no cliff: the last word gives the class away
    assert any("layer 0" in w and "same vector" in w for w in found.warnings)


@pytest.mark.parametrize("task", [regression(), choices()], ids=lambda t: t.name)
def test_regressions_and_choices(task: TaskData, calm: Path, tmp_path: Path) -> None:
    folder = finetune(calm, task, out=tmp_path / "tuned", options=LEARN)[0].folder
    got = depth(folder, task, base=calm, out=tmp_path / "run")
    for k, point in enumerate(got.curve("untuned").points):
        assert point.value == pytest.approx(naive(folder, task, range(1, k + 1)), abs=1e-6)
    assert got.full.value > 0.8
    assert all(p.value > got.majority + 0.2 for p in got.curve("tuned").points[1:])
    assert got.skip_agreement is not None
    assert np.isnan(got.skip_agreement).all() == task.regression


# --- resamples -------------------------------------------------------------------------------------------------------


def test_curves_are_resampled_together_and_their_intervals_are_those_of_the_resamples(found: Depth) -> None:
    """Where two heads score all rows alike, so they do on every resample."""
    number = len(found.full_replicates)  # type: ignore[arg-type]
    for curve in found.curves:
        assert curve.replicates is not None
        assert curve.replicates.shape == (number, LAYERS)
        assert curve.interval is not None
        low, high = spread(curve.values, curve.replicates, curve.interval)
        assert curve.points == tuple(map(Value, curve.values, low, high))
    constant = [found.curve(name).replicates[:, 0] for name in ("tuned", "tunedorig")]  # type: ignore[index]
    np.testing.assert_array_equal(*constant)  # both name the majority: the same rows were drawn for both
    assert constant[0].std() > 0.02
    assert constant[0].mean() == pytest.approx(found.majority, abs=0.02)


def test_spans_are_resampled_as_the_curves_are(found: Depth) -> None:
    blocks = LAYERS - 1
    drawn, skip = found.skip_replicates, found.skip
    assert drawn is not None
    assert skip is not None
    assert drawn.shape == (judge.SPAN_RESAMPLES, blocks, blocks)
    assert (np.isnan(drawn) == np.isnan(skip)).all()
    # without its last blocks the model is the one truncated there
    untuned = found.curve("untuned")
    for first in range(1, blocks + 1):
        assert skip[first - 1, -1] == untuned.values[first - 1]
        np.testing.assert_allclose(
            drawn[:, first - 1, -1],
            untuned.replicates[: judge.SPAN_RESAMPLES, first - 1],  # type: ignore[index]
            atol=1e-12,
        )


def test_another_seed_draws_other_rows(found: Depth, tuned: Path, tmp_path: Path) -> None:
    other = depth(tuned, classification(), out=tmp_path, options=replace(BRIEF, seed=1))
    untuned = [r.curve("untuned") for r in (found, other)]
    np.testing.assert_array_equal(untuned[0].values, untuned[1].values)
    assert (untuned[0].replicates != untuned[1].replicates).any()


# --- the run ---------------------------------------------------------------------------------------------------------


def test_texts_are_as_long_as_in_fine_tuning_and_models_opened_once(
    found: Depth, calm: Path, tuned: Path, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found.provenance["length"] == LEARN.length
    assert found.task["n_train"] == found.task["n_validation"] == 32
    opened: list[str] = []
    own = judge.open_model
    monkeypatch.setattr(judge, "open_model", lambda s, *a, **k: (opened.append(s.label), own(s, *a, **k))[1])
    task = distinct(24, 40)
    depth(tuned, task, base=calm, out=tmp_path, options=BRIEF)
    assert sorted(opened) == ["base", "seed-0"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(calm)
    texts = [e.texts[0][0] for e in (*task.train, *task.validation)]
    once = Counter(tuple(tokenizer(t, truncation=True, max_length=24)["input_ids"]) for t in texts)
    assert list(reads.texts.values()) == [once, once]


@pytest.mark.parametrize(("of", "at"), [("reading", 9), ("reading", 32), ("tuning", 2), ("skipping", 9)])
def test_a_killed_run_ends_with_the_same_numbers(
    of: str,
    at: int,
    found: Depth,
    calm: Path,
    tuned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 4 * LAYERS * tiny.HIDDEN * 8)  # eight examples
    monkeypatch.setattr(store, "CHUNK", 8)
    monkeypatch.setattr(judge, "SPAN_ROWS", 8)
    with pytest.raises(KilledError):
        depth(tuned, classification(), base=calm, out=tmp_path, progress=killing(of, at))
    kept = {p.name for p in (tmp_path / "parts").glob("*.safetensors")}
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    again = depth(tuned, classification(), base=calm, out=tmp_path)
    assert kept
    assert not kept & set(saved)
    for a, b in zip(again.curves, found.curves, strict=True):
        np.testing.assert_allclose(a.values, b.values, atol=1e-9)
    np.testing.assert_allclose(again.skip, found.skip, atol=1e-9)  # type: ignore[arg-type]
    np.testing.assert_allclose(again.skip_agreement, found.skip_agreement, atol=1e-9)  # type: ignore[arg-type]


def test_without_base_and_without_skipping(tuned: Path, tmp_path: Path) -> None:
    got = depth(tuned, classification(), out=tmp_path, options=BRIEF)
    assert [c.name for c in got.curves] == ["untuned", "tuned"]
    assert got.base is got.skip is got.skip_agreement is got.skip_replicates is None
    assert plain(Depth.load(tmp_path)) == plain(got)


def test_a_model_worse_than_its_baselines_is_said_to_be(tmp_path: Path) -> None:
    names = {0: "bad", 1: "good"}
    folder = tiny.checkpoint(
        "bert", tmp_path / "poor", head="classification", id2label=names, label2id={"bad": 0, "good": 1}
    )
    got = depth(folder, classification(), out=tmp_path / "run", options=BRIEF)
    assert got.full.value < got.bag_of_words
    assert "does not beat the bag of words" in got.warnings[0]


def test_long_texts_are_truncated_and_counted(tuned: Path, tmp_path: Path) -> None:
    got = depth(tuned, classification(), out=tmp_path, options=replace(BRIEF, length=8))
    assert any("longer than 8 tokens" in w for w in got.warnings)


def test_a_base_of_a_shorter_window_reads_as_far_as_it_does(tuned: Path, calm: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    transformers.AutoModel.from_pretrained(calm).save_pretrained(short)
    tiny.tokenizer("bert", max_length=12).save_pretrained(short)
    got = depth(tuned, classification(), base=short, out=tmp_path / "run", options=BRIEF)
    assert got.curve("tunedorig").points[-1].value > got.majority


def test_a_base_of_another_shape_is_refused(tuned: Path, tmp_path: Path) -> None:
    small = tiny.checkpoint("bert", tmp_path / "small", layers=2)
    with pytest.raises(StratoscopeError, match=r"'small' \(bert, 2 blocks, width 32\)"):
        depth(tuned, classification(), base=small, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DepthOptions(seed=-1), "--seed of at least 0 .*got -1"),
        (DepthOptions(batch_tokens=0), "--batch-tokens of at least 1, got 0"),
        (DepthOptions(length=4096), "--length of at most 128"),
    ],
)
def test_bad_options_are_refused(options: DepthOptions, words: str, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=words):
        depth(tuned, classification(), out=tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_fitting_head_is_refused(calm: Path, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="'base' has no task head"):
        depth(calm, classification(), out=tmp_path)
    with pytest.raises(StratoscopeError, match=r"2 labels \(bad, good\), rated needs 1 label"):
        depth(tuned, regression(), out=tmp_path)
