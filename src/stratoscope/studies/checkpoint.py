"""A checkpoint as the result of a run: written among its parts, checked, then moved into place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import disk_errors
from stratoscope.models.open.checkpoints import Checkpoint, fingerprint
from stratoscope.models.open.guard import quiet
from stratoscope.runs.folder import RunFolder

PLACE = "checkpoint"
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")


def write_checkpoint(folder: RunFolder, module: Any, tokenizer: Any) -> Path:
    """Save model and tokenizer among the parts of a run, and say where."""
    place = folder.part(PLACE)
    with disk_errors(place), quiet():
        if place.exists():
            shutil.rmtree(place)
        module.save_pretrained(place)
        tokenizer.save_pretrained(place)
    return place


def put_in_place(folder: RunFolder) -> str:
    """Move the checkpoint into the run's folder, in the place of an earlier one of ours; return its fingerprint."""
    place, target = folder.part(PLACE), folder.path
    weights = weights_of(place)
    with disk_errors(target):
        for old in (p for pattern in WEIGHTS for p in target.glob(pattern)):
            old.unlink()
        for file in sorted(place.iterdir()):
            os.replace(file, target / file.name)
        place.rmdir()
    return weights


def weights_of(folder: Path) -> str:
    """Fingerprint of a local checkpoint."""
    return fingerprint(Checkpoint(str(folder), local=True))


def is_whole(folder: Path, weights: str) -> bool:
    """Whether the checkpoint in a folder is still the one that was written."""
    try:
        return weights_of(folder) == weights
    except (StratoscopeError, OSError):
        return False
