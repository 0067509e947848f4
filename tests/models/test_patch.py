"""The patch of a gap against plain least squares, and the residual stream against transformers' own states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from stratoscope.data.corpus import Sentence
from stratoscope.models.open.loading import CAUSAL, ModelSpec, OpenedModel, open_model
from stratoscope.models.read.perplexity import against_whole, logit_bytes, predictions
from stratoscope.models.read.stream import moves
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.surgery.patch import RIDGES, Gap, can_patch, down_weight, fit_patches
from stratoscope.models.surgery.spans import score_spans

torch.set_num_threads(1)

DEPTH = 4
TEXTS = np.arange(len(tiny.SENTENCES))


def opened(folder: Path, family: str) -> OpenedModel:
    tiny.checkpoint(family, folder, head="causal", layers=DEPTH)
    return open_model(ModelSpec(str(folder), device="cpu"), CAUSAL)


def encoded(model: OpenedModel) -> Any:
    return model.encoder.encode([Sentence(t) for t in tiny.SENTENCES], truncate=40)


@torch.no_grad()
def by_hand(model: OpenedModel, block: int) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Of each text alone its states around every block, and what enters the down projection of `block`."""
    found = []
    layers = model.module.base_model.layers if hasattr(model.module.base_model, "layers") else model.module.base_model.h
    down = layers[block - 1].mlp.down_proj if hasattr(layers[0].mlp, "down_proj") else layers[block - 1].mlp.c_proj
    for text in tiny.SENTENCES:
        states: list[Any] = [None] * (DEPTH + 1)
        inner: list[Any] = []
        hooks = [down.register_forward_pre_hook(lambda _, args, inner=inner: inner.append(args[0][0].double().numpy()))]
        for k, layer in enumerate(layers):

            def note(_: Any, args: Any, output: Any, k: int = k, states: list[Any] = states) -> None:
                states[k], states[k + 1] = args[0][0].double().numpy(), output[0].double().numpy()

            hooks.append(layer.register_forward_hook(note))
        model.module(torch.tensor([model.encoder.tokenizer(text)["input_ids"][:40]]), use_cache=False)
        for hook in hooks:
            hook.remove()
        found.append((states, inner[0]))
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("span", [(2, 2), (2, 3), (3, 4)])
def test_the_patch_is_the_ridge_solution_on_all_tokens_but_the_first(
    family: str, span: tuple[int, int], tmp_path: Path
) -> None:
    model = opened(tmp_path, family)
    read = by_hand(model, span[0] - 1)
    a = np.concatenate([inner[1:] for _, inner in read])
    wanted = np.concatenate([(s[span[1]] - s[span[0] - 1])[1:] for s, _ in read])
    (made,) = fit_patches(model, encoded(model), TEXTS, [span], batch_tokens=100)
    own = down_weight(model.module, span[0] - 1)[1].double().numpy()
    for ridge, weight in zip(RIDGES, made, strict=True):
        penalty = ridge * np.square(a).sum(axis=0).mean()
        rows = np.vstack([a, np.sqrt(penalty) * np.eye(a.shape[1])])
        step = np.linalg.lstsq(rows, np.vstack([wanted, np.zeros((a.shape[1], wanted.shape[1]))]), rcond=None)[0]
        expected = own + (step if family == "gpt2" else step.T)
        np.testing.assert_allclose(weight.numpy(), expected, atol=2e-5 * np.abs(expected).max())
        assert np.abs(weight.numpy() - own).max() > 1e-2


def test_a_token_of_huge_norm_has_no_part_in_the_fit() -> None:
    rng = np.random.default_rng(0)
    inner = torch.tensor(rng.normal(size=(50, 6)))
    states = [torch.tensor(rng.normal(size=(50, 4))) for _ in range(3)]
    clean, spoilt = Gap((2, 2)), Gap((2, 2))
    rest = [k for k in range(50) if k != 20]
    clean.update(inner[rest], [s[rest] for s in states])
    states[2][20] *= 1e4
    inner[20] *= 1e3
    spoilt.update(inner, states)
    assert torch.allclose(clean.solve(0.1), spoilt.solve(0.1))


def test_where_nothing_is_missing_nothing_changes(tmp_path: Path) -> None:
    model = opened(tmp_path, "llama")
    layer = model.module.model.layers[2]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    (made,) = fit_patches(model, encoded(model), TEXTS, [(3, 3)])
    assert torch.allclose(made[0], down_weight(model.module, 2)[1], atol=1e-6)


def test_which_gaps_can_be_closed(tmp_path: Path) -> None:
    llama, gemma = opened(tmp_path / "llama", "llama").module, opened(tmp_path / "gemma", "gemma2").module
    assert [can_patch(llama, span) for span in ((1, 1), (1, 2), (2, 2))] == [False, False, True]
    assert not can_patch(gemma, (2, 2))  # a norm comes after its down projection


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_influence_and_angles_are_those_of_a_loop_over_texts(family: str, tmp_path: Path) -> None:
    model = opened(tmp_path, family)
    found = moves(model, encoded(model), TEXTS, batch_tokens=90)
    cosines: list[list[float]] = [[] for _ in range(DEPTH)]
    angles = np.zeros((DEPTH + 1, DEPTH + 1))
    for states, _ in by_hand(model, 1):
        for k in range(DEPTH):
            for x, y in zip(states[k], states[k + 1], strict=True):
                cosines[k].append(float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)))
        ends = np.array([s[-1] / np.linalg.norm(s[-1]) for s in states])
        angles += np.arccos(np.clip(ends @ ends.T, -1, 1)) / np.pi / len(TEXTS)
    np.testing.assert_allclose(found.influence, [1 - np.mean(c) for c in cosines], atol=1e-5)
    np.testing.assert_allclose(found.angular, angles, atol=1e-3)
    best = min(range(1, DEPTH), key=lambda first: angles[first - 1, first + 1])
    assert found.nearest_span(2) == (best, best + 1)
    assert found.least_influential(1) == (int(np.argmax([np.mean(c) for c in cosines])) + 1,)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("longest", [1, 2, DEPTH])
def test_spans_of_a_decoder_are_those_skipped_alone(family: str, longest: int, tmp_path: Path) -> None:
    model = opened(tmp_path, family)
    texts = encoded(model)
    whole = predictions(model, texts, TEXTS)
    how: dict[str, Any] = {"scoring": against_whole, "token_bytes": logit_bytes(model), "batch_tokens": 120}
    found = score_spans(model, texts, longest=longest, **how)
    spans = [(a, b) for a in range(1, DEPTH + 1) for b in range(a, DEPTH + 1) if b - a < longest]
    assert set(found) == set(spans)
    for first, last in spans:
        with keeping(model.module, [k for k in range(1, DEPTH + 1) if not first <= k <= last]):
            alone = predictions(model, texts, TEXTS)
        np.testing.assert_allclose(found[first, last][:, 0], alone.losses, rtol=1e-4)
        assert np.abs(found[first, last][:, 1] - alone.agreement(whole)).max() <= 1  # a tie may fall the other way
    assert (whole.agreement(whole) == texts.lengths - 1).all()


def test_predictions_are_those_of_plain_transformers(tmp_path: Path) -> None:
    model = opened(tmp_path, "llama")
    texts = encoded(model)
    found = predictions(model, texts, TEXTS[3:7], batch_tokens=80)
    for k, text in enumerate(tiny.SENTENCES[3:7]):
        ids = model.encoder.tokenizer(text)["input_ids"][:40]
        logits = model.module(torch.tensor([ids])).logits[0, :-1].double()
        said = logits.log_softmax(-1)
        assert found.losses[k] == pytest.approx(-sum(float(said[i, t]) for i, t in enumerate(ids[1:])), rel=1e-5)
        assert found.likely[k, : len(ids) - 1].tolist() == logits.argmax(-1).tolist()
        assert (found.likely[k, len(ids) - 1 :] == -1).all()
