"""Adapters and weights through the command line, as a new user would."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from ended import Command

import stratoscope as ss
import tiny
from stratoscope.results.weights import rank

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from test_model_sources import lora

pytest.importorskip("peft")


def test_weights_of_two_checkpoints_and_of_an_adapter(here: Path, command: Command) -> None:
    ended = command("weights", "base", "tuned")
    assert ended.code == 0, ended.err
    assert "Changed most: block" in ended.out
    assert len(ended.out.splitlines()) <= 12
    folder = here / "runs" / "weights-tuned"
    assert (folder / "report.html").is_file()
    assert (folder / "run.yaml").is_file()
    assert ss.load(folder).models[1].name == "tuned"
    assert command("weights", "--config", "runs/weights-tuned/run.yaml", "--out", "again").code == 0
    assert ss.load("again").to_frame().equals(ss.load(folder).to_frame())

    lora(here / "base", here, "AutoModel", task_type="FEATURE_EXTRACTION", target_modules=["query"])
    ended = command("weights", "adapter", "--name", "mine", "--json", "--out", "lora")
    assert ended.code == 0, ended.err
    assert "Effective rank" in " ".join(json.loads(ended.out)["answer"])
    made = ss.load("lora")
    assert [m.name for m in made.models] == ["base", "mine"]
    assert np.nanmax(made.grid(rank)) <= 4.001
    assert command("weights", "--config", "lora/run.yaml", "--out", "lora-again").code == 0


def test_an_adapter_is_compared_as_its_merged_checkpoint(here: Path, command: Command) -> None:
    lora(here / "base", here, "AutoModel", task_type="FEATURE_EXTRACTION", target_modules=["query", "dense"])
    how = ("--data", "t.txt", "--unit", "mean", "--workers", "1", "--device", "cpu")
    ended = command("compare", "base", "adapter", "merged", *how, "--out", "run")
    assert ended.code == 0, ended.err
    matrix = ss.load("run")["ckasim"]
    one, two = (matrix.between("base", name).values for name in ("adapter", "merged"))
    assert np.nanmax(np.abs(one - two)) < 1e-6
    assert np.nanmin(np.diag(one)[1:]) < 0.999
    tiny.checkpoint("bert", here / "moved", seed=4)
    ended = command("compare", "adapter", "--base", "moved", *how, "--out", "moved-run")
    assert ended.code == 0, ended.err
    assert "base: moved" in (here / "moved-run" / "run.yaml").read_text()


@pytest.mark.parametrize("line", ["weights base", "weights base nowhere/at/all", "weights base tuned --name one"])
def test_bad_input_is_one_sentence(line: str, here: Path, command: Command) -> None:
    ended = command(*line.split())
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert not (here / "runs").exists()
