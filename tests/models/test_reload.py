from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import PAIR, SINGLE, Example, TaskData
from stratoscope.models.surgery.reload import check_reload

PAIRS = tuple(Example(((a, b),), float(k % 2)) for k, (a, b) in enumerate(zip(tiny.SENTENCES, tiny.SENTENCES[1:])))  # noqa: B905
TASK = TaskData("pairs", PAIRS, PAIRS, ("a", "b"), PAIR, "accuracy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.checkpoint("bert", tmp_path / "model", head="classification")


def module(folder: Path) -> torch.nn.Module:
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_checkpoint_reloads_as_it_was_with_pairs_truncated_and_modes_kept(folder: Path) -> None:
    model = module(folder).train()  # dropout on, as a user may hand it over
    assert check_reload(folder, model, TASK, PAIRS, length=12) == 0.0
    assert model.training


def test_other_weights_are_told(folder: Path) -> None:
    model = module(folder)
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        StratoscopeError, match=r"does not match the model in memory: 1 weights differ \(first: classifier.bias\)"
    ):
        check_reload(folder, model, TASK, PAIRS, length=32)


def test_another_configuration_is_told(folder: Path) -> None:
    model = module(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))
    with pytest.raises(StratoscopeError, match=r"does not match the model in memory: logits are .* apart on 9 rows"):
        check_reload(folder, model, TASK, PAIRS, length=32)


def test_weights_that_are_not_stored_are_told(folder: Path) -> None:
    model = module(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StratoscopeError, match=r"1 parameters are missing or unexpected \(first: classifier.bias\)"):
        check_reload(folder, model, TASK, PAIRS, length=32)


def test_another_number_of_labels_is_told(folder: Path, tmp_path: Path) -> None:
    other = tiny.checkpoint("bert", tmp_path / "other", head="classification", num_labels=3)
    with pytest.raises(StratoscopeError, match="weights differ"):
        check_reload(other, module(folder), TASK, PAIRS, length=32)


def test_a_folder_that_cannot_be_read_is_told(folder: Path) -> None:
    model = module(folder)
    (folder / "config.json").write_text("{")
    single = TaskData("s", PAIRS, PAIRS, ("a", "b"), SINGLE, "accuracy")
    with pytest.raises(StratoscopeError, match="cannot read the written checkpoint"):
        check_reload(folder, model, single, PAIRS, length=32)
