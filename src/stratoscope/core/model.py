"""A model as a result records it."""

from __future__ import annotations

from dataclasses import dataclass

SAVED = "saved"
"""Family of activations saved elsewhere: which model made them is not known."""


@dataclass(frozen=True)
class ModelInfo:
    """What a reader of the result needs to know of a model to run it again."""

    name: str
    """Label on the axes, unique in the result."""
    source: str
    """Path or hub id as the user gave it."""
    family: str
    layers: int
    """Number of layers the model has, embeddings included."""
    width: int
    fingerprint: str
    """Hub revision, or sha256 of the local weights, or the seed of a random initialisation."""
    role: str = "model"
    """`model`, or `control` for one that nothing was learnt by."""
    base: str | None = None
    """Label of the model this one was made from, where the run knows it."""

    @property
    def is_control(self) -> bool:
        """Whether it is there for comparison only."""
        return self.role == "control"

    def depth(self, layer: int) -> float:
        """Depth of a layer as a fraction of the model's depth, whatever layers were chosen: 0 embeddings, 1 the top."""
        return layer / (self.layers - 1)
