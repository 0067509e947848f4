"""How to compare attention."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, batch_tokens, bootstrap, memory, option, overwrite, parse_layers, seed


@dataclass(frozen=True)
class AttentionOptions(Working):
    """How to compare attention heads: flags, YAML keys and keywords are these fields."""

    measures: tuple[str, ...] = option(
        ("js",),
        "js, pearson, frobenius[-normalised] (heads); svsim, pwsim, ckasim (layers); or 'all'; may be repeated.",
        flag="--measure",
        short="-m",
    )
    causal: bool = option(False, "Keep attention to the left only, so that encoders and decoders compare fairly.")
    keep_specials: bool = option(False, "Keep attention to special tokens, together as one more target.")
    layers: tuple[int, ...] | None = option(None, "Only these layers, e.g. '1,3-6'.", parse=parse_layers)
    limit: int | None = option(None, "Use a random sample of N sentences.", answer=False)
    seed: int = seed()
    bootstrap: int = bootstrap(200, "Replicates for 95 % intervals over groups of sentences; 0 for none.")
    random_init: bool = option(False, "Add a control: the first model with random weights.")
    text: str | None = option(None, "Column that holds the text.", answer=False)
    pair: str | None = option(None, "Column that holds the second text.", answer=False)
    label: str | None = option(None, "Column that holds the label.", answer=False)
    columns: str | None = option(None, "Columns of a column file, or of a CSV without a header.", answer=False)
    split: str | None = option(None, "Split of a hub data set.", answer=False)
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()


@dataclass(frozen=True)
class AttentionStudyOptions(AttentionOptions):
    """The same with every measure: all the attention figures of Wu et al. 2020 on one page."""

    measures: tuple[str, ...] = option(
        ("all",), "As in 'attention'; by default every measure.", flag="--measure", short="-m"
    )
