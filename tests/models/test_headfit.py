"""Heads tuned on vectors: as good as scikit-learn, whatever the scale of the features and the family of the head."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData
from stratoscope.models.families import FAMILIES
from stratoscope.models.heads.fit import FittedHead, first_map, fit_head
from stratoscope.models.heads.minimise import Goal, Scale, few_threads, scale_of
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read.head import head_scores

WIDTH = tiny.HIDDEN
N = 600


def model(family: str, folder: Path, *, kind: str = "two") -> Any:
    labels = {"two": ("a", "b"), "three": ("a", "b", "c"), "choice": ("0", "1"), "number": None}[kind]
    texts = tuple(("x", "y" if kind == "choice" else None) for _ in range(2 if kind == "choice" else 1))
    rows = tuple(Example(texts, float(k % 2)) for k in range(4))
    form = CHOICE if kind == "choice" else SINGLE
    task = TaskData("toy", rows, rows, labels, form, "correlation" if kind == "number" else "accuracy")
    return open_model(ModelSpec(str(tiny.checkpoint(family, folder))), task, seed=1).module.requires_grad_(True)


def rows(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors as low layers give them, tiny variance around a large mean, and a noisy linear score of each."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, WIDTH, generator=g, dtype=torch.float64) @ torch.diag(
        torch.logspace(0, -1, WIDTH, dtype=torch.float64)
    )
    score = z @ torch.linspace(-1, 1, WIDTH, dtype=torch.float64) + 0.5 * torch.randn(
        n, generator=g, dtype=torch.float64
    )
    mean = 3 * torch.cos(torch.arange(WIDTH, dtype=torch.float64))
    return (mean + 0.01 * z).float(), score


def start(seed: int = 9) -> Scale:
    """Vectors of the layer the head was made for: nothing like those it is tuned on."""
    return scale_of(torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(seed)))


def judged(fitted: FittedHead, module: Any, x: Tensor, y: np.ndarray) -> float:
    return float((fitted.scores(module, x).argmax(axis=1) == y).mean())


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_no_cliff_on_low_layers(family: str, tmp_path: Path) -> None:
    module = model(family, tmp_path)
    (x, s), (xv, sv) = rows(N), rows(2000, seed=1)
    y, yv = (s > 0).double().numpy(), (sv > 0).double().numpy()
    scale = scale_of(x)
    reference = LogisticRegression(max_iter=1000).fit(scale(x).numpy(), y).score(scale(xv).numpy(), yv)
    assert reference > 0.8
    fitted = fit_head(module, x, Goal(y, 1, False), start=start())
    assert fitted.converged
    assert judged(fitted, module, xv, yv) > reference - 0.01


def test_a_few_steps_of_adam_on_raw_vectors_stay_at_chance(tmp_path: Path) -> None:
    """The control: what the test above would not pass."""
    module = copy.deepcopy(model("bert", tmp_path))
    (x, s), (xv, sv) = rows(N), rows(2000, seed=1)
    y, yv = (s > 0).long(), (sv > 0).numpy()
    pooler, last = module.bert.pooler.dense, module.classifier
    optimiser = torch.optim.Adam([*pooler.parameters(), *last.parameters()], lr=1e-3)
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(last(torch.tanh(pooler(x))), y).backward()
        optimiser.step()
    assert (head_scores(module, xv).argmax(axis=1) == yv).mean() < 0.65


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_the_parameters_are_the_same_head_on_the_vectors_as_they_are(family: str, tmp_path: Path) -> None:
    module = model(family, tmp_path)
    x, s = rows(100)
    before = copy.deepcopy(module.state_dict())
    fitted = fit_head(module, x, Goal((s > 0).double().numpy(), 1, False), start=start())
    assert all(torch.equal(p, before[name]) for name, p in module.state_dict().items())
    filled = copy.deepcopy(module)
    missing = filled.load_state_dict(fitted.parameters, strict=False)
    assert not missing.unexpected_keys
    np.testing.assert_allclose(head_scores(filled, x), fitted.scores(module, x), atol=2e-2)
    assert np.abs(head_scores(module, x) - fitted.scores(module, x)).max() > 0.1


def test_a_fit_is_remembered_by_all_it_depends_on(tmp_path: Path) -> None:
    module = model("bert", tmp_path)
    x, s = rows(100)
    goal = Goal((s > 0).double().numpy(), 1, False)
    first = fit_head(module, x, goal, start=start())
    assert fit_head(copy.deepcopy(module), x.clone(), goal, start=start()) is first
    turned = copy.deepcopy(module)
    turned.classifier.weight.data.neg_()
    others = [
        fit_head(turned, x, goal, start=start()),
        fit_head(
            module, x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), goal, start=start()
        ),
        fit_head(module, x, Goal(1 - goal.targets, 1, False), start=start()),
        fit_head(module, x, goal, start=start(seed=3)),
        fit_head(module, x, goal, start=start(), seed=1),
    ]
    assert all(other is not first for other in others)


@pytest.mark.parametrize(("work", "inside"), [(1e6, 1), (1e12, 2)])
def test_small_work_is_left_to_one_thread(work: float, inside: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads(work):
            assert torch.get_num_threads() == inside
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["bert", "gpt2", "electra"])
def test_three_classes(family: str, tmp_path: Path) -> None:
    module = model(family, tmp_path, kind="three")
    (x, s), (xv, sv) = rows(N), rows(1000, seed=1)
    y, yv = (np.digitize(t.numpy(), [-0.8, 0.8]).astype(np.float64) for t in (s, sv))
    scale = scale_of(x)
    reference = LogisticRegression(max_iter=1000).fit(scale(x).numpy(), y).score(scale(xv).numpy(), yv)
    assert judged(fit_head(module, x, Goal(y, 1, False), start=start()), module, xv, yv) > reference - 0.01


def test_one_linear_map_is_logistic_regression(tmp_path: Path) -> None:
    """GPT-2's head has no bias, and the mean of the vectors takes its place."""
    module = model("gpt2", tmp_path)
    x, s = rows(N)
    y = (s > 0).double().numpy()
    reference = LogisticRegression(max_iter=1000).fit(scale_of(x)(x).numpy(), y)
    fitted = fit_head(module, x, Goal(y, 1, False), start=start())
    got = fitted.scores(module, x)
    assert fitted.linear
    np.testing.assert_allclose(got[:, 1] - got[:, 0], reference.decision_function(scale_of(x)(x).numpy()), atol=0.3)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_regression(family: str, tmp_path: Path) -> None:
    module = model(family, tmp_path, kind="number")
    (x, s), (xv, sv) = rows(N), rows(1000, seed=1)
    scale = scale_of(x)
    reference = Ridge().fit(scale(x).numpy(), 3 + s.numpy()).predict(scale(xv).numpy())
    fitted = fit_head(module, x, Goal(3 + s.numpy(), 1, True), start=start())
    got = fitted.scores(module, xv)[:, 0]
    assert np.mean((got - 3 - sv.numpy()) ** 2) < 1.05 * np.mean((reference - 3 - sv.numpy()) ** 2)


def test_multiple_choice(tmp_path: Path) -> None:
    module = model("bert", tmp_path, kind="choice")
    (x, s), (xv, sv) = rows(2 * N), rows(2000, seed=1)
    y, yv = (t.view(-1, 2).argmax(dim=1).double().numpy() for t in (s, sv))
    fitted = fit_head(module, x, Goal(y, 2, False), start=start())
    got = (fitted.scores(module, xv, choices=2).argmax(axis=1) == yv).mean()
    best = LogisticRegression(max_iter=1000).fit((x[1::2] - x[::2]).numpy() * 100, y)
    assert got > best.score((xv[1::2] - xv[::2]).numpy() * 100, yv) - 0.01


def test_a_curved_boundary_is_left_to_the_pooler(tmp_path: Path) -> None:
    module = model("bert", tmp_path)
    x, _ = rows(10 * N)
    z = scale_of(x)(x)
    y = (z[:, 0].abs() > 0.67).double().numpy()
    linear = LogisticRegression().fit(z.numpy(), y).score(z.numpy(), y)
    fitted = fit_head(module, x, Goal(y, 1, False), start=start())
    assert not fitted.linear
    assert judged(fitted, module, x, y) > linear + 0.2


def test_the_same_seed_gives_the_same_head(tmp_path: Path) -> None:
    module = model("bert", tmp_path)
    x, s = rows(200)
    first, second = (
        fit_head(module, x, Goal((s > 0).double().numpy(), 1, False), start=start(), seed=4) for _ in range(2)
    )
    assert all(torch.equal(first.parameters[k], second.parameters[k]) for k in first.parameters)


def test_scale_tells_constant_features_apart() -> None:
    x = torch.randn(50, 4)
    x[:, 1] = 7.0 + 1e-7 * torch.randn(50)
    scale = scale_of(x)
    assert not scale.constant
    assert scale.spread[1] == 1
    torch.testing.assert_close(scale(x)[:, 0].std(correction=0), torch.tensor(1.0))
    assert scale_of(x[:1].expand(9, 4)).constant


def test_a_constant_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="no head can be tuned on a layer that gives the same vector for every"):
        fit_head(model("bert", tmp_path), torch.ones(8, WIDTH), Goal(np.arange(8.0) % 2, 1, False), start=start())


def test_a_head_that_does_not_begin_with_a_linear_map_is_refused(tmp_path: Path) -> None:
    module = model("gpt2", tmp_path)
    module.score = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))
    with pytest.raises(StratoscopeError, match="GPT2ForSequenceClassification does not begin with a linear map"):
        first_map(module)
