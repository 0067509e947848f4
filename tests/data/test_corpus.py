"""Identity of a corpus: what changes its fingerprint, what does not, and how samples are drawn."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence


def corpus(*sentences: Sentence, positions: tuple[int, ...] | None = None, name: str = "c") -> Corpus:
    return Corpus(name, sentences, positions or tuple(range(len(sentences))))


def numbered(n: int) -> Corpus:
    return corpus(*(Sentence(f"sentence {k}", label=str(k)) for k in range(n)))


FULL = Sentence("a b", ("a", "b"), pair="p", label="l", tags={"upos": ("X", "Y"), "xpos": ("1", "2")})


def test_fingerprint_ignores_the_name_and_the_order_of_tag_names() -> None:
    other = replace(FULL, tags={"xpos": ("1", "2"), "upos": ("X", "Y")})
    assert corpus(FULL).fingerprint == corpus(other, name="elsewhere").fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        replace(FULL, text="a B"),
        replace(FULL, text="a b "),
        replace(FULL, words=("a", "c")),
        replace(FULL, words=None, tags=None),
        replace(FULL, pair="q"),
        replace(FULL, pair=None),
        replace(FULL, pair="l", label="p"),
        replace(FULL, label="m"),
        replace(FULL, label=None),
        replace(FULL, label=""),
        replace(FULL, tags={"upos": ("X", "Y")}),
        replace(FULL, tags={"upos": ("X", "Y"), "xpos": ("2", "1")}),
        replace(FULL, tags={"upos": ("X", "Y"), "chunk": ("1", "2")}),
        replace(FULL, tags=None),
    ],
)
def test_fingerprint_sees_every_field(changed: Sentence) -> None:
    assert corpus(changed).fingerprint != corpus(FULL).fingerprint


def test_fingerprint_sees_boundaries_order_and_positions() -> None:
    a, b = Sentence("ab"), Sentence("c")
    prints = {
        corpus(a, b).fingerprint,
        corpus(b, a).fingerprint,
        corpus(Sentence("a"), Sentence("bc")).fingerprint,
        corpus(Sentence("ab", pair="c")).fingerprint,
        corpus(Sentence("ab", label="c")).fingerprint,
        corpus(a, b, positions=(0, 2)).fingerprint,
        corpus(Sentence("ab c", ("ab", "c"))).fingerprint,
        corpus(Sentence("ab c", ("a", "bc"))).fingerprint,
        corpus(a).fingerprint,
    }
    assert len(prints) == 9


def test_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "from stratoscope.data.corpus import *;"
        "print(Corpus('x', (Sentence('a b', ('a', 'b'), 'p', 'l', {'upos': ('X', 'Y'), 'xpos': ('1', '2')}),), (0,))"
        ".fingerprint)"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert got == corpus(FULL).fingerprint
    assert len(got) == 64


def test_fingerprint_of_unpaired_surrogates_exists() -> None:
    assert corpus(Sentence("\ud800")).fingerprint != corpus(Sentence("?")).fingerprint


def test_sample_is_seeded_sorted_and_keeps_positions() -> None:
    whole = replace(numbered(50), skipped=3)
    drawn = whole.sample(10, seed=1)
    assert len(drawn) == 10
    assert drawn.positions == tuple(sorted(drawn.positions))
    assert [s.label for s in drawn.sentences] == [str(p) for p in drawn.positions]
    assert (drawn.name, drawn.skipped) == (whole.name, 3)
    assert drawn == whole.sample(10, seed=1)
    assert drawn.positions != whole.sample(10, seed=2).positions
    assert drawn.fingerprint != whole.fingerprint


def test_sample_of_a_sample_keeps_the_first_positions() -> None:
    twice = numbered(50).sample(20, seed=0).sample(5, seed=0)
    assert [s.label for s in twice.sentences] == [str(p) for p in twice.positions]


def test_sample_draws_every_sentence_equally_often() -> None:
    whole = numbered(10)
    counts = [0] * 10
    for seed in range(2000):
        for p in whole.sample(3, seed=seed).positions:
            counts[p] += 1
    assert all(500 < c < 700 for c in counts)


def test_sample_leaves_global_random_state_alone() -> None:
    import random

    before = random.getstate()
    numbered(20).sample(5, seed=0)
    assert random.getstate() == before


@pytest.mark.parametrize("limit", [None, 5, 6])
def test_sample_returns_itself_when_the_limit_does_not_bind(limit: int | None) -> None:
    whole = numbered(5)
    assert whole.sample(limit, seed=0) is whole


@pytest.mark.parametrize("limit", [0, -1])
def test_sample_refuses_a_limit_below_one(limit: int) -> None:
    with pytest.raises(StratoscopeError, match=f"limit: expected at least 1 sentence, got {limit}; leave it out"):
        numbered(5).sample(limit, seed=0)


def test_positions_must_match_and_increase() -> None:
    with pytest.raises(ValueError, match=r"expected one position per sentence \(1\), got 2"):
        Corpus("c", (Sentence("a"),), (0, 1))
    with pytest.raises(ValueError, match="strictly increasing positions"):
        corpus(Sentence("a"), Sentence("b"), positions=(1, 1))


def test_tags_must_match_words() -> None:
    with pytest.raises(ValueError, match="tags 'upos': expected one per word, got 1 tags for 2 words"):
        Sentence("a b", ("a", "b"), tags={"upos": ("X",)})
    with pytest.raises(ValueError, match="got 1 tags for no words"):
        Sentence("a", tags={"upos": ("X",)})
