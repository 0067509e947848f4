"""The kinds of thing a folder may hold: the file that tells it, what it is, and the command that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Kind:
    """One kind of folder."""

    file: str
    """A folder with this file is of this kind."""
    what: str
    """What such a folder holds, for sentences."""
    command: str
    """The command that makes it."""

    def missing(self, folder: str | Path) -> StratoscopeError:
        """The error for a folder that should be of this kind and is not."""
        return StratoscopeError(
            f"no {self.file} in {folder}; run 'stratoscope {self.command} ... --out {folder}' first"
        )


STUDY = Kind("study.json", "a study", "study finetuned")
DEPTH = Kind("depth.json", "a model judged at every depth", "depth")
COMPARISON = Kind("result.json", "a comparison", "compare")
PERPLEXITY = Kind("perplexity.json", "perplexities", "perplexity")
CUT = Kind("cut.json", "a cut model", "cut")
TUNED = Kind("finetune.json", "a fine-tuned model", "finetune")
PRUNED = Kind("prune.json", "a pruned model", "prune")
MODEL = Kind("config.json", "a model", "finetune")

KINDS = (STUDY, DEPTH, COMPARISON, PERPLEXITY, CUT, TUNED, PRUNED, MODEL)
"""Every kind; where a folder has the files of two, as a cut model has those of a model, the first tells what it is."""

if len({kind.file for kind in KINDS}) != len(KINDS):
    raise ValueError("two kinds share a file")


def kind_in(folder: Path) -> Kind | None:
    """What a folder holds; None when it is no folder of ours and no model."""
    return next((kind for kind in KINDS if (folder / kind.file).is_file()), None)
