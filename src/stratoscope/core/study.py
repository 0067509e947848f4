"""A study of fine-tuning: where its parts lie in one folder, and the parts read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratoscope.core import kinds
from stratoscope.core.depth import DEPTH, Depth
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.result import Comparison, ModelInfo
from stratoscope.core.runfolder import canonical_json, write_text

STUDY = kinds.STUDY.file
LOCALIZATION = "localization"
KIND, FORMAT = "study", 1
"""As of a comparison: keys that are only added do not raise the format, and an index without them is still read."""


@dataclass(frozen=True)
class Study:
    """A base model, what was tuned from it, and everything that was measured."""

    comparisons: Mapping[str, Comparison]
    """By unit: the base, the tuned models, those across and the control; each in a run folder of the unit's name."""
    base: str
    tuned: tuple[str, ...]
    """At least one; the first is FT, and with the second FT[1] and FT[2]."""
    control: str | None = None
    """The base's architecture with fresh weights."""
    depth: Depth | None = None
    """In the run folder `depth`."""
    cut: Mapping[str, Any] | None = None
    """Of the first tuned model: what `cut.json` says, or under `refused` why nothing was cut."""
    across: tuple[str, ...] = ()
    """Other models, of any family: compared with the first tuned one, never said to be made from the base."""
    localization: Comparison | None = None
    """Of words under neuronsim and svsim, without those across; in the run folder `localization`."""

    def __post_init__(self) -> None:
        if not self.tuned:
            raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")

    @property
    def models(self) -> list[ModelInfo]:
        """Every model of the comparisons, once."""
        return list(dict.fromkeys(m for c in self.compared.values() for m in c.models))

    @property
    def compared(self) -> dict[str, Comparison]:
        """All comparisons, by the folder each is in."""
        return {**self.comparisons, **({LOCALIZATION: self.localization} if self.localization else {})}

    def save(self, folder: str | Path) -> None:
        """Write the index; the parts are in their own folders already."""
        plain = {
            "kind": KIND,
            "format": FORMAT,
            "units": list(self.comparisons),
            "base": self.base,
            "tuned": list(self.tuned),
            "control": self.control,
            "across": list(self.across),
            "localization": self.localization is not None,
            "cut": None if self.cut is None else dict(self.cut),
        }
        write_text(Path(folder) / STUDY, canonical_json(plain) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Read a study and its parts; depth is there if its folder is."""
        folder = Path(folder)
        path = folder / STUDY
        if not path.is_file():
            raise kinds.STUDY.missing(folder)
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if (plain["kind"], plain["format"]) != (KIND, FORMAT):
                raise ValueError(f"kind '{plain['kind']}' of format {plain['format']}")
            units, tuned = [str(u) for u in plain["units"]], tuple(str(t) for t in plain["tuned"])
            base, control = plain["base"], plain["control"]
            cut, across = plain["cut"], tuple(str(a) for a in plain.get("across", ()))
            localized = bool(plain.get("localization", False))
        except (KeyError, TypeError, ValueError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); run the same command again to mend it") from e
        depth = Depth.load(folder / "depth") if (folder / "depth" / DEPTH).is_file() else None
        comparisons = {unit: Comparison.load(folder / unit) for unit in units}
        localization = Comparison.load(folder / LOCALIZATION) if localized else None
        return cls(comparisons, base, tuned, control, depth, cut, across, localization)
