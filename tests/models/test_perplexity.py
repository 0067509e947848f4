"""Perplexity of every decoder against a loop over texts and tokens, whole and cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.loading import CAUSAL, ModelSpec, OpenedModel, open_model, survey
from stratoscope.models.read.perplexity import Perplexity, summaries, text_losses
from stratoscope.models.surgery.blocks import keeping

torch.set_num_threads(1)

DECODERS = ["openai-gpt", "gpt2", "llama", "qwen2", "qwen3", "gemma2"]
WITH_BOS = {"llama", "gemma2"}
Texts = Callable[..., Corpus]


def perplexity(model: OpenedModel, corpus: Corpus, **options: Any) -> Perplexity:
    """Of the whole model."""
    return summaries([text_losses(model, corpus, **options)] if len(corpus) else [], corpus)[-1]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], OpenedModel]:
    """One tiny decoder of each family with its language-model head, loaded once."""
    root = tmp_path_factory.mktemp("causal")

    @cache
    def loaded(family: str) -> OpenedModel:
        folder = tiny.checkpoint(family, root / family, head="causal", layers=4)
        return open_model(ModelSpec(str(folder), device="cpu"), CAUSAL)

    return loaded


@torch.no_grad()
def token_by_token(model: Any, tokenizer: Any, texts: tuple[str, ...], length: int = 10**6) -> list[list[float]]:
    """-log p of each token of each text, one text after the other, nothing padded."""
    found = []
    for text in texts:
        ids = tokenizer(text)["input_ids"][:length]
        logits = model(torch.tensor([ids])).logits[0].double()
        found.append([float(-logits[k - 1].log_softmax(-1)[ids[k]]) for k in range(1, len(ids))])
    return found


def of(losses: list[list[float]]) -> float:
    return math.exp(sum(map(sum, losses)) / sum(map(len, losses)))


@pytest.mark.parametrize("family", DECODERS)
def test_equals_a_loop_over_tokens_whole_and_cut(
    causal: Callable[[str], OpenedModel], texts: Texts, family: str
) -> None:
    model = causal(family)
    seen = set()
    for kept in [(1, 2, 3, 4), (1, 2), (1, 4), (3,), ()]:
        with keeping(model.module, kept):
            expected = token_by_token(model.module, model.encoder.tokenizer, tiny.SENTENCES)
            found = perplexity(model, texts(*tiny.SENTENCES), batch_tokens=100)
        assert found.value == pytest.approx(of(expected), rel=1e-4)
        assert found.low < found.value < found.high
        assert found.tokens == sum(map(len, expected))
        assert (found.texts, found.cut) == (len(tiny.SENTENCES), 0)
        seen.add(round(found.value, 2))
    assert len(seen) == 5
    begins = [
        t[0] == model.encoder.tokenizer.bos_token_id for t in model.encoder.tokenizer(list(tiny.SENTENCES))["input_ids"]
    ]
    assert all(begins) == any(begins) == (family in WITH_BOS)


@pytest.mark.parametrize("family", DECODERS)
def test_equals_the_loss_of_transformers_for_one_text(
    causal: Callable[[str], OpenedModel], texts: Texts, family: str
) -> None:
    model = causal(family)
    ids = torch.tensor([model.encoder.tokenizer(tiny.SENTENCES[4])["input_ids"]])
    found = perplexity(model, texts(tiny.SENTENCES[4]))
    assert found.value == pytest.approx(float(model.module(ids, labels=ids).loss.exp()), rel=1e-5)
    assert found.tokens == ids.shape[1] - 1
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_long_texts_are_cut_and_batches_change_nothing(causal: Callable[[str], OpenedModel], texts: Texts) -> None:
    model = causal("llama")
    corpus = texts(*tiny.SENTENCES)
    lengths = [len(ids) for ids in model.encoder.tokenizer(list(tiny.SENTENCES))["input_ids"]]
    expected = token_by_token(model.module, model.encoder.tokenizer, tiny.SENTENCES, length=20)
    for budget in (1, 60, 10_000):
        found = perplexity(model, corpus, length=20, batch_tokens=budget)
        assert found.value == pytest.approx(of(expected), rel=1e-5)
        assert found.cut == sum(n > 20 for n in lengths) > 0
        assert found.tokens == sum(min(n, 20) - 1 for n in lengths)
    long = texts(" ".join(tiny.SENTENCES))
    assert perplexity(model, long).tokens == tiny.POSITIONS - 1


def test_the_interval_resamples_texts_not_tokens(causal: Callable[[str], OpenedModel], texts: Texts) -> None:
    model = causal("gpt2")
    losses = token_by_token(model.module, model.encoder.tokenizer, tiny.SENTENCES)
    found = perplexity(model, texts(*tiny.SENTENCES))
    rng = np.random.default_rng(7)
    drawn = [of([losses[k] for k in rng.integers(len(losses), size=len(losses))]) for _ in range(4000)]
    assert [found.low, found.high] == pytest.approx([float(q) for q in np.quantile(drawn, [0.025, 0.975])], rel=0.03)
    same = perplexity(model, texts(*[tiny.SENTENCES[0]] * 5))
    assert (same.low, same.high) == pytest.approx((same.value, same.value), rel=1e-6)


def test_texts_without_a_token_to_predict(causal: Callable[[str], OpenedModel], texts: Texts) -> None:
    model = causal("gpt2")
    assert [len(ids) for ids in model.encoder.tokenizer(["a", "zq"])["input_ids"]] == [1, 2]
    some = perplexity(model, texts("a", *tiny.SENTENCES, "b"))
    assert some == perplexity(model, texts(*tiny.SENTENCES))
    with pytest.raises(StratoscopeError, match="two tokens or more, got 2 of at most one token each in 'texts'; give"):
        perplexity(model, texts("a", "b"))
    with pytest.raises(StratoscopeError, match="two tokens or more, got no text in 'texts'; give longer"):
        perplexity(model, texts())
    assert perplexity(model, texts("zq")).tokens == 1


def test_modes_are_put_back_and_dropout_is_off(causal: Callable[[str], OpenedModel], texts: Texts) -> None:
    model = causal("gpt2")
    before = perplexity(model, texts(*tiny.SENTENCES))
    model.module.train()
    assert perplexity(model, texts(*tiny.SENTENCES)) == before
    assert all(m.training for m in model.module.modules())
    model.module.eval()


def test_encoders_are_refused(model_of: Callable[[str], OpenedModel], texts: Texts, tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path / "bert", head="masked")
    with pytest.raises(StratoscopeError, match=r"^'bert' is a bert, which is no causal language model, and perplexity"):
        open_model(ModelSpec(str(folder)), CAUSAL)
    masked = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    bare_bert = OpenedModel(survey(ModelSpec(str(folder))), None)
    with pytest.raises(StratoscopeError, match=r"but 'bert' is none \(its predictions depend on later tokens\); give"):
        perplexity(replace(bare_bert, module=masked), texts(*tiny.SENTENCES))
    bare = model_of("gpt2")
    with pytest.raises(StratoscopeError, match=r"but 'gpt2' is none \(it has no language-model head\); give a decoder"):
        perplexity(bare, texts(*tiny.SENTENCES))
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(bare.survey.spec.source)
    classifier.config.pad_token_id = 0
    with pytest.raises(StratoscopeError, match="it has no language-model head"):
        perplexity(replace(bare, module=classifier), texts(*tiny.SENTENCES))


def test_xlnet_looks_ahead_and_is_refused(texts: Texts, tmp_path: Path) -> None:
    folder = tiny.checkpoint("xlnet", tmp_path, head="causal")
    model = open_model(ModelSpec(str(folder)), CAUSAL)
    with pytest.raises(StratoscopeError, match="its predictions depend on later tokens"):
        perplexity(model, texts(*tiny.SENTENCES))


def test_a_bert_made_a_decoder_is_one(texts: Texts, tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path, head="causal", is_decoder=True)
    model = open_model(ModelSpec(str(folder)), CAUSAL)
    found = perplexity(model, texts(*tiny.SENTENCES))
    assert found.value == pytest.approx(
        of(token_by_token(model.module, model.encoder.tokenizer, tiny.SENTENCES)), rel=1e-4
    )


def test_values_that_are_not_finite_are_told(texts: Texts, tmp_path: Path) -> None:
    folder = tiny.checkpoint("gpt2", tmp_path / "broken", head="causal")
    model = open_model(ModelSpec(str(folder)), CAUSAL)
    word = model.encoder.tokenizer("Yes")["input_ids"][0]
    model.module.transformer.wte.weight[word] = math.nan
    with pytest.raises(StratoscopeError, match="'broken' gives a probability that is not finite in text 0 of 'texts'"):
        perplexity(model, texts(*tiny.SENTENCES))


def test_a_hopeless_model_is_infinitely_surprised(texts: Texts, tmp_path: Path) -> None:
    model = open_model(ModelSpec(str(tiny.checkpoint("llama", tmp_path, head="causal"))), CAUSAL)
    model.module.lm_head.weight.mul_(1e5)
    assert perplexity(model, texts(*tiny.SENTENCES)).value == math.inf


def test_half_precision_is_close(causal: Callable[[str], OpenedModel], texts: Texts) -> None:
    model = causal("qwen2")
    half = open_model(ModelSpec(model.survey.spec.source, dtype="bfloat16", device="cpu"), CAUSAL)
    assert half.survey.dtype == "bfloat16"
    one, other = (perplexity(m, texts(*tiny.SENTENCES)).value for m in (model, half))
    assert math.log(other) == pytest.approx(math.log(one), rel=0.02)


def test_loading_has_the_guards_of_a_bare_encoder(texts: Texts, tmp_path: Path) -> None:
    pickled = tiny.checkpoint("gpt2", tmp_path / "pickled", head="causal", safetensors=False)
    with pytest.raises(StratoscopeError, match="as a pickle only"):
        open_model(ModelSpec(str(pickled)), CAUSAL)
    untied = tiny.checkpoint("llama", tmp_path / "bare")
    with pytest.raises(StratoscopeError, match=r"lacks 1 of the language model's weights \(first: lm_head.weight\)"):
        open_model(ModelSpec(str(untied)), CAUSAL)
    with pytest.raises(StratoscopeError, match="no model at"):
        open_model(ModelSpec("./nowhere"), CAUSAL)
    tied = open_model(ModelSpec(str(tiny.checkpoint("gpt2", tmp_path / "tied"))), CAUSAL)
    assert tied.layers == tiny.LAYERS + 1
    assert tied.module.lm_head.weight is tied.module.transformer.wte.weight
    with keeping(tied.module, range(1, 2)):
        assert perplexity(tied, texts(*tiny.SENTENCES)).value > 1


@pytest.mark.parametrize("family", DECODERS)
def test_random_weights_are_those_of_the_encoder_without_a_head(family: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(family, tmp_path, head="causal")
    spec = ModelSpec(str(folder), random_init=True, seed=5, device="cpu")
    one, bare = open_model(spec, CAUSAL), open_model(spec)
    assert one.survey.fingerprint == bare.survey.fingerprint
    weights = one.module.base_model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in bare.module.state_dict().items())
    again = open_model(spec, CAUSAL).module.state_dict()
    assert all(torch.equal(again[name], w) for name, w in one.module.state_dict().items())
    other = open_model(ModelSpec(str(folder), random_init=True, seed=6, device="cpu"), CAUSAL)
    assert not torch.equal(other.module.lm_head.weight, one.module.lm_head.weight)
