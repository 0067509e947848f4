"""Word-level attention of every family against transformers itself and plain loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.families import FAMILIES
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.attention import AttentionReader
from stratoscope.models.read.hidden import RowReader
from stratoscope.models.read.loop import Batch, Output, read
from stratoscope.models.text.rows import encode_for, plan_rows

FAMILY_NAMES = [f.name for f in FAMILIES if not f.detected]


def attention_of(
    model: OpenedModel, corpus: Corpus, *, batch_tokens: int | None = None, **how: bool
) -> AttentionReader:
    encoded = encode_for(model.encoder, corpus.sentences, ["word"])
    reader = AttentionReader(encoded, plan_rows(corpus, [model.encoder], "word"), **how)
    read(model, encoded, [reader], batch_tokens=batch_tokens)
    return reader


def slow(folder: Path, corpus: Corpus, encoded: Any, text: int) -> np.ndarray[Any, Any]:
    """(blocks · heads, words, words) of one text read alone by transformers, word by word; rows not normalised."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    a, b = encoded.starts[text], encoded.starts[text + 1]
    ids, word = torch.from_numpy(encoded.ids[a:b].astype(np.int64))[None], encoded.word[a:b]
    more = (
        {"token_type_ids": torch.from_numpy(encoded.segments[a:b].astype(np.int64))[None]}
        if encoded.encoder.segments
        else {}
    )
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **more).attentions
    weights = torch.cat([x[0] for x in found]).double().numpy()
    n = int(word.max()) + 1
    out = np.zeros((len(weights), n, n))
    for i in range(n):
        for j in range(n):
            sources, targets = np.flatnonzero(word == i), np.flatnonzero(word == j)
            out[:, i, j] = np.mean([weights[:, s, targets].sum(axis=1) for s in sources], axis=0)
    return out


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_gives_distributions_over_words(
    family: str, model_of: Callable[[str], OpenedModel], folder_of: Callable[[str], Path], corpus: Corpus
) -> None:
    model = model_of(family)
    reader = attention_of(model, corpus)
    assert sorted(reader.texts) == list(range(len(corpus)))
    for k, found in reader.texts.items():
        n = len(corpus.sentences[k].text.split())
        values = found.values.reshape(3 * 4, n, n)
        assert found.lengths.tolist() == [n] * n
        np.testing.assert_allclose(values.sum(axis=-1, dtype=np.float64), 1, atol=1e-6)
        assert values.min() >= 0
    whole = slow(folder_of(family), corpus, reader.encoded, 4)
    mass = whole.sum(axis=-1, keepdims=True)
    assert mass.max() <= 1 + 1e-6
    found = reader.texts[4].values.reshape(whole.shape)
    np.testing.assert_allclose(found, whole / mass, atol=2e-6)
    if family in ("openai-gpt", "gpt2", "llama", "qwen2", "qwen3", "gemma2"):
        assert not np.triu(found, 1).any()  # decoders see nothing to the right
    else:
        assert np.triu(found, 1).any()
    assert not np.allclose(found[0], found[4])  # blocks differ


@pytest.mark.parametrize("family", ["bert", "xlnet", "gpt2", "modernbert"])
def test_batches_do_not_matter(family: str, model_of: Callable[[str], OpenedModel], corpus: Corpus) -> None:
    whole, alone = attention_of(model_of(family), corpus), attention_of(model_of(family), corpus, batch_tokens=1)
    for k, found in whole.texts.items():
        np.testing.assert_allclose(found.values, alone.texts[k].values, atol=2e-6)


def test_special_tokens_may_stay_as_one_target(
    model_of: Callable[[str], OpenedModel], folder_of: Callable[[str], Path], corpus: Corpus
) -> None:
    reader = attention_of(model_of("bert"), corpus, specials=True)
    whole = slow(folder_of("bert"), corpus, reader.encoded, 4)
    n = whole.shape[1]
    found = reader.texts[4].values.reshape(len(whole), n, n + 1)
    np.testing.assert_allclose(found[:, :, 1:], whole, atol=2e-6)
    np.testing.assert_allclose(found[:, :, 0], 1 - whole.sum(axis=-1), atol=2e-6)
    without = attention_of(model_of("gpt2"), corpus, specials=True).texts[4]
    assert not without.values.reshape(12, n, n + 1)[:, :, 0].any()  # a tokenizer that adds no token


@pytest.mark.parametrize("specials", [False, True])
def test_causal_rows_keep_what_is_to_the_left(
    specials: bool, model_of: Callable[[str], OpenedModel], folder_of: Callable[[str], Path], corpus: Corpus
) -> None:
    reader = attention_of(model_of("bert"), corpus, causal=True, specials=specials)
    whole = slow(folder_of("bert"), corpus, reader.encoded, 4)
    n, found, start = whole.shape[1], reader.texts[4], 0
    assert found.lengths.tolist() == [k + 1 + specials for k in range(n)]
    for k, length in enumerate(found.lengths):
        row = np.concatenate([1 - whole[:, k].sum(axis=-1)[:, None], whole[:, k, : k + 1]], axis=1)[:, not specials :]
        share = row / row.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found.values[:, start : start + length], share, atol=1e-5)  # 1 - Σ cancels here
        start += length
    assert start == found.values.shape[1]


def test_a_row_without_any_attention_to_words_is_uniform_and_counted(
    model_of: Callable[[str], OpenedModel], corpus: Corpus
) -> None:
    part = corpus.slice(0, 1)
    encoded = encode_for(model_of("bert").encoder, part.sentences, ["word"])
    reader = AttentionReader(encoded, plan_rows(part, [model_of("bert").encoder], "word"))
    tokens = int(encoded.lengths[0])
    weights = torch.zeros(1, 2, tokens, tokens)
    weights[..., 0] = 1  # all to [CLS]
    weights[0, 1, :, 1] = 1
    batch = Batch(np.array([0]), np.array([0]), np.array([0]), {})
    reader.update(batch, Output(attention=[weights]))
    values = reader.texts[0].values.reshape(2, 9, 9)
    np.testing.assert_allclose(values[0], 1 / 9)
    np.testing.assert_allclose(values[1, :, 0], 1)
    reader.update(batch, Output(attention=[weights]))
    assert reader.empty.tolist() == [18, 0]
    with pytest.raises(StratoscopeError, match="not finite"):
        reader.update(batch, Output(attention=[weights * torch.nan]))
    causal = AttentionReader(encoded, reader.rows, causal=True)
    causal.update(batch, Output(attention=[weights]))
    own = [np.full(k, 1 / k) for k in range(1, 10)]  # over its own targets
    np.testing.assert_allclose(causal.texts[0].values[0], np.concatenate(own), rtol=1e-6)


def test_words_that_are_not_planned_have_no_part(model_of: Callable[[str], OpenedModel]) -> None:
    """A word that another model's tokenizer drops is neither source nor target."""
    corpus = Corpus("c", (Sentence("a b c", words=("Birds", "sing", "old")),), (0,))
    model = model_of("bert")
    encoded, rows = encode_for(model.encoder, corpus.sentences, ["word"]), plan_rows(corpus, [model.encoder], "word")
    fewer = type(rows)(rows.fingerprint, rows.corpus, "word", rows.sentence[[0, 2]], rows.word[[0, 2]], {})
    readers = [AttentionReader(encoded, r) for r in (rows, fewer)]
    read(model, encoded, readers)
    whole, part = (r.texts[0].values.reshape(12, n, n) for r, n in zip(readers, (3, 2), strict=True))
    left = whole[:, [0, 2]][:, :, [0, 2]]
    np.testing.assert_allclose(part, left / left.sum(axis=-1, keepdims=True), atol=1e-6)


def test_hidden_states_and_attention_come_from_one_pass(model_of: Callable[[str], OpenedModel], corpus: Corpus) -> None:
    model = model_of("bert")
    encoded, rows = encode_for(model.encoder, corpus.sentences, ["word"]), plan_rows(corpus, [model.encoder], "word")
    passes: list[int] = []
    hook = model.module.encoder.layer[0].register_forward_pre_hook(lambda m, args: passes.append(len(args[0])))
    heads, hidden = AttentionReader(encoded, rows), RowReader(encoded, corpus, rows)
    read(model, encoded, [heads, hidden])
    hook.remove()
    assert sum(passes) == len(corpus)
    assert len(heads.texts) == len(corpus)
    assert hidden.layers[-1].shape == (len(rows), 32)


def test_only_words_have_attention(model_of: Callable[[str], OpenedModel], corpus: Corpus) -> None:
    encoded = encode_for(model_of("bert").encoder, corpus.sentences, ["mean"])
    with pytest.raises(ValueError, match="mean"):
        AttentionReader(encoded, plan_rows(corpus, [model_of("bert").encoder], "mean"))
