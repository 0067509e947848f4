from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from planted import classifier, task_of
from toys import LEARN, Reads, classification

import tiny
from stratoscope.data.tasks.data import TaskData
from stratoscope.results.finetuned import Finetuned
from stratoscope.studies.finetune.study import finetune

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


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that learns fast, without dropout."""
    folder = tmp_path_factory.mktemp("calm") / "base"
    return tiny.checkpoint("bert", folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="session")
def learnt(calm: Path) -> tuple[Finetuned, ...]:
    """The calm BERT tuned on the toy task, with two seeds."""
    return tuple(finetune(calm, classification(), out=calm.parent / "tuned", options=replace(LEARN, seeds=2)))


@pytest.fixture(scope="session")
def tuned(learnt: tuple[Finetuned, ...]) -> Path:
    return learnt[0].folder


@pytest.fixture(scope="session")
def lazy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 of four blocks, the upper two idle."""
    return classifier(tmp_path_factory.mktemp("lazy") / "model")


@pytest.fixture(scope="session")
def lazy_task(lazy: Path) -> TaskData:
    """What the lazy model does perfectly."""
    return task_of(lazy)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts every text that goes through a BERT or a GPT-2."""
    reads = Reads()
    for encoder in (transformers.BertModel, transformers.GPT2Model):
        monkeypatch.setattr(encoder, "forward", reads.watch(encoder.forward))
    return reads
