"""Attention of models compared from text to layers: against slow loops, and the same however the work is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import read_corpus
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read.attention import AttentionReader
from stratoscope.models.read.loop import read
from stratoscope.models.text.rows import encode_for, plan_rows
from stratoscope.results.attention import Attention
from stratoscope.studies.attention import plan as planning
from stratoscope.studies.attention import work as working
from stratoscope.studies.attention.study import attention


@pytest.fixture(scope="module")
def models(checkpoints: Path) -> list[str]:
    """BERT of three blocks, RoBERTa of two, another tokenizer; four heads each."""
    return [str(checkpoints / "base"), str(checkpoints / "other")]


@pytest.fixture(scope="module")
def whole(models: list[str], text: str) -> Attention:
    return attention(models, data=text, measures=["all"], bootstrap=30)


def weights_of(models: list[str], corpus: Corpus, **how: bool) -> list[list[np.ndarray[Any, Any]]]:
    """By sentence, the rows (heads of both models, targets) of every word."""
    opened = [open_model(ModelSpec(m, device="cpu")) for m in models]
    rows = plan_rows(corpus, [m.encoder for m in opened], "word")
    readers = []
    for model in opened:
        encoded = encode_for(model.encoder, corpus.sentences, ["word"])
        readers.append(AttentionReader(encoded, rows, **how))
        read(model, encoded, [readers[-1]])
    found = []
    for k in range(len(corpus)):
        parts = [r.texts[k] for r in readers]
        values = np.concatenate([p.values for p in parts]).astype(np.float64)
        found.append(np.split(values, np.cumsum(parts[0].lengths)[:-1], axis=1))
    return found


def slow_js(sentences: list[list[np.ndarray[Any, Any]]]) -> np.ndarray[Any, Any]:
    rows = [row for s in sentences for row in s]
    n = len(rows[0])
    pairs = [[np.mean([jensenshannon(r[i], r[j]) ** 2 for r in rows]) for j in range(n)] for i in range(n)]
    return 1 - np.array(pairs)


@pytest.mark.parametrize("causal", [False, True])
def test_layers_and_heads_agree_with_slow_loops(causal: bool, models: list[str], text: str) -> None:
    found = attention(models, data=text, measures=["js", "frobenius"], bootstrap=0, causal=causal)
    slow = slow_js(weights_of(models, read_corpus(text), causal=causal))
    np.testing.assert_allclose(found.arrays["js"], slow, atol=1e-6)
    assert [str(layer) for layer in found.layers] == ["base:1", "base:2", "base:3", "other:1", "other:2"]
    assert found["js"].at(("base", 2), ("other", 1)) == pytest.approx(slow[4:8, 12:16].max(axis=1).mean(), abs=1e-6)
    assert found["js"].at(("other", 1), ("base", 2)) == pytest.approx(slow[4:8, 12:16].max(axis=0).mean(), abs=1e-6)
    assert found["js"].replicates is None
    sizes = [len(s.text.split()) for s in read_corpus(text).sentences]
    assert found.data["rows"] == sum(sizes)
    np.testing.assert_allclose(found["frobenius"].values.diagonal(), 1, atol=1e-6)


def same(a: Attention, b: Attention) -> None:
    for name in a:
        np.testing.assert_allclose(b[name].values, a[name].values, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(b[name].replicates, a[name].replicates, atol=2e-5, err_msg=name)
    assert [s.verdict for s in a.statements] == [s.verdict for s in b.statements]
    assert [p.words for p in a.patterns] == [p.words for p in b.patterns]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"SHARD_WORK": 1.0}, {"workers": 1}),
        ({"PIECE_BYTES": 1.0}, {"batch_tokens": 1}),
        ({"SHARD_WORK": 1.0}, {"workers": 2}),
        ({}, {"memory": 1e8}),
    ],
)
def test_shards_pieces_batches_workers_and_memory_do_not_matter(
    changes: dict[str, float],
    options: dict[str, Any],
    whole: Attention,
    models: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(planning if hasattr(planning, name) else working, name, value)
    same(whole, attention(models, data=text, measures=["all"], bootstrap=30, **options))


def test_models_that_do_not_fit_are_opened_one_at_a_time(models: list[str], text: str) -> None:
    specs = [ModelSpec(m, device="cpu") for m in models]
    opened = [open_model(s) for s in specs]
    kept = working.OpenModels([(s, o.survey) for s, o in zip(specs, opened, strict=True)], room=1.0)
    assert kept.get(0) is kept.get(0)
    kept.get(1)
    assert list(kept.opened) == [1]
    wide = working.OpenModels(kept.models, room=1e9)
    assert [wide.get(k).name for k in (0, 1, 0)] == ["base", "other", "base"]
    assert sorted(wide.opened) == [0, 1]
    assert not wide.__getstate__()["opened"]


def test_samples_are_kept_to_look_at(whole: Attention, models: list[str], text: str) -> None:
    corpus = read_corpus(text)
    assert [len(p.words) for p in whole.patterns] == [10, 15, 15]
    first = whole.patterns[0]
    k = next(k for k, s in enumerate(corpus.sentences) if tuple(s.text.split()) == first.words)
    expected = np.stack(weights_of(models, corpus)[k], axis=1)
    np.testing.assert_allclose(first.weights / 255, expected, atol=0.5 / 255 + 1e-6)


def test_samples_are_bounded(models: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SAMPLE_WEIGHTS", 20 * 9**2 + 20 * 4)
    found = attention(models, data=text, bootstrap=0)
    assert 0 < sum(p.weights.size for p in found.patterns) <= 20 * 85


def test_special_tokens_may_be_kept(models: list[str], text: str, whole: Attention) -> None:
    found = attention(models, data=text, bootstrap=0, keep_specials=True)
    assert found.patterns[0].targets[0] == "(special tokens)"
    assert found.patterns[0].weights.shape[2] == found.patterns[0].weights.shape[1] + 1
    assert np.abs(found["js"].values - whole["js"].values).max() > 1e-3


def test_encoders_and_decoders_only_some_layers(models: list[str], text: str, tmp_path: Path) -> None:
    decoder = tiny.checkpoint("gpt2", tmp_path / "decoder")
    found = attention([models[0], decoder], data=text, bootstrap=0, causal=True, layers=(1, 3))
    assert [str(layer) for layer in found.layers] == ["base:1", "base:3", "decoder:1", "decoder:3"]
    assert found.heads("base", 3, "decoder", 1).shape == (4, 4)
    slow = slow_js(weights_of([models[0], str(decoder)], read_corpus(text), causal=True))
    kept = [*range(4), *range(8, 16), *range(20, 24)]
    np.testing.assert_allclose(found.arrays["js"], slow[np.ix_(kept, kept)], atol=1e-6)


def test_intervals_are_over_sentences_and_the_control_is_marked(models: list[str], text: str) -> None:
    found = attention(models[:1], data=text, random_init=True)
    assert found["js"].interval is not None
    assert (found["js"].interval.groups, found["js"].interval.of) == (10, "sentence")
    assert len(found["js"].replicates) == 200
    assert [m.role for m in found.models] == ["model", "control"]
    block = found["js"].between("base", "base-random")
    assert (block.low <= block.values).all()
    assert (block.high <= 1).all()
    assert (block.high > block.low).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measures": ["jss"]}, "js"),
        ({"measures": []}, "at least one measure"),
        ({"layers": (0, 1)}, "no layer 0"),
        ({"layers": (7,)}, "no layer 7"),
        ({"bootstrap": 3}, "replicates"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], said: str, models: list[str], text: str) -> None:
    with pytest.raises(StratoscopeError, match=said):
        attention(models, data=text, **options)


def test_saved_activations_have_no_attention(models: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "elmo.hdf5").write_bytes(b"")
    with pytest.raises(StratoscopeError, match=r"elmo\.hdf5.*no attention"):
        attention([models[0], tmp_path / "elmo.hdf5"], data=text)
