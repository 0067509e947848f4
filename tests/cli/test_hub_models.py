"""Every command that takes a hub id, on a model that lies in the hub's cache only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ended import Command

import stratoscope as ss
import tiny
from stratoscope.models.open import loading
from stratoscope.results.comparison import Comparison

MAIN, OLD, TUNED, DECODER = (digit * 40 for digit in "1234")
WORDS = (("warm", "good"), ("lazy", "bad"), ("funny", "good"), ("wooden", "bad"))
TASK = ("--data", "rows.jsonl", "--text", "text")


@pytest.fixture
def cached(here: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; the hub's cache holds acme/tiny at two commits and acme/decoder."""
    import huggingface_hub.constants as hub

    tiny.hub_cache(here / "hub", "acme/tiny", {MAIN: home / "base", OLD: home / "tuned"}, {"main": MAIN, "v1": OLD})
    tiny.hub_cache(
        here / "hub",
        "acme/decoder",
        {DECODER: tiny.checkpoint("gpt2", here / "gpt2", head="causal")},
        {"main": DECODER},
    )
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(here / "hub"))
    loading._reachable.cache_clear()
    loading._commit.cache_clear()
    rows = [{"text": f"the {n} dog is {word}", "label": label} for n in range(10) for word, label in WORDS]
    (here / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return here


@pytest.mark.parametrize(("revision", "commit", "folder"), [((), MAIN, "base"), (("--revision", "v1"), OLD, "tuned")])
def test_compare(revision: tuple[str, ...], commit: str, folder: str, cached: Path, command: Command) -> None:
    how = ("--data", "t.txt", "--unit", "mean", "--device", "cpu", "--workers", "1", "--random-init")
    ended = command("compare", "acme/tiny", *revision, *how, "--out", "hub-run")
    assert ended.code == 0, ended.err
    assert command("compare", folder, "--name", "tiny", *how, "--out", "folder-run").code == 0
    found, plain = Comparison.load("hub-run"), Comparison.load("folder-run")
    assert np.array_equal(found["ckasim"].values, plain["ckasim"].values)
    named = json.loads((cached / "hub-run" / "result.json").read_text())["models"]
    assert [(m["name"], m["source"]) for m in named] == [("tiny", "acme/tiny"), ("tiny-random", "acme/tiny")]
    assert named[0]["fingerprint"] == commit


def test_finetune_then_depth_cut_and_study(cached: Path, command: Command) -> None:
    learn = ("--recipe", "quick", "--lr", "3e-3", "--epochs", "4", "--batch", "8", "--length", "24")
    ended = command("finetune", "acme/tiny", "--revision", "v1", *TASK, *learn, "--out", "ft")
    assert ended.code == 0, ended.err
    assert json.loads((cached / "ft" / "seed-0" / "finetune.json").read_text())["base"]["fingerprint"] == OLD

    tiny.hub_cache(cached / "hub", "acme/judge", {TUNED: cached / "ft" / "seed-0"}, {"main": TUNED})
    assert command("depth", "acme/judge", *TASK, "--no-skip", "--out", "hub-depth").code == 0
    assert TUNED in (cached / "hub-depth" / "depth.json").read_text()
    assert command("cut", "acme/judge", *TASK, "--budget", "0.9", "--force", "--out", "hub-cut").code == 0
    assert json.loads((cached / "hub-cut" / "cut.json").read_text())["model"]["fingerprint"] == TUNED
    ended = command(
        "study", "finetuned", "acme/tiny", "acme/judge", *TASK, "--bootstrap", "0", "--no-depth", "--out", "study"
    )
    assert ended.code == 0, ended.err
    assert [m.fingerprint for m in ss.load("study").models[:2]] == [MAIN, TUNED]


def test_perplexity(cached: Path, command: Command) -> None:
    ended = command("perplexity", "acme/decoder", "--data", "t.txt", "--out", "hub-perplexity")
    assert ended.code == 0, ended.err
    assert any(DECODER in p.read_text() for p in (cached / "hub-perplexity").glob("*.json"))
