"""How to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratoscope.core.names import ALL, MEASURES, UNITS
from stratoscope.core.options import Working, batch_tokens, bootstrap, memory, option, overwrite, parse_layers, seed


def measures(default: tuple[str, ...]) -> Any:
    """The option that names measures of layers."""
    help = "Measure, measure@fraction, or 'all'; may be repeated."
    return option(default, help, flag="--measure", short="-m", choices=(*MEASURES, ALL))


@dataclass(frozen=True)
class CompareOptions(Working):
    """How to compare layers: flags, YAML keys and keywords are these fields."""

    unit: str = option("word", "What a row is: word, cls, mean or token.", choices=UNITS)
    measures: tuple[str, ...] = measures(("ckasim",))
    subword: str = option("last", "Sub-word that stands for a word: last, first or mean.")
    layers: tuple[int, ...] | None = option(
        None, "Only these layers, e.g. '0,3-6'; 0 = embeddings.", parse=parse_layers
    )
    limit: int | None = option(None, "Use a random sample of N sentences.", answer=False)
    seed: int = seed()
    bootstrap: int = bootstrap(0, "Replicates for 95 % intervals over sentences; N replicates cost about N scorings.")
    random_init: bool = option(False, "Add a control: the first model with random weights.")
    text: str | None = option(None, "Column that holds the text.", answer=False)
    pair: str | None = option(None, "Column that holds the second text.", answer=False)
    label: str | None = option(None, "Column that holds the label.", answer=False)
    columns: str | None = option(
        None,
        "Columns of a column file, or of a CSV without a header, e.g. 'word pos chunk'.",
        answer=False,
    )
    split: str | None = option(None, "Split of a hub data set.", answer=False)
    standardise: bool = option(False, "Z-score the two parts of the localization score first.")
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    store: str = option(
        "float32", "Precision of activations on disk: float32, or float16, which takes half; the change is reported."
    )
    keep: bool = option(False, "Keep activations in the run folder for later comparisons.", work=True)
    overwrite: bool = overwrite()
    save_activations: str | None = option(
        None, "Save all words' vectors to an .hdf5 or NeuroX .json file; several models: one file each.", work=True
    )

    @property
    def how_to_read(self) -> dict[str, str | None]:
        """What `read_corpus` takes besides the source."""
        return {k: getattr(self, k) for k in ("text", "pair", "label", "columns", "split")}


STORES = ("float32", "float16")
WU2020 = ("neuronsim", "mixedsim", "svsim", "pwsim", "ckasim")
"""The measures of Wu et al. 2020, section 3."""


@dataclass(frozen=True)
class SimilarityOptions(CompareOptions):
    """How to compare as Wu et al. 2020 do: words, five measures, and with them the localization of every layer."""

    measures: tuple[str, ...] = measures(WU2020)
    random_init: bool = option(False, "Add a control for every model: the same with random weights.")
