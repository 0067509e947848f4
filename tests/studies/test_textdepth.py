from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import CAUSAL, ModelSpec, open_model
from stratoscope.models.read.perplexity import perplexities
from stratoscope.models.surgery.blocks import exported
from stratoscope.studies.perplexity import perplexity_by_depth

TEXTS = Corpus("texts", tuple(Sentence(t) for t in tiny.SENTENCES), tuple(range(len(tiny.SENTENCES))))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_every_depth_is_that_of_a_model_built_at_that_depth(family: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(family, tmp_path / "model", head="causal")
    found = perplexity_by_depth(folder, TEXTS, out=tmp_path / "run")
    assert len(found) == tiny.LAYERS + 1
    whole = open_model(ModelSpec(str(folder)), CAUSAL)
    for depth, point in enumerate(found):
        built = exported(whole.module, range(1, depth + 1))
        assert point.value == pytest.approx(perplexities(replace(whole, module=built), TEXTS)[-1].value, rel=1e-5)
    assert len({round(p.value, 3) for p in found}) == len(found)
    record = json.loads((tmp_path / "run" / "perplexity.json").read_text())
    assert [p["value"] for p in record["points"]] == [p.value for p in found]
    assert record["corpus"]["texts"] == len(TEXTS)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path / "model")
    with pytest.raises(StratoscopeError, match="no causal language model"):
        perplexity_by_depth(folder, TEXTS)
    decoder = tiny.checkpoint("gpt2", tmp_path / "decoder", head="causal")
    with pytest.raises(StratoscopeError, match="two tokens or more, got 1 of at most one token each in 'short'"):
        perplexity_by_depth(decoder, Corpus("short", (Sentence("a"),), (0,)))
    with pytest.raises(StratoscopeError, match="--batch-tokens of at least 1, got 0"):
        perplexity_by_depth(folder, TEXTS, batch_tokens=0)
