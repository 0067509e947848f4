"""How models are named and loaded on the command line, spelled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import option, typed

if TYPE_CHECKING:
    from stratoscope.models.open.loading import ModelSpec

Base = Annotated[
    str, typer.Argument(help="Checkpoint folder or hub id of the model before fine-tuning.", metavar="BASE")
]
Tuned = Annotated[
    str, typer.Argument(help="Checkpoint fine-tuned on the task, or an adapter's folder.", metavar="TUNED")
]
AdapterBase = Annotated[
    str | None,
    typer.Option("--base", help="Model that an adapter is merged into; by default the one the adapter names."),
]


def folder(text: str) -> Path:
    """A folder as it was typed; an empty name, as of a shell variable that is not set, is not the current folder."""
    if not str(text).strip():
        raise StratoscopeError("expected a folder for --out, got an empty name")
    return Path(text)


Out = Annotated[Path, typer.Option("--out", help="Run folder for all output.", parser=folder)]


@dataclass(frozen=True)
class Naming:
    """How models are labelled."""

    name: tuple[str, ...] = option((), "Label of a model, in the order they are given; may be repeated.")

    def specs(self, sources: Sequence[str], **known: Any) -> list[ModelSpec]:
        """The models as the user named them, labelled in order; `known` in place of what these options say."""
        from stratoscope.models.open.loading import ModelSpec

        if "name" not in known and self.name and len(self.name) != len(sources):
            raise StratoscopeError(f"expected one --name per model ({len(sources)}) or none, got {len(self.name)}")
        labels = self.name if self.name and "name" not in known else (None,) * len(sources)
        shared = {f.name: getattr(self, f.name) for f in fields(self)}
        return [
            ModelSpec(source, **{**shared, "name": label, **known})
            for source, label in zip(sources, labels, strict=True)
        ]

    def spec(self, source: str, **known: Any) -> ModelSpec:
        """The only model."""
        [only] = self.specs([source], **known)
        return only

    def merged(self, sources: Sequence[str], base: str | None) -> list[ModelSpec]:
        """The models, adapters among them merged into `base`; refused where it is given and none is an adapter."""
        from stratoscope.models.open.loading import resolve
        from stratoscope.models.saved.files import is_saved

        specs = self.specs(sources, base=base)
        if base is not None and not any(resolve(s).adapter for s in specs if not is_saved(s.source)):
            raise StratoscopeError(f"--base '{base}' is for adapters, and no model given is one; leave it out")
        return specs

    def again(self, spec: ModelSpec) -> list[str]:
        """The words that load one of the models alone in the same way."""
        own = replace(self, name=(spec.name,) if spec.name and self.name else ())
        merged = spec.base is not None and (Path(spec.source) / "adapter_config.json").is_file()
        return [*typed(own), *(["--base", str(spec.base)] if merged else [])]


@dataclass(frozen=True)
class Loading(Naming):
    """How models are loaded and labelled."""

    device: str = option("auto", "auto, cpu, cuda or mps.")
    allow_pickle: bool = option(False, "Load pickle weights, which may run code.")
    trust_remote_code: bool = option(False, "Run Python code that comes with a model.")

    def shared(self) -> Loading:
        """What holds for other models too: no label and no revision."""
        return Loading((), self.device, self.allow_pickle, self.trust_remote_code)


@dataclass(frozen=True)
class LoadingOne(Loading):
    """How a model that may have a revision of its own is loaded."""

    revision: str | None = option(None, "Revision of the model on the hub.")


@dataclass(frozen=True)
class LoadingSeveral(LoadingOne):
    """How models to compare are loaded."""

    dtype: str = option("float32", "float32, float16, bfloat16 or auto.")
