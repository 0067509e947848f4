"""Examples in splits: identity by content, seeded samples, the same rows as a corpus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import Example, TaskData, hold_out


def example(text: str, label: float, pair: str | None = None) -> Example:
    return Example(((text, pair),), label)


def single(n: int = 40) -> TaskData:
    rows = tuple(example(f"text {k}", k % 2) for k in range(n))
    return TaskData("toy", rows[: n // 2], rows[n // 2 :], ("no", "yes"), "single", "accuracy")


CHOICE = TaskData(
    "pick",
    (Example((("a", "b"), ("a", "c")), 0), Example((("d", "e"), ("d", "f")), 1)),
    (Example((("g", "h"), ("g", "i")), 1), Example((("j", "k"), ("j", "l")), 0)),
    ("0", "1"),
    "choice",
    "accuracy",
)


def test_the_fingerprint_is_of_the_content_only() -> None:
    data = single()
    assert data.fingerprint == replace(data, name="other", note="from elsewhere", metric="f1").fingerprint
    first, second, *rest = data.train
    changed = [
        replace(data, train=(second, first, *rest)),
        replace(data, train=(example("text 0!", 0), second, *rest)),
        replace(data, train=(example("text 0", 1), second, *rest)),
        replace(data, train=(example("text 0", 0, "pair"), second, *rest)),
        replace(data, train=(example("text 0", 0, ""), second, *rest)),
        replace(data, train=data.validation, validation=data.train),
        replace(data, train=(*data.train, data.validation[0]), validation=data.validation[1:]),
        replace(data, labels=("no", "maybe")),
        replace(data, labels=None),
        replace(data, format="pair"),
    ]
    assert len({d.fingerprint for d in (data, *changed)}) == 1 + len(changed)


def test_the_fingerprint_is_the_same_in_every_version() -> None:
    assert CHOICE.fingerprint == "6ca232b736b8daefbd443313f7e5580315b9fdcaedb7550964a0b80da21cfdda"


def test_samples_are_seeded_ordered_and_independent_of_each_other() -> None:
    data = single(200)
    small = data.sample(train=10, validation=30, seed=1)
    assert (len(small.train), len(small.validation)) == (10, 30)
    assert list(small.train) == sorted(small.train, key=data.train.index)
    assert small == data.sample(train=10, validation=30, seed=1)
    assert small.train != data.sample(train=10, validation=30, seed=2).train
    assert small.validation == data.sample(train=None, validation=30, seed=1).validation
    assert data.sample(train=1000, validation=None, seed=1) == data
    assert (small.labels, small.format, small.metric) == (data.labels, data.format, data.metric)


def test_a_sample_of_nothing() -> None:
    with pytest.raises(StratoscopeError, match="sample of toy: expected at least 2 validation examples, got 1; leave"):
        single().sample(train=None, validation=1, seed=0)


def test_a_corpus_has_the_same_rows() -> None:
    pairs = TaskData(
        "p",
        (example("a", 0.5, "b"), example("c", 2, "d")),
        (example("e", 1, "f"), example("g", 0, "h")),
        None,
        "pair",
        "correlation",
    )
    corpus = pairs.corpus("train")
    assert [(s.text, s.pair, s.label) for s in corpus.sentences] == [("a", "b", "0.5"), ("c", "d", "2.0")]
    assert (corpus.name, corpus.positions) == ("p/train", (0, 1))
    assert [s.label for s in single().corpus("validation").sentences][:3] == ["no", "yes", "no"]
    assert [s.pair for s in single().corpus("train").sentences][:2] == [None, None]


def test_a_choice_task_gives_a_row_a_choice() -> None:
    rows = CHOICE.corpus("train").sentences
    assert [(s.text, s.pair, s.label) for s in rows] == [
        ("a", "b", "0"),
        ("a", "c", "0"),
        ("d", "e", "1"),
        ("d", "f", "1"),
    ]


def test_targets_and_regression() -> None:
    assert CHOICE.targets("train").tolist() == [0, 1]
    assert CHOICE.targets("validation").tolist() == [1, 0]
    assert not CHOICE.regression
    assert replace(single(), labels=None).regression


def test_an_unknown_split() -> None:
    with pytest.raises(StratoscopeError, match="unknown split of pick 'test'; choose from: train, validation"):
        CHOICE.targets("test")


def test_rows_of_one_class_or_too_few_are_refused() -> None:
    data = single()
    ones = tuple(e for e in data.train if e.label == 1)
    with pytest.raises(
        StratoscopeError, match=r"toy: expected train rows with different labels, got 10 rows all .*'yes'"
    ):
        replace(data, train=ones)
    with pytest.raises(
        StratoscopeError, match=r"toy: expected validation rows with different labels.*all labelled '1.0'"
    ):
        replace(data, validation=ones, labels=None)
    with pytest.raises(StratoscopeError, match="toy: expected at least 2 validation rows, got 1; too few to learn or"):
        replace(data, validation=ones[:1])


def test_hold_out_is_a_seeded_fifth() -> None:
    keep, held = hold_out(103, 5)
    assert (len(keep), len(held)) == (82, 21)
    assert sorted(keep + held) == list(range(103))
    assert (keep, held) == (sorted(keep), sorted(held))
    assert (keep, held) == hold_out(103, 5)
    assert held != hold_out(103, 6)[1]
