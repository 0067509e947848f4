"""Every command on Ray, and shared out among shards of which one fails: the same files as in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ended import Command

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.open import loading
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.attention import plan as attention_plan
from stratoscope.studies.depth import judge
from stratoscope.studies.perplexity import spans
from stratoscope.studies.perplexity import study as perplexity_study

SOURCE = str(Path(__file__).parents[2] / "src")
TASK = ("--data", "rows.jsonl", "--length", "16")
TUNING = ("--recipe", "quick", "--max-steps", "2", "--batch", "4")
LINES = {
    "compare": ("base", "other", "--data", "t.txt", "-m", "ckasim", "-m", "svsim", "-m", "rsa", "-m", "ckasim-rbf",
                "--bootstrap", "20"),
    "attention": ("base", "other", "--data", "t.txt", "-m", "all", "--bootstrap", "20"),
    "align": ("base", "other", "--data", "t.txt", "--unit", "word", "--method", "ridge", "--method", "mlp",
              "--layers", "2"),
    "inject": ("clf", "clf", *TASK, "--method", "ridge", "--method", "procrustes"),
    "study recovery": ("--dim", "2", "--dim", "3", "--method", "ridge", "--train", "40"),
    "depth": ("clf", *TASK),
    "cut": ("clf", *TASK, "--budget", "0.9", "--force", "--head"),
    "cut --blocks": ("clf", *TASK, "--budget", "0.9", "--force", "--blocks", "any"),
    "cut DECODER": ("decoder", "--data", "t.txt", "--max-ppl", "99x"),
    "perplexity": ("decoder", "--data", "t.txt"),
    "probe": ("base", "--corpus", "tags.jsonl", "--property", "tags", "--neurons"),
    "diff": ("base", "clf", "--data", "rows.jsonl"),
    "diff DECODERS": ("decoder", "other-decoder", "--data", "t.txt"),
    "weights": ("base", "clf"),
    "study finetuned": ("base", "clf", "--data", "rows.jsonl", "--bootstrap", "20"),
    "finetune": ("base", *TASK, *TUNING, "--seeds", "2"),
    "prune": ("base", "--drop", "top:1", *TASK, *TUNING),
    "reproduce": ("wu2020", "fig1", "--models", "base", "other", "--data", "t.txt"),
}  # fmt: skip
"""By what is typed; a word in capitals is a remark."""
FEW_PARTS = ("finetune", "prune", "weights", "study recovery")
"""Commands that have no third part here at which a shard could fail."""
TIMED = {"seconds", "latency", "sha256"}
"""Fields of records that are times, or follow from them."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stage")
    small = {"layers": 2, "hidden": 16}
    tiny.checkpoint("bert", root / "base", **small)
    tiny.checkpoint("bert", root / "other", seed=1, **small)
    tiny.checkpoint("bert", root / "clf", head="classification", seed=2, **small)
    tiny.checkpoint("llama", root / "decoder", head="causal", **small)
    tiny.checkpoint("llama", root / "other-decoder", head="causal", seed=1, **small)
    sentences = [f"{s} {k}" for k in range(2) for s in tiny.SENTENCES]
    (root / "t.txt").write_text("\n".join(sentences) + "\n")
    rows = [{"text": s, "label": "ab"[k % 2]} for k, s in enumerate(sentences * 2)]
    (root / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    tags = [{"words": s.split(), "tags": [f"T{len(w) % 3}" for w in s.split()]} for s in sentences]
    (root / "tags.jsonl").write_text("".join(json.dumps(t) + "\n" for t in tags))
    return root


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local session of Ray that all commands find."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratoscope[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SOURCE)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture
def here(stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh working folder; parts are of few texts, so that there are some to share out. Nothing is drawn."""
    for place in ("alone", "ray", "shards"):
        (tmp_path / place).mkdir()
        for path in stage.iterdir():
            (tmp_path / place / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path / "alone")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(attention_plan, "SHARD_WORK", 2e4)
    monkeypatch.setattr(judge, "SPAN_ROWS", 2)
    monkeypatch.setattr(perplexity_study, "TEXTS", 8)
    monkeypatch.setattr(spans, "PASSES_AT_ONCE", 8)
    monkeypatch.setattr("stratoscope.report.write.write_report", lambda *given, **how: None)
    return tmp_path


def words(name: str) -> list[str]:
    typed = [w for w in name.split() if w.islower() and not w.startswith("-")]
    return [*typed, *LINES[name], "--out", "run"]


def left(folder: Path) -> dict[str, object]:
    """Every file of a run, but for times and for where it was run."""
    found: dict[str, object] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "README.md":
            found[name] = [line for line in path.read_text().splitlines() if not line.startswith("| time")]
        elif path.name == "run.yaml":
            found[name] = [line for line in path.read_text().splitlines() if not line.startswith("engine:")]
        elif path.suffix == ".json" and '"provenance"' in path.read_text():
            record = json.loads(path.read_text())
            found[name] = {k: v for k, v in record.items() if k not in TIMED}
        else:
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("name", LINES)
def test_ray_and_shards_leave_what_one_process_leaves(
    name: str, here: Path, command: Command, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = command(*words(name))
    assert ended.code == 0, ended.err
    alone = left(here / "alone" / "run")
    monkeypatch.chdir(here / "ray")
    ended = command(*words(name), "--engine", "ray")
    assert ended.code == 0, ended.err
    assert left(here / "ray" / "run") == alone
    assert not (here / "ray" / "run" / "parts").exists()

    monkeypatch.chdir(here / "shards")
    save, saved = RunFolder.save, list[str]()

    def failing(self: RunFolder, name: str, tensors: object) -> object:
        if len(saved) == 2:
            raise StratoscopeError("this shard fails")
        saved.append(name)
        return save(self, name, tensors)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", failing)
        ended = command(*words(name), "--shard", "1/2")
    if len(saved) == 2 and ended.code:
        assert "this shard fails" in ended.err
        kept = {path.name for path in (here / "shards" / "run").rglob("parts/*.safetensors")}
        assert set(saved) <= kept
    else:
        assert name in FEW_PARTS, f"{name} kept {len(saved)} parts only"
    remade: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", lambda self, part, t: (remade.append(part), save(self, part, t))[1])
        ended = command(*words(name), "--shard", "2/2")
    assert ended.code == 0, ended.err
    assert not set(saved) & set(remade), "a finished part is not made again"
    ended = command(*words(name), "--merge")
    assert ended.code == 0, ended.err
    assert "nothing to do" in ended.err
    assert left(here / "shards" / "run") == alone


@pytest.mark.parametrize("name", ["compare", "attention", "perplexity", "depth"])
def test_a_cluster_without_the_gpu_that_a_model_is_to_run_on(
    name: str, here: Path, command: Command, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "choose_device", lambda name: torch.device("cuda"))  # as where there is one
    ended = command(*words(name), "--engine", "ray")
    assert ended.code == 2
    assert "needs 1 GPU for each worker, and the Ray cluster has 0; give --device cpu" in ended.err


def test_shards_and_merging_exclude_each_other(here: Path, command: Command) -> None:
    ended = command("compare", "base", "other", "--data", "t.txt", "--out", "x", "--shard", "1/2", "--merge")
    assert ended.code == 2
    assert "--shard or --merge" in ended.err
    assert not Path("x").exists()
