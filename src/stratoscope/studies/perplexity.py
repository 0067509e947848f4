"""How a decoder's perplexity on text depends on its depth: what depth buys when there is no task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stratoscope.core import kinds
from stratoscope.core.codekey import versions
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import RunFolder, canonical_json, digest, write_text
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.loading import CAUSAL, ModelSpec, open_model
from stratoscope.models.read.perplexity import Perplexity, perplexities

PERPLEXITY = kinds.PERPLEXITY.file
KIND, FORMAT = "perplexity", 1


def perplexity_by_depth(
    model: str | Path | ModelSpec,
    corpus: Corpus,
    *,
    out: str | Path | None = None,
    length: int | None = None,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Perplexity]:
    """Perplexity of the model truncated to 0, 1, ..., L blocks, one entry each; written to `out`/perplexity.json.

    Nothing is tuned: the final norm and the language-model head read each layer as they are.
    """
    progress = progress or Silent()
    spec = model if isinstance(model, ModelSpec) else ModelSpec(str(model))
    if batch_tokens is not None and batch_tokens < 1:
        raise StratoscopeError(f"expected --batch-tokens of at least 1, got {batch_tokens}")
    loaded = open_model(spec, CAUSAL, progress=progress)
    with progress.step(f"perplexity of {loaded.name} at every depth", len(corpus)) as advance:
        points = perplexities(loaded, corpus, length=length, batch_tokens=batch_tokens, advance=advance)
    if out is not None:
        record = {
            "kind": KIND,
            "format": FORMAT,
            "model": {"name": loaded.name, "source": spec.source, "fingerprint": loaded.fingerprint},
            "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, "texts": len(corpus)},
            "points": [asdict(p) for p in points],
            "versions": versions(),
        }
        with RunFolder.open(out, makes=PERPLEXITY) as folder:
            write_text(folder.path / PERPLEXITY, canonical_json(record | {"sha256": digest(record, length=64)}) + "\n")
    return points
