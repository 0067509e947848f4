from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import ModelSpec, survey
from stratoscope.models.text.encoder import Encoder, window_of
from stratoscope.models.text.rows import plan_rows


def small(encoder: Encoder, window: int, name: str = "small") -> Encoder:
    return replace(encoder, window=window, name=name)


def test_long_sentences_are_dropped_for_both_models_and_named(model_of: Any, corpus: Corpus) -> None:
    bert, gpt2 = model_of("bert").encoder, small(model_of("gpt2").encoder, 12)
    fits = gpt2.encode(corpus.sentences, by_word=True).lengths <= 12
    assert 0 < fits.sum() < len(corpus)
    rows = plan_rows(corpus, [bert, gpt2], "word")
    assert rows.dropped == {"sentences longer than small's window (12 tokens)": int((~fits).sum())}
    assert set(rows.sentence) == set(np.flatnonzero(fits))
    assert plan_rows(corpus, [gpt2, bert], "word").fingerprint == rows.fingerprint
    assert plan_rows(corpus, [bert], "word").fingerprint != rows.fingerprint


@pytest.mark.parametrize("unit", ["cls", "mean", "token", "word"])
def test_a_sentence_at_the_window_stays_and_one_above_goes(unit: str, model_of: Any, corpus: Corpus) -> None:
    encoder = model_of("bert").encoder
    lengths = encoder.encode(corpus.sentences, by_word=unit == "word").lengths
    longest = int(lengths.max())
    whole = plan_rows(corpus, [small(encoder, longest)], unit)
    assert whole.dropped == {}
    less = plan_rows(corpus, [small(encoder, longest - 1)], unit)
    assert less.dropped == {f"sentences longer than small's window ({longest - 1} tokens)": 1}
    assert set(whole.sentence) - set(less.sentence) == {int(lengths.argmax())}


def test_words_a_tokenizer_drops_go_for_every_model(model_of: Any) -> None:
    split = Corpus("split", (Sentence("It \u200b rains", ("It", "\u200b", "rains", "")),), (0,))
    bert, gpt2 = (replace(model_of(f).encoder, name=f) for f in ("bert", "gpt2"))
    alone = plan_rows(split, [gpt2], "word")
    assert alone.word.tolist() == [0, 1, 2]
    assert alone.dropped == {"words gpt2's tokenizer turns into nothing": 1}
    both = plan_rows(split, [gpt2, bert], "word")
    assert both.word.tolist() == [0, 2]
    assert both.dropped["words bert's tokenizer turns into nothing"] == 2


@pytest.mark.parametrize("unit", ["word", "cls", "mean", "token"])
def test_empty_sentences_are_counted(unit: str, model_of: Any, texts: Any) -> None:
    rows = plan_rows(texts("", "Yes.", "  "), [model_of("bert").encoder], unit)
    assert set(rows.sentence) == {1}
    assert rows.dropped == {"empty sentences": 2}


@pytest.mark.parametrize("unit", ["cls", "mean", "token"])
def test_text_without_tokens_is_counted(unit: str, model_of: Any, texts: Any) -> None:
    encoder = replace(model_of("bert").encoder, name="b")
    rows = plan_rows(texts("\u200b", "Yes."), [encoder], unit)
    assert set(rows.sentence) == {1}
    assert rows.dropped == {"sentences in which b's tokenizer finds no token": 1}


def test_nothing_left_is_an_error(model_of: Any, texts: Any) -> None:
    with pytest.raises(StratoscopeError, match=r"no rows are left of 'texts' for unit 'cls' \(1 empty sentences\)"):
        plan_rows(texts(""), [model_of("bert").encoder], "cls")
    with pytest.raises(StratoscopeError, match="the data is empty"):
        plan_rows(texts(), [model_of("bert").encoder], "cls")


def test_no_model_is_an_error(corpus: Corpus) -> None:
    with pytest.raises(StratoscopeError, match="no model was given"):
        plan_rows(corpus, [], "cls")


def test_unknown_unit_names_the_nearest(corpus: Corpus, model_of: Any) -> None:
    with pytest.raises(StratoscopeError, match="unknown unit 'words'; did you mean 'word'"):
        plan_rows(corpus, [model_of("bert").encoder], "words")


def test_unit_token_needs_one_tokenizer(model_of: Any, corpus: Corpus) -> None:
    bert, electra, gpt2 = (replace(model_of(f).encoder, name=f) for f in ("bert", "electra", "gpt2"))
    assert len(plan_rows(corpus, [bert, electra], "token")) == int(bert.encode(corpus.sentences).real.sum())
    with pytest.raises(StratoscopeError, match="'bert' and 'gpt2' split sentence 0 differently; use unit 'word'"):
        plan_rows(corpus, [bert, gpt2], "token")


def test_a_special_token_written_in_the_text_is_real(model_of: Any, texts: Any) -> None:
    encoded = model_of("bert").encoder.encode(texts("Yes [SEP] birds").sentences)
    assert encoded.real.tolist()[:3] == [False, True, True]
    assert not encoded.real[-1]
    assert encoded.ids[2] == encoded.ids[-1]


def test_half_a_surrogate_pair_is_read_as_a_question_mark(model_of: Any, texts: Any) -> None:
    encoder = model_of("gpt2").encoder
    for unit in ("cls", "word"):
        broken, mark = (
            encoder.encode(texts(t).sentences, by_word=unit == "word").ids for t in ("so \ud83d it", "so ? it")
        )
        assert np.array_equal(broken, mark)


def test_fingerprint_follows_corpus_and_unit(model_of: Any, texts: Any) -> None:
    encoder = model_of("bert").encoder
    seals = {
        plan_rows(c, [encoder], u).fingerprint for c in (texts("Yes."), texts("No.")) for u in ("cls", "mean", "word")
    }
    assert len(seals) == 6


def test_windows(folder_of: Any, tmp_path: Any) -> None:
    expected = dict.fromkeys(tiny.TOKENIZERS, tiny.POSITIONS)
    expected |= {"roberta": tiny.POSITIONS - 2, "mpnet": tiny.POSITIONS - 2, "xlnet": None}
    got = {f: survey(ModelSpec(str(folder_of(f)))).encoder.window for f in expected}
    assert got == expected
    for family, limit, window in (("bert", 20, 20), ("bert", 500, tiny.POSITIONS), ("xlnet", 20, 20)):
        folder = tiny.checkpoint(family, tmp_path / f"{family}{limit}", max_length=limit)
        assert survey(ModelSpec(str(folder))).encoder.window == window


def test_roberta_really_reads_its_whole_window(model_of: Any, texts: Any) -> None:
    from stratoscope.models.read.hidden import read_rows

    model = model_of("roberta")
    corpus = texts("a" + " a" * (model.encoder.window - 3))
    rows = plan_rows(corpus, [model.encoder], "cls")
    assert model.encoder.encode(corpus.sentences).lengths.tolist() == [model.encoder.window]
    assert len(read_rows(model, corpus, rows)) == model.layers
    assert window_of(model.module.config, model.encoder.tokenizer, model.family) == tiny.POSITIONS - 2


def test_a_tokenizer_of_another_model_is_told(model_of: Any, corpus: Corpus) -> None:
    encoder = replace(model_of("bert").encoder, vocabulary=10, name="b")
    with pytest.raises(StratoscopeError, match=r"tokenizer of 'b' gives token id .* but the model has 10 embeddings"):
        plan_rows(corpus, [encoder], "cls")


def test_padding_id_falls_back_to_eos_then_zero(model_of: Any) -> None:
    assert model_of("bert").encoder.pad_id == model_of("bert").encoder.tokenizer.pad_token_id
    gpt2 = model_of("gpt2").encoder
    assert gpt2.tokenizer.pad_token_id is None
    assert gpt2.pad_id == gpt2.tokenizer.eos_token_id
    bare = tiny.tokenizer("gpt2")
    bare.eos_token = None
    assert replace(gpt2, tokenizer=bare).pad_id == 0


def test_a_slice_gives_the_same_values_as_the_whole(model_of: Any, corpus: Corpus) -> None:
    from test_family_contract import collect, same

    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "word")
    whole = collect(model, corpus, rows)
    cuts = [0, 4, 31, len(rows)]
    for first, last in itertools.pairwise(cuts):
        part, own = rows.slice(corpus, first, last)
        assert len(part) < len(corpus)
        same(collect(model, part, own), [x[first:last] for x in whole])


def test_planning_in_chunks_gives_the_same_rows(
    model_of: Any, corpus: Corpus, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratoscope.models.text import rows as module

    encoders = [replace(model_of(f).encoder, name=f, window=14) for f in ("bert", "gpt2")]
    for unit in ("word", "cls"):
        whole = plan_rows(corpus, encoders, unit)
        monkeypatch.setattr(module, "CHUNK", 3)
        parts = plan_rows(corpus, encoders, unit)
        monkeypatch.undo()
        assert (parts.fingerprint, list(parts.dropped.items())) == (whole.fingerprint, list(whole.dropped.items()))
        assert np.array_equal(parts.sentence, whole.sentence)
        assert np.array_equal(parts.word, whole.word)


@pytest.mark.parametrize("unit", ["cls", "mean", "token", "word"])
def test_with_truncate_long_texts_are_cut_and_counted_instead_of_dropped(
    unit: str, model_of: Any, corpus: Corpus
) -> None:
    bert, small_bert = model_of("bert").encoder, small(model_of("bert").encoder, 9)
    lengths = bert.encode(corpus.sentences).lengths
    rows = plan_rows(corpus, [bert, small_bert], unit, truncate=12)
    assert rows.truncate == 12
    assert rows.truncated == {"bert": int((lengths > 12).sum()), "small": int((lengths > 9).sum())}
    assert set(rows.sentence) >= set(range(len(corpus))) - {8}, "which begins with a word that is cut in two"
    assert bool(rows.dropped) == (unit == "word"), "only words beyond the cut are left out"
    assert rows.fingerprint != plan_rows(corpus, [bert], unit).fingerprint


def test_rows_of_a_sample_are_found_in_the_whole(model_of: Any, corpus: Corpus) -> None:
    encoder = model_of("bert").encoder
    sample = corpus.sample(4, seed=1)
    rows = plan_rows(sample, [encoder], "word")
    found = rows.within(sample, corpus)
    assert found.corpus == corpus.fingerprint
    for a, b in zip(rows.sentence, found.sentence, strict=True):
        assert sample.sentences[a] == corpus.sentences[b]
