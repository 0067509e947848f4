"""A run folder as the store of layers sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from stratoscope.core.codekey import code_key
from stratoscope.core.progress import Progress
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.models.read.store import PART


@dataclass(frozen=True)
class FolderRun:
    """Keeps parts in a run folder, named by what they were made from and by which code."""

    folder: RunFolder
    progress: Progress

    def file(self, name: str, key: object, make: Callable[[], Mapping[str, Tensor]]) -> Path:
        """The part called `name` made from `key`, made now if it is missing or damaged."""
        part = f"{name}-{code_key()[:16]}-{digest(key)}.safetensors"
        if not self.folder.has(part):
            self.folder.save(part, partial(save_file, dict(make())))
        return self.folder.part(part)


def made_by_this_code(part: str) -> bool:
    """Whether a part holds layers that a later run can use; those of other code are of no use to anyone."""
    return part.startswith(f"{PART}-{code_key()[:16]}-")
