"""How models are named and loaded on the command line, spelled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import option

if TYPE_CHECKING:
    from stratoscope.models.open.loading import ModelSpec

Base = Annotated[
    str, typer.Argument(help="Checkpoint folder or hub id of the model before fine-tuning.", metavar="BASE")
]
Tuned = Annotated[str, typer.Argument(help="Checkpoint fine-tuned on the task.", metavar="TUNED")]


def folder(text: str) -> Path:
    """A folder as it was typed; an empty name, as of a shell variable that is not set, is not the current folder."""
    if not str(text).strip():
        raise StratoscopeError("expected a folder for --out, got an empty name")
    return Path(text)


Out = Annotated[Path, typer.Option("--out", help="Run folder for everything this makes.", parser=folder)]


@dataclass(frozen=True)
class Loading:
    """How models are loaded."""

    device: str = option("auto", "auto, cpu, cuda or mps.")
    allow_pickle: bool = option(False, "Load pickle weights, which may run code.")
    trust_remote_code: bool = option(False, "Run Python code that comes with a model.")

    def spec(self, source: str, **known: Any) -> ModelSpec:
        """The model as the user named it; `known` in place of what these options say."""
        from stratoscope.models.open.loading import ModelSpec

        shared = {f.name: getattr(self, f.name) for f in fields(self)}
        return ModelSpec(source, **{**shared, **known})


@dataclass(frozen=True)
class LoadingOne(Loading):
    """How a model that may have a revision of its own is loaded."""

    revision: str | None = option(None, "Revision of the model on the hub.")


@dataclass(frozen=True)
class LoadingSeveral(LoadingOne):
    """How models to compare are loaded and labelled."""

    dtype: str = option("float32", "float32, float16, bfloat16 or auto.")
    name: tuple[str, ...] = option((), "Label of a model, in order; may be repeated.")

    def specs(self, sources: Sequence[str]) -> list[ModelSpec]:
        """The models as the user named them, labelled in order."""
        if self.name and len(self.name) != len(sources):
            raise StratoscopeError(f"expected one --name per model ({len(sources)}) or none, got {len(self.name)}")
        labels = self.name or (None,) * len(sources)
        return [self.spec(source, name=label) for source, label in zip(sources, labels, strict=True)]
