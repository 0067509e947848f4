from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import KilledError, Reads, killing, plain

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import CAUSAL, ModelSpec, open_model
from stratoscope.models.read.perplexity import summaries, text_losses
from stratoscope.models.surgery.blocks import exported
from stratoscope.results.cutting.perplexity import Perplexities
from stratoscope.studies.compare.study import compare
from stratoscope.studies.perplexity import study
from stratoscope.studies.perplexity.options import PerplexityOptions
from stratoscope.studies.perplexity.study import perplexity

TEXTS = Corpus("texts", tuple(Sentence(t) for t in tiny.SENTENCES), tuple(range(len(tiny.SENTENCES))))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint("gpt2", tmp_path_factory.mktemp("decoder") / "model", head="causal")


def slowly(model: Any, tokenizer: Any) -> float:
    """Perplexity by plain transformers, one text at a time."""
    total, tokens = 0.0, 0
    for text in tiny.SENTENCES:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            said = model.eval()(ids).logits[0, :-1].log_softmax(-1)
        total -= float(said.gather(1, ids[0, 1:, None]).double().sum())
        tokens += len(said)
    return math.exp(total / tokens)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_every_depth_is_that_of_a_model_built_at_that_depth(family: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(family, tmp_path / "model", head="causal")
    found = perplexity(folder, TEXTS, out=tmp_path / "run")
    assert len(found) == found.model.layers == tiny.LAYERS + 1
    whole = open_model(ModelSpec(str(folder)), CAUSAL)
    assert found[-1] == summaries([text_losses(whole, TEXTS)], TEXTS)[-1]
    for depth, point in enumerate(found):
        built = exported(whole.module, range(1, depth + 1))
        assert point.value == pytest.approx(slowly(built, whole.encoder.tokenizer), rel=1e-5)
        assert point.low < point.value < point.high
    assert len({round(p.value, 3) for p in found}) == len(found)
    assert plain(Perplexities.load(tmp_path / "run")) == plain(found)
    assert found.corpus["texts"] == len(TEXTS) == found[0].texts


def test_options_say_which_texts_and_how_much_of_them(decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"text": "not this", "body": t} for t in tiny.SENTENCES]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    whole = perplexity(decoder, TEXTS)
    assert plain(perplexity(decoder, path, options=PerplexityOptions(text="body")).points) == plain(whole.points)
    some = perplexity(decoder, TEXTS, options=PerplexityOptions(limit=5, seed=2))
    assert some[0].texts == some.corpus["texts"] == 5
    assert some.corpus["fingerprint"] == TEXTS.sample(5, 2).fingerprint
    short = perplexity(decoder, TEXTS, options=PerplexityOptions(length=10))
    assert short[0].cut > 0 == whole[0].cut
    assert short[0].tokens < whole[0].tokens
    small = perplexity(decoder, TEXTS, options=PerplexityOptions(batch_tokens=1))
    assert [p.value for p in small] == pytest.approx([p.value for p in whole], rel=1e-5)


def test_a_killed_run_resumes_part_by_part(
    decoder: Path, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = perplexity(decoder, TEXTS, span_length=0)
    monkeypatch.setattr(study, "TEXTS", 4)
    with pytest.raises(KilledError):
        perplexity(decoder, TEXTS, out=tmp_path, progress=killing("perplexity", 9), span_length=0)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) == 2
    damaged, _ = sorted((tmp_path / "parts").glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-8])
    reads.texts.clear()
    found = perplexity(decoder, TEXTS, out=tmp_path, span_length=0)
    trials = 2 * 2  # two texts that try whether the model looks ahead, for each part
    assert len(reads) == 4 + 2 + trials
    assert [p.value for p in found] == pytest.approx([p.value for p in whole], rel=1e-6)
    assert not (tmp_path / "parts").exists()


def test_the_folder_of_another_result_is_refused_before_any_work(
    decoder: Path, text: str, reads: Reads, tmp_path: Path
) -> None:
    compare([decoder], data=text, out=tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    reads.texts.clear()
    for overwrite in (False, True):
        with pytest.raises(StratoscopeError, match=r"holds a comparison \(result.json\)"):
            perplexity(decoder, TEXTS, out=tmp_path, options=PerplexityOptions(overwrite=overwrite))
    assert not len(reads)
    assert (tmp_path / "result.json").read_bytes() == before
    assert not (tmp_path / "perplexity.json").exists()


def test_one_text_has_no_interval(decoder: Path) -> None:
    found = perplexity(decoder, Corpus("one", TEXTS.sentences[:1], (0,)))
    assert all(math.isnan(p.low) and math.isnan(p.high) and p.value > 1 for p in found)


def test_bad_input_is_one_sentence(decoder: Path, tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path / "model")
    with pytest.raises(StratoscopeError, match="no causal language model"):
        perplexity(folder, TEXTS, out=tmp_path / "run")
    with pytest.raises(StratoscopeError, match="of two tokens or more, got 1 of at most one token each in 'short'"):
        perplexity(decoder, Corpus("short", (Sentence("a"),), (0,)))
    with pytest.raises(StratoscopeError, match="--batch-tokens of at least 1, got 0"):
        perplexity(folder, TEXTS, out=tmp_path / "run", options=PerplexityOptions(batch_tokens=0))
    assert not (tmp_path / "run").exists()
    with pytest.raises(StratoscopeError, match="--length of at most 128"):
        perplexity(decoder, TEXTS, options=PerplexityOptions(length=4096))
