"""A decoder with a block that does nothing: it is found, taken out and confirmed, and what is written loads plainly."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from toys import KilledError, killing, plain

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Value
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import CAUSAL, ModelSpec, open_model
from stratoscope.models.surgery.blocks import keeping
from stratoscope.results.cutting.decoder import CutDecoder
from stratoscope.results.cutting.perplexity import times
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.cut.study import NothingToCutError
from stratoscope.studies.decoder.options import parse_max_ppl
from stratoscope.studies.decoder.study import cut_decoder
from stratoscope.studies.decoder.work import gaps
from stratoscope.studies.perplexity.study import perplexity

torch.set_num_threads(1)

DRAW = random.Random(0)
WORDS = " ".join(tiny.SENTENCES).split()
TEXTS = Corpus("texts", tuple(Sentence(" ".join(DRAW.choices(WORDS, k=9))) for _ in range(40)), range(40))
DEPTH, IDLE = 5, 3


def taught(folder: Path, family: str, idle: tuple[int, ...] = (IDLE,)) -> Path:
    """Knows these texts, so that its blocks matter; the idle ones hand on what they are given."""
    tiny.checkpoint(family, folder, head="causal", layers=DEPTH)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model.requires_grad_(True)
    for k in idle:
        block = model.base_model.layers[k - 1] if family == "llama" else model.base_model.h[k - 1]
        attention = block.self_attn.o_proj if family == "llama" else block.attn.c_proj
        for p in (
            *attention.parameters(),
            *(block.mlp.down_proj if family == "llama" else block.mlp.c_proj).parameters(),
        ):
            p.data.zero_()
            p.requires_grad_(False)
    rows = [torch.tensor(tokenizer(s.text)["input_ids"]) for s in TEXTS.sentences]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    steps = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(40):
        steps.zero_grad()
        model(ids, labels=labels).loss.backward()
        steps.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(tmp_path_factory.mktemp("decoder") / request.param, request.param)


def test_the_idle_block_goes_and_the_checkpoint_loads_plainly(decoder: Path, tmp_path: Path) -> None:
    made = cut_decoder(decoder, TEXTS, max_ppl="1.001x", out=tmp_path / "run", patch=False)
    assert (made.dropped, made.kept, made.patched) == ((IDLE,), (1, 2, 4, 5), ())
    assert made.ratio.value == pytest.approx(1, abs=1e-5)
    assert made.agreement.value == pytest.approx(1)
    assert made.texts == {"choose": 8, "fit": 16, "confirm": 16, "seed": 0}
    assert [t.verdict for t in made.tried] == ["confirmed", *["above the limit"] * 3]
    assert made.tried[0].influence == (IDLE,)  # all heuristics find a block that does nothing
    assert made.tried[0].angular == (IDLE,)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert loaded.config.num_hidden_layers == DEPTH - 1
    attention = [b.self_attn if hasattr(b, "self_attn") else b.attn for b in (
        loaded.base_model.layers if hasattr(loaded.base_model, "layers") else loaded.base_model.h)]  # fmt: skip
    assert [a.layer_idx for a in attention] == [0, 1, 2, 3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    whole = open_model(ModelSpec(str(decoder), device="cpu"), CAUSAL)
    ids = tokenizer(TEXTS.sentences[0].text, return_tensors="pt")["input_ids"]
    with keeping(whole.module, made.kept), torch.no_grad():
        assert torch.allclose(loaded.eval()(ids).logits, whole.module(ids).logits, atol=1e-4)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "AutoModelForCausalLM" in card
    assert f"cut to {DEPTH - 1} of {DEPTH} blocks" in card
    assert "quantization_config" not in json.loads((tmp_path / "run" / "config.json").read_text())
    assert plain(CutDecoder.load(tmp_path / "run")) == plain(made)


def mean_loss(model: Any, tokenizer: Any, texts: list[str]) -> tuple[list[float], list[int]]:
    sums, counts = [], []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            said = model(ids).logits[0, :-1].double().log_softmax(-1)
        sums.append(-float(said.gather(1, ids[0, 1:, None]).sum()))
        counts.append(len(said))
    return sums, counts


def test_a_patch_is_written_judged_and_kept_only_where_it_helps(decoder: Path, tmp_path: Path) -> None:
    made = cut_decoder(decoder, TEXTS, max_ppl=1000, out=tmp_path / "run", span_length=3)
    for t in made.tried:
        assert t.patch == (t.patched.value < t.ratio.value)
        assert t.best.value == min(t.ratio.value, t.patched.value if t.patched.known else math.inf)
    last = next(t for t in made.tried if t.removed == made.dropped)
    assert made.patched == ((made.dropped[0] - 1,) if last.patch else ())
    assert any(t.patch for t in made.tried)
    # the ratio on held-out texts, again by plain transformers from the two checkpoints alone
    drawn = np.random.default_rng(0).permutation(40)
    texts = [TEXTS.sentences[k].text for k in np.sort(drawn[24:])]
    tokenizer = transformers.AutoTokenizer.from_pretrained(decoder)
    before, after = (
        mean_loss(transformers.AutoModelForCausalLM.from_pretrained(f).eval(), tokenizer, texts)
        for f in (decoder, tmp_path / "run")
    )
    difference = (sum(after[0]) - sum(before[0])) / sum(before[1])
    assert made.ratio.value == pytest.approx(math.exp(difference), rel=1e-4)
    assert made.ratio.high > made.ratio.value > made.ratio.low
    bare = cut_decoder(decoder, TEXTS, max_ppl=1000, out=tmp_path / "bare", span_length=3, patch=False)
    assert not bare.patched
    assert not any(t.patched.known for t in bare.tried)
    assert [t.ratio for t in bare.tried] == [t.ratio for t in made.tried]


def test_any_blocks_are_a_greedy_set(tmp_path: Path) -> None:
    folder = taught(tmp_path / "model", "llama", idle=(2, 4))
    made = cut_decoder(folder, TEXTS, max_ppl=1.001, out=tmp_path / "run", blocks="any", patch=False)
    assert made.dropped == (2, 4)
    assert made.ratio.value == pytest.approx(1, abs=1e-5)
    spans = cut_decoder(folder, TEXTS, max_ppl=1.001, out=tmp_path / "spans", patch=False)
    assert spans.dropped in ((2,), (4,))
    assert gaps((2, 4)) == [(2, 2), (4, 4)]
    assert gaps((1, 2, 3, 7, 9, 10)) == [(1, 3), (7, 7), (9, 10)]


def test_where_nothing_fits_everything_tried_is_said(tmp_path: Path) -> None:
    folder = taught(tmp_path / "model", "llama", idle=())
    with pytest.raises(NothingToCutError, match=r"nothing can be cut .* larger --max-ppl") as refused:
        cut_decoder(folder, TEXTS, max_ppl=1.0001, out=tmp_path / "run")
    [table] = refused.value.tables.values()
    assert len(table) == 4
    assert all(row["verdict"] == "above the limit" and 0 <= row["top-1 agreement"] <= 1 for row in table)
    assert any(row["patched"] != "–" for row in table)
    assert not (tmp_path / "run" / "decoder.json").exists()
    assert list((tmp_path / "run" / "parts").iterdir())  # another limit costs little


def test_what_cannot_work_is_refused(decoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for text in ("1x", "0.9", "many", "", "nan", "1e9", True):
        with pytest.raises(StratoscopeError, match="--max-ppl above 1x"):
            parse_max_ppl(text)
    assert [parse_max_ppl(t) for t in ("1.1x", "1.1", 1.1, " 2× ")] == [1.1, 1.1, 1.1, 2.0]
    with pytest.raises(StratoscopeError, match="at least 10 texts of two tokens or more in 'texts', got 4"):
        cut_decoder(decoder, TEXTS.slice(0, 4), max_ppl=2, out=out)
    with pytest.raises(StratoscopeError, match=r"has 5 blocks and 5 must stay"):
        cut_decoder(decoder, TEXTS, max_ppl=2, out=out, keep=5)
    with pytest.raises(StratoscopeError, match="choose from: span, any"):
        cut_decoder(decoder, TEXTS, max_ppl=2, out=out, blocks="top")
    bert = tiny.checkpoint("bert", tmp_path / "bert", head="masked")
    with pytest.raises(StratoscopeError, match="no causal language model"):
        cut_decoder(bert, TEXTS, max_ppl=2, out=out)


def test_gemma_is_cut_without_a_patch_and_says_so(tmp_path: Path) -> None:
    folder = tiny.checkpoint("gemma2", tmp_path / "model", head="causal", layers=3)
    made = cut_decoder(folder, TEXTS, max_ppl=1000, out=tmp_path / "run", span_length=1)
    assert len(made.kept) == 2
    assert not made.tried[0].patched.known
    assert any("refitted" in w for w in made.warnings)


def test_spans_of_perplexity_resume_and_are_paired(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = perplexity(decoder, TEXTS, span_length=2, span_texts=12)
    assert len(whole.spans) == DEPTH + DEPTH - 1
    assert whole.span_texts == 12
    idle = next(s for s in whole.spans if (s.first, s.last) == (IDLE, IDLE))
    assert [idle.ratio.low, idle.ratio.value, idle.ratio.high] == pytest.approx([1, 1, 1], abs=1e-5)
    assert idle.agreement == 1
    top = next(s for s in whole.spans if (s.first, s.last) == (DEPTH, DEPTH))
    assert top.ratio.low < top.ratio.value < top.ratio.high
    every = perplexity(decoder, TEXTS, span_length=1, span_texts=40)
    cut = next(s for s in every.spans if (s.first, s.last) == (DEPTH, DEPTH))
    assert cut.ratio.value == pytest.approx(every[-2].value / every[-1].value, rel=1e-4)
    with pytest.raises(KilledError):
        perplexity(decoder, TEXTS, out=tmp_path, span_length=2, span_texts=12, progress=killing("skipping", 9))
    assert len(list((tmp_path / "parts").glob("spans-*.safetensors"))) == 2
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    again = perplexity(decoder, TEXTS, out=tmp_path, span_length=2, span_texts=12)
    assert [name.startswith("spans-") for name in saved] == [True]
    assert plain(again.spans) == plain(whole.spans)
    assert not perplexity(decoder, TEXTS, span_length=0).spans


def test_ratios_beyond_use_are_not_spelled_out() -> None:
    assert times(Value(7.1e48)) == times(Value(math.inf)) == times(Value(math.nan)) == ">1e6x"
    assert times(Value(1.0712, 1.05, 1.09)) == "1.071x [1.050, 1.090]"
    assert times(Value(370.2, 12.34, 2e7)) == "370x [12.34, >1e6]"
