"""Models whose top blocks do nothing, and tasks that they do perfectly: the labels are their own answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tiny
from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData

WORDS = (
    "quick",
    "brown",
    "fox",
    "lazy",
    "dog",
    "film",
    "story",
    "ending",
    "warm",
    "funny",
    "wooden",
    "old",
    "umbrella",
)


def classifier(folder: Path, family: str = "gpt2", *, layers: int = 4, idle: int = 2, labels: int = 2) -> Path:
    """A random classifier whose topmost `idle` blocks hand on what they are given."""
    tiny.checkpoint(family, folder, head="classification", layers=layers, num_labels=labels)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = model.config.eos_token_id
    _idle_(model, idle)
    model.save_pretrained(folder)
    return folder


def chooser(folder: Path, *, layers: int = 4, idle: int = 2) -> Path:
    """The same with a multiple-choice head."""
    tiny.checkpoint("bert", folder, layers=layers)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForMultipleChoice.from_pretrained(folder)
        torch.nn.init.normal_(model.classifier.weight)
    _idle_(model, idle)
    model.save_pretrained(folder)
    return folder


def _idle_(model: Any, idle: int) -> None:
    inner = model.base_model
    if hasattr(inner, "h"):  # GPT-2 adds to the stream: nothing added is exactly nothing done
        for block in inner.h[len(inner.h) - idle :]:
            for part in (block.attn.c_proj, block.mlp.c_proj):
                part.weight.data.zero_()
                part.bias.data.zero_()
        return
    layers = inner.encoder.layer
    for k in range(len(layers) - idle - 1, len(layers)):  # a plain norm after a plain norm changes nothing
        for part in (layers[k].attention.output, layers[k].output):
            part.LayerNorm.weight.data.fill_(1)
            part.LayerNorm.bias.data.zero_()
            if k >= len(layers) - idle:
                part.dense.weight.data.zero_()
                part.dense.bias.data.zero_()


def texts(rows: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(rows)]


def answers(folder: Path, given: list[str], auto: str = "AutoModelForSequenceClassification") -> np.ndarray:
    """Logits by plain transformers, one text at a time."""
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return np.stack([model(**tokenizer(t, return_tensors="pt")).logits[0].numpy() for t in given])


def task_of(folder: Path, rows: int = 160, *, right: bool = True, name: str = "planted") -> TaskData:
    """As many rows of each class as of the other, labelled by the model itself, or with the other label."""
    given = list(dict.fromkeys(texts(4 * rows, 0)))
    said = answers(folder, given).argmax(axis=1)
    sides = [[t for t, s in zip(given, said, strict=True) if s == side][: rows // 2] for side in (0, 1)]
    assert all(len(side) == rows // 2 for side in sides), "the model almost never gives one of the labels"
    examples = [
        Example(((t, None),), float(k if right else 1 - k))
        for pair in zip(*sides, strict=True)
        for k, t in enumerate(pair)
    ]
    return TaskData(name, tuple(examples), tuple(examples), ("bad", "good"), SINGLE, "accuracy")


def rated_by(folder: Path, rows: int = 160) -> TaskData:
    """A regression whose targets are the model's own."""
    given = texts(rows, 1)
    examples = tuple(Example(((t, None),), float(s[0])) for t, s in zip(given, answers(folder, given), strict=True))
    return TaskData("rated", examples, examples, None, SINGLE, "correlation")


def chosen_by(folder: Path, rows: int = 160) -> TaskData:
    """Three endings; the model's favourite is right."""
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = texts(4 * rows, 2)
    examples = []
    for k in range(rows):
        pairs = tuple((given[4 * k], t) for t in given[4 * k + 1 : 4 * k + 4])
        inputs = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**{name: v[None] for name, v in inputs.items()}).logits[0]
        examples.append(Example(pairs, float(scores.argmax())))
    return TaskData("endings", tuple(examples), tuple(examples), ("0", "1", "2"), CHOICE, "accuracy")
