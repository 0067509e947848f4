"""One pass gives what the head of a truncated model reads at every layer; the naive loop is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stratoscope.models.open.task import TaskModel, load_for_task
from stratoscope.models.read.vectors import head_scores, keep_vectors, read_vectors, reads_mean
from torch import nn

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.core.runfolder import RunFolder
from stratoscope.data.tasks.data import CHOICE, PAIR, SINGLE, Example, TaskData
from stratoscope.models.families import FAMILIES, Family
from stratoscope.models.open.loading import ModelSpec, load
from stratoscope.models.read import vectors as layervectors
from stratoscope.models.surgery.blocks import truncated_to
from stratoscope.models.text.examples import Inputs, predict, tokenise

TEXTS = tiny.SENTENCES
CHOOSERS = ("bert", "roberta", "albert", "distilbert", "xlnet", "mpnet", "electra", "deberta-v2", "modernbert")


def task(kind: str) -> TaskData:
    n = len(TEXTS)
    if kind == CHOICE:
        rows = [Example(tuple((TEXTS[k], TEXTS[(k + j) % n]) for j in (1, 2, 3)), float(k % 3)) for k in range(n)]
        return TaskData("endings", tuple(rows), tuple(rows), ("0", "1", "2"), CHOICE, "accuracy")
    pair = kind == PAIR
    rows = [Example(((TEXTS[k], TEXTS[-k] if pair else None),), float(k % 2)) for k in range(n)]
    labels = None if kind == "regression" else ("no", "yes")
    return TaskData(
        kind, tuple(rows), tuple(rows), labels, PAIR if pair else SINGLE, "accuracy" if labels else "correlation"
    )


def made(family: str, kind: str, folder: Path, **config: Any) -> tuple[TaskModel, Inputs]:
    data = task(kind)
    model = load_for_task(ModelSpec(str(tiny.checkpoint(family, folder, **config))), data, seed=3)
    generator = torch.Generator().manual_seed(5)
    for p in model.module.parameters():  # a head drawn as usual is so small that nothing could be told apart
        p.data.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model, tokenise(data, "validation", model.encoder, length=40)


def naive(module: nn.Module, inputs: Inputs) -> list[np.ndarray]:
    """One whole evaluation per depth."""
    found = []
    for k in range(module.config.get_text_config().num_hidden_layers + 1):
        with truncated_to(module, k):
            found.append(predict(module, inputs))
    return found


def agree(model: TaskModel, inputs: Inputs) -> None:
    vectors = read_vectors(model.module, inputs, mean=reads_mean(model.module))
    expected = naive(model.module, inputs)
    assert len(vectors.layers) == len(expected) == tiny.LAYERS + 1
    for k, want in enumerate(expected):
        got = head_scores(model.module, vectors.layers[k], choices=inputs.choices)
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=0, err_msg=f"layer {k}")
    assert vectors.scores is not None
    np.testing.assert_allclose(vectors.scores.numpy(), expected[-1], atol=1e-5, rtol=0)
    assert np.abs(expected[-1] - expected[-2]).max() > 1e-3  # else any layer would do


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_the_head_on_every_layer_is_the_truncated_model(family: Family, tmp_path: Path) -> None:
    agree(*made(family.name, PAIR, tmp_path))


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet"])
@pytest.mark.parametrize("kind", [SINGLE, "regression"])
def test_single_texts_and_regressions(family: str, kind: str, tmp_path: Path) -> None:
    agree(*made(family, kind, tmp_path))


@pytest.mark.parametrize("family", CHOOSERS)
def test_multiple_choice(family: str, tmp_path: Path) -> None:
    agree(*made(family, CHOICE, tmp_path))


def test_a_head_that_reads_the_mean(tmp_path: Path) -> None:
    model, inputs = made("modernbert", SINGLE, tmp_path, classifier_pooling="mean")
    agree(model, inputs)
    with pytest.raises(StratoscopeError, match="does not read the vector that stands for a text in its family"):
        read_vectors(model.module, inputs)


def test_batches_do_not_matter_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model, inputs = made("gpt2", SINGLE, tmp_path)
    model.module.train()
    whole = read_vectors(model.module, inputs)
    single = read_vectors(model.module, inputs, batch_tokens=1)
    torch.testing.assert_close(single.layers, whole.layers, atol=1e-5, rtol=0)
    some = read_vectors(model.module, inputs, rows=np.array([7, 2]))
    torch.testing.assert_close(some.layers, whole.layers[:, [7, 2]], atol=1e-5, rtol=0)
    assert all(m.training for m in model.module.modules())


def test_the_encoder_runs_once_per_example(tmp_path: Path) -> None:
    model, inputs = made("bert", SINGLE, tmp_path)
    seen = []
    model.module.base_model.encoder.layer[0].register_forward_hook(lambda m, given, out: seen.append(len(given[0])))
    vectors = read_vectors(model.module, inputs)
    for x in vectors.layers:
        head_scores(model.module, x)
    assert sum(seen) == len(inputs)


@pytest.mark.parametrize("kind", [PAIR, CHOICE])
def test_a_bare_encoder_gives_the_same_vectors(kind: str, tmp_path: Path) -> None:
    data = task(kind)
    folder = tiny.checkpoint("bert", tmp_path)
    model = load_for_task(ModelSpec(str(folder)), data, seed=0)
    inputs = tokenise(data, "train", model.encoder, length=40)
    got = read_vectors(load(ModelSpec(str(folder), device="cpu")).module, inputs)
    assert got.scores is None
    torch.testing.assert_close(got.layers, read_vectors(model.module, inputs).layers, atol=1e-6, rtol=0)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model, inputs = made("bert", SINGLE, tmp_path)
    model.module.base_model.encoder.layer[1].output.dense.bias.data[0] = torch.inf
    with pytest.raises(StratoscopeError, match="not finite at layer 2; check its weights or load it with --dtype"):
        read_vectors(model.module, inputs)


def test_kept_shards_are_read_again_only_when_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made("bert", CHOICE, tmp_path / "model")
    whole = read_vectors(model.module, inputs)
    loads = []

    def load_it() -> nn.Module:
        loads.append(1)
        return model.module

    def keep(folder: RunFolder, made_from: str = "a") -> layervectors.StoredVectors:
        return keep_vectors(
            load_it, inputs, folder, layers=4, width=tiny.HIDDEN, made_from=[made_from], label="", progress=Silent()
        )

    monkeypatch.setattr(layervectors, "SHARD_BYTES", 4 * 4 * tiny.HIDDEN * 3 * 4)  # four examples of three choices
    with RunFolder.open(tmp_path / "run") as folder:
        stored = keep(folder)
        assert len(stored.paths) == 3
        for k in range(4):
            torch.testing.assert_close(stored.layer(k), whole.layers[k], atol=1e-5, rtol=0)
        assert whole.scores is not None
        np.testing.assert_allclose(stored.scores, whole.scores.numpy(), atol=1e-5)
        keep(folder)
        assert len(loads) == 1
        Path(stored.paths[1]).write_bytes(b"damaged")
        again = keep(folder)
        assert len(loads) == 2
        torch.testing.assert_close(again.layer(3), whole.layers[3], atol=1e-5, rtol=0)
        assert not set(keep(folder, "b").paths) & set(stored.paths)
