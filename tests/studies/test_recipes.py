from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import described
from stratoscope.models.train.trainer import PRECISIONS, Schedule, Setup, grouped_order, planned_steps, train_, windows
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetune.recipes import RECIPES, recipe_named, resolve


def test_the_published_recipes_are_as_published() -> None:
    phang, wu, ren = (recipe_named(n) for n in ("phang2021", "wu2020", "ren2023"))
    assert (phang.lr, phang.batch, phang.warmup, phang.max_steps, phang.epochs) == (1e-5, 4, 1000, 10_000, None)
    assert (wu.lr, wu.batch, wu.epsilon, wu.epochs, wu.max_steps) == (5e-5, 8, 1e-8, 3, None)
    assert (ren.lr, ren.length, ren.epochs) == (2e-5, 128, 3)
    assert resolve(FinetuneOptions(recipe="ren2023"), "mrpc").epochs == 5
    assert resolve(FinetuneOptions(recipe="ren2023"), "rte").epochs == 3
    assert [r.name for r in RECIPES] == ["phang2021", "wu2020", "ren2023", "quick"]


def test_own_values_take_the_place_of_the_recipes() -> None:
    own = FinetuneOptions(recipe="phang2021", lr=2e-5, batch=8, warmup=0, length=64)
    found = resolve(own, "sst2")
    assert (found.lr, found.batch, found.warmup, found.length, found.max_steps) == (2e-5, 8, 0, 64, 10_000)


def test_the_limit_the_user_names_replaces_the_one_of_the_recipe() -> None:
    steps = resolve(FinetuneOptions(recipe="quick", max_steps=50), "toy")
    assert (steps.epochs, steps.max_steps) == (None, 50)
    epochs = resolve(FinetuneOptions(recipe="phang2021", epochs=3), "toy")
    assert (epochs.epochs, epochs.max_steps) == (3, None)
    assert planned_steps(10, 4, 2, None) == 6
    assert planned_steps(10, 4, None, 50) == 50
    assert planned_steps(10, 4, 2, 5) == 5
    assert planned_steps(10, 4, 0.1, None) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recipe": "wu2021"}, "unknown recipe 'wu2021'; did you mean 'wu2020'?"),
        ({"lr": "fast"}, "expected --lr as a number, got 'fast'"),
        ({"lr": math.nan}, "expected --lr as a number, got 'nan'"),
        ({"lr": 0}, "expected --lr above 0, got 0"),
        ({"epochs": -1}, "expected --epochs above 0, got -1"),
        ({"batch": 0}, "expected --batch of at least 1, got 0"),
        ({"batch": 2.5}, r"expected --batch as a whole number, got 2\.5"),
        ({"max_steps": 0}, "expected --max-steps of at least 1, got 0"),
        ({"seeds": 0}, "expected --seeds of at least 1, got 0"),
        ({"seeds": True}, "expected --seeds as a number, got 'True'"),
        ({"first_seed": -1}, "expected --first-seed of at least 0, got -1"),
        ({"first_seed": 2**32 - 1, "seeds": 2}, r"expected seeds below 2\^32, got 4294967296"),
        ({"warmup": -0.1}, "expected --warmup of at least 0, got -0.1"),
        ({"warmup": 2.5}, "expected --warmup as a whole number of steps, or a share of the run below 1; got 2.5"),
        ({"checkpoint_steps": 0}, "expected checkpoint_steps of at least 1, got 0"),
    ],
)
def test_what_is_no_sensible_number_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        resolve(FinetuneOptions(**options), "toy")


def test_losses_are_shown_as_means_of_equal_stretches() -> None:
    assert windows([4.0, 2.0, 1.0, 1.0], 2) == [(2, 3.0), (4, 1.0)]
    assert windows([1.0], 20) == [(1, 1.0)]
    assert len(windows([0.0] * 1000)) == 20


def test_devices_that_cannot_train_are_refused(tmp_path: Any) -> None:
    schedule = Schedule(1e-3, 4, 10, 0, 1e-8)
    setup = Setup(tmp_path, "r", "toy", None, torch.device("cuda", 1))  # type: ignore[arg-type]
    with pytest.raises(
        StratoscopeError, match="training runs on the first device, got 'cuda:1'; choose it with CUDA_V"
    ):
        train_(None, None, schedule, setup)  # type: ignore[arg-type]
    with pytest.raises(StratoscopeError, match="unknown dtype 'int8'"):
        train_(None, None, schedule, replace(setup, precision="int8"))  # type: ignore[arg-type]
    assert "bfloat16" in PRECISIONS


def test_grouped_batches_see_every_row_once_an_epoch_and_pad_little() -> None:
    lengths = np.random.default_rng(0).integers(5, 100, 400)
    schedule = Schedule(1e-3, 8, 110, 0, 1e-8, grouped=True)
    order = grouped_order(lengths, schedule, seed=3)
    assert len(order) == 110 * 8
    for epoch in (order[:400], order[400:800]):
        assert sorted(epoch) == list(range(400))
    assert order[:400] != order[400:800]
    assert order == grouped_order(lengths, schedule, seed=3) != grouped_order(lengths, schedule, seed=4)
    batches = lengths[np.array(order)].reshape(-1, 8)
    padded, real = batches.max(1).sum() * 8, batches.sum()
    assert padded < 1.1 * real  # shuffled batches are 1.7 times as long as their texts
    assert abs(np.corrcoef(np.arange(50), batches[:50].mean(1))[0, 1]) < 0.3  # short ones do not all come first


def test_grouped_batches_of_few_rows() -> None:
    schedule = Schedule(1e-3, 16, 5, 0, 1e-8, grouped=True)
    assert sorted(grouped_order(np.array([3, 1, 2]), schedule, seed=0)) == [0] * 5 + [1] * 5 + [2] * 5
    partly = grouped_order(np.arange(10), replace(schedule, batch=4), seed=0)  # two of ten rows are left out each time
    assert len(set(partly[:8])) == len(set(partly[8:16])) == 8


def test_flags_yaml_and_keywords_have_every_field_but_the_checkpoints() -> None:
    fields = set(FinetuneOptions.__dataclass_fields__)
    assert fields - set(described(FinetuneOptions)) == {"checkpoint_steps"}
    assert fields - set(TrainingOptions.__dataclass_fields__) == {"freeze"}, "prune freezes nothing"
