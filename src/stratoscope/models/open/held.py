"""A model that is opened when first needed, once per process, and travels to workers without its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stratoscope.core.files import digest
from stratoscope.core.progress import Progress, Silent
from stratoscope.engine.base import Resources, kept
from stratoscope.models.open.loading import OpenedModel, Survey

OVERHEAD = 1.5
"""Memory of a worker that reads with a model, over that of its weights."""


@dataclass
class Held:
    """Opens a model: `open` is told where to report. A worker keeps the one model that it opened last, for any map."""

    open: Callable[..., OpenedModel]
    """A top-level function, or a `partial` of one: it travels."""
    surveyed: Survey
    head: str = ""
    """What the model is opened with, by a name or a fingerprint."""
    progress: Progress = field(default_factory=Silent)
    one_of_many: bool = False
    """Stays only until an item needs another: so it is in every worker, and where one map reads with several models."""
    model: OpenedModel | None = None

    def __call__(self) -> OpenedModel:
        if self.one_of_many:
            name = digest([self.surveyed.fingerprint, self.surveyed.dtype, self.surveyed.device, self.head])
            if name not in kept:
                kept.clear()
                kept[name] = self.open(progress=self.progress)
            opened: OpenedModel = kept[name]
            return opened
        if self.model is None:
            self.model = self.open(progress=self.progress)
        return self.model

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "progress": Silent(), "model": None, "one_of_many": True}

    @property
    def resources(self) -> Resources:
        """What an item takes that reads with it: about the weights of L blocks and of the embeddings."""
        surveyed, width = self.surveyed, float(self.surveyed.width)
        weights = 4 * (12 * (surveyed.layers - 1) * width**2 + surveyed.encoder.vocabulary * width)
        gpus = float(surveyed.device.startswith("cuda"))
        return Resources(gpus=gpus, memory=OVERHEAD * weights, model=True, threaded=True)
