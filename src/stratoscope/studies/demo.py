"""The demo: real models on real text, without a hub."""

from __future__ import annotations

from pathlib import Path

from stratoscope.core.progress import Progress
from stratoscope.core.result import Comparison
from stratoscope.data.assets import MINILM, MINILM_SRE, REVIEWS, fetch
from stratoscope.data.readers import read_corpus
from stratoscope.models.loading import ModelSpec
from stratoscope.studies.compare import Options, compare

HUB_MODELS = ("nreimers/MiniLM-L6-H384-uncased", "sentence-transformers/all-MiniLM-L6-v2")
HUB_DATA = "stanfordnlp/sst2"


def run_demo(out: Path, *, hub: bool, limit: int, progress: Progress) -> Comparison:
    """Compare MiniLM with its further-tuned sibling and a random-init copy, on movie reviews, under every measure."""
    if hub:
        specs = [ModelSpec(source) for source in HUB_MODELS]
        corpus = read_corpus(HUB_DATA, text="sentence", label="label")
    else:
        specs = [ModelSpec(str(fetch(asset, progress=progress)), name=asset.name) for asset in (MINILM, MINILM_SRE)]
        corpus = read_corpus(str(fetch(REVIEWS, progress=progress)))
    options = Options(unit="cls", measures=("all",), limit=limit, random_init=True)
    return compare(specs, data=corpus, out=out, options=options, progress=progress)
