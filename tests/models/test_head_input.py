"""One pass gives what the head of a truncated model reads at every layer; the naive loop is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, PAIR, SINGLE, Example, TaskData
from stratoscope.models.families import FAMILIES, Family
from stratoscope.models.open.loading import ModelSpec, OpenedModel, open_model
from stratoscope.models.read.head import HeadInputReader, LogitReader, check_head, head_scores, predict, reads_mean
from stratoscope.models.read.loop import read
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.text.examples import Inputs, tokenise

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


def made(family: str, kind: str, folder: Path, **config: Any) -> tuple[OpenedModel, Inputs]:
    data = task(kind)
    model = open_model(ModelSpec(str(tiny.checkpoint(family, folder, **config))), data, seed=3)
    generator = torch.Generator().manual_seed(5)
    for p in model.module.parameters():  # a head drawn as usual is so small that nothing could be told apart
        p.data.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model, tokenise(data, "validation", model.encoder, length=40)


def vectors_of(
    model: OpenedModel, inputs: Inputs, rows: np.ndarray | None = None, *, scored: bool = True, **options: Any
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Head input of every layer and the model's own scores, from one pass."""
    n, c = len(inputs) if rows is None else len(rows), inputs.choices
    mean = options.pop("mean", reads_mean(model.module.config))
    vectors, scores = HeadInputReader(model, n, choices=c, mean=mean), LogitReader(n)
    read(model, inputs.encoded, [vectors, scores] if scored else [vectors], examples=rows, choices=c, **options)
    if scored:
        check_head(model, vectors.layers[-1], scores.scores, choices=c)
    return vectors.layers, scores.scores


def naive(model: OpenedModel, inputs: Inputs) -> list[np.ndarray]:
    """One whole evaluation per depth."""
    found = []
    for k in range(model.module.config.get_text_config().num_hidden_layers + 1):
        with keeping(model.module, range(1, k + 1)):
            found.append(predict(model, inputs))
    return found


def agree(model: OpenedModel, inputs: Inputs) -> None:
    layers, scores = vectors_of(model, inputs)
    expected = naive(model, inputs)
    assert len(layers) == len(expected) == tiny.LAYERS + 1
    for k, want in enumerate(expected):
        got = head_scores(model.module, layers[k], choices=inputs.choices)
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=0, err_msg=f"layer {k}")
    np.testing.assert_allclose(scores.numpy(), expected[-1], atol=1e-5, rtol=0)
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
        vectors_of(model, inputs, mean=False)


def test_batches_do_not_matter_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model, inputs = made("gpt2", SINGLE, tmp_path)
    model.module.train()
    whole, _ = vectors_of(model, inputs)
    single, _ = vectors_of(model, inputs, batch_tokens=1)
    some, _ = vectors_of(model, inputs, np.array([7, 2]))
    for a, b, c in zip(whole, single, some, strict=True):
        torch.testing.assert_close(b, a, atol=1e-5, rtol=0)
        torch.testing.assert_close(c, a[[7, 2]], atol=1e-5, rtol=0)
    assert all(m.training for m in model.module.modules())


@pytest.mark.parametrize("kind", [PAIR, CHOICE])
def test_a_bare_encoder_gives_the_same_vectors(kind: str, tmp_path: Path) -> None:
    data = task(kind)
    spec = ModelSpec(str(tiny.checkpoint("bert", tmp_path)), device="cpu")
    model = open_model(spec, data, seed=0)
    inputs = tokenise(data, "train", model.encoder, length=40)
    bare, _ = vectors_of(open_model(spec), inputs, scored=False)
    for a, b in zip(bare, vectors_of(model, inputs)[0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model, inputs = made("bert", SINGLE, tmp_path)
    model.module.base_model.encoder.layer[1].output.dense.bias.data[0] = torch.inf
    with pytest.raises(StratoscopeError, match="not finite at layer 2; check its weights or load it with --dtype"):
        vectors_of(model, inputs)
