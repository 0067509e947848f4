"""The demo: real models on real text, without a hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stratoscope.core.progress import Progress
from stratoscope.core.result import Comparison
from stratoscope.data.assets import MINILM, MINILM_SRE, REVIEWS, fetch
from stratoscope.models.loading import ModelSpec
from stratoscope.studies.compare import Then, compare
from stratoscope.studies.options import Options

HUB_MODELS = ("nreimers/MiniLM-L6-H384-uncased", "sentence-transformers/all-MiniLM-L6-v2")
HUB_DATA = "stanfordnlp/sst2"


def run_demo(out: Path, *, hub: bool, limit: int, progress: Progress, then: Then | None = None) -> Comparison:
    """Compare MiniLM with its further-tuned sibling and a random-init copy, on movie reviews, under every measure."""
    options = Options(unit="cls", measures=("all",), limit=limit, random_init=True)
    if hub:
        specs = [ModelSpec(source) for source in HUB_MODELS]
        options, data = replace(options, text="sentence", label="label"), HUB_DATA
    else:
        specs = [ModelSpec(str(fetch(asset, progress=progress)), name=asset.name) for asset in (MINILM, MINILM_SRE)]
        data = str(fetch(REVIEWS, progress=progress))
    return compare(specs, data=data, out=out, options=options, progress=progress, then=then)
