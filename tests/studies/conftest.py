from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders base and tuned (BERT, two seeds) and other (RoBERTa, wider, another tokenizer)."""
    root = tmp_path_factory.mktemp("checkpoints")
    tiny.checkpoint("bert", root / "base")
    tiny.checkpoint("bert", root / "tuned", seed=1)
    tiny.checkpoint("roberta", root / "other", seed=2, hidden=48, layers=2)
    return root


@pytest.fixture(scope="session")
def text(checkpoints: Path) -> str:
    path = checkpoints / "sentences.txt"
    path.write_text("\n".join(tiny.SENTENCES) + "\n", encoding="utf-8")
    return str(path)
