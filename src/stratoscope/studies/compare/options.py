"""How to compare: the options, and what is refused before anything is read or written."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.measures.bootstrap import check_replicates
from stratoscope.measures.table import ALL, parse
from stratoscope.models.text.rows import SUBWORDS, check_unit


@dataclass(frozen=True)
class Options:
    """How to compare; every field is also a CLI option."""

    unit: str = "word"
    measures: tuple[str, ...] = ("ckasim",)
    subword: str = "last"
    layers: tuple[int, ...] | None = None
    limit: int | None = None
    seed: int = 0
    bootstrap: int = 0
    """Replicates of the bootstrap over sentences; 0 for no intervals."""
    random_init: bool = False
    """Add a copy of the first model with fresh weights, as a control."""
    text: str | None = None
    """Column of a table that holds the text; inferred when None, as are the pair's and the label's."""
    pair: str | None = None
    label: str | None = None
    columns: str | None = None
    """Names of the columns of a file with one word a line, or of a table without a header."""
    split: str | None = None
    """Split of a hub data set."""
    memory: float | None = None
    """Bytes to work in; half of the machine's by default."""
    workers: int | None = None
    batch_tokens: int | None = None
    standardise: bool = False
    """Z-score neuronsim and svsim before taking their difference as localization."""
    keep: bool = False
    """Keep activations in the run folder for later comparisons."""
    overwrite: bool = False

    @property
    def columns_asked_for(self) -> dict[str, str | None]:
        """What `read_corpus` takes besides the source."""
        return {k: getattr(self, k) for k in ("text", "pair", "label", "columns", "split")}


def check(options: Options) -> None:
    """Refuse what cannot work whatever the models and the text are."""
    check_unit(options.unit)
    if options.subword not in SUBWORDS:
        raise unknown_name("subword", options.subword, SUBWORDS)
    for name in options.measures:
        if "," in name:
            several = " ".join(f"--measure {n.strip()}" for n in name.split(",") if n.strip())
            raise StratoscopeError(f"expected one measure, got '{name}'; repeat the option instead: {several}")
        if name != ALL:
            parse(name)
    if options.layers is not None and not options.layers:
        raise StratoscopeError("expected at least one layer, got none; leave --layers out to compare all")
    if options.layers is not None and len(set(options.layers)) < len(options.layers):
        raise StratoscopeError(f"expected each layer once, got {', '.join(map(str, options.layers))}")
    if not 0 <= options.seed < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {options.seed}")
    check_replicates(options.bootstrap)
    for name, value in (("--workers", options.workers), ("--batch-tokens", options.batch_tokens)):
        if value is not None and value < 1:
            raise StratoscopeError(f"expected {name} of at least 1, got {value}")
    if options.memory is not None and options.memory < 1e8:
        raise StratoscopeError(f"expected --memory of at least 100MB, got {options.memory / 1e6:g}MB")
