"""Rows become a task: one format, labels known or inferred, a split where there is none, and a note."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.build import build
from stratoscope.data.tasks.files import TaskRows
from stratoscope.data.tasks.read import task_named

SST2, HELLASWAG = task_named("sst2"), task_named("hellaswag")


def rows(n: int, choices: int = 1, *, pair: bool = False, labels: str = "01", source: str = "dir/t.csv") -> TaskRows:
    texts = tuple(
        tuple((f"text {k}", f"other {c}" if pair or choices > 1 else None) for c in range(choices)) for k in range(n)
    )
    return TaskRows(source, texts, tuple(labels[k % len(labels)] for k in range(n)), tuple(range(n)))


def test_two_sources_are_the_two_splits() -> None:
    data = build("sst2", SST2, [rows(6), rows(4)], seed=0, note="a note")
    assert (len(data.train), len(data.validation)) == (6, 4)
    assert (data.labels, data.format, data.metric) == (("negative", "positive"), "single", "accuracy")
    assert data.note == "a note"


def test_one_source_is_split_and_the_note_says_so() -> None:
    data = build("sst2", SST2, [rows(50)], seed=3)
    assert (len(data.train), len(data.validation)) == (40, 10)
    assert data.note == (
        "only one labelled file (t.csv): split 80/20 by example with seed 3, 40 rows to train on and 10 to judge on; "
        "not comparable with published numbers"
    )
    assert set(data.train) & set(data.validation) == set()
    numbers = [int(e.texts[0][0].split()[1]) for e in data.train + data.validation]
    assert sorted(numbers) == list(range(50))
    assert all(e.label == k % 2 for e, k in zip(data.train + data.validation, numbers, strict=True))
    assert data.fingerprint != build("sst2", SST2, [rows(50)], seed=4).fingerprint


def test_a_users_task_is_inferred() -> None:
    classes = build("mine", None, [rows(9, pair=True, labels="cab"), rows(4, pair=True, labels="ba")], seed=0)
    assert (classes.labels, classes.format, classes.metric) == (("a", "b", "c"), "pair", "accuracy")
    assert [e.label for e in classes.train[:3]] == [2, 0, 1]
    assert [e.label for e in classes.validation[:2]] == [1, 0]
    assert classes.note == "labels inferred: 3 classes"
    targets = replace(rows(4), labels=("0.5", "1", "2", "3"))
    regression = build("mine", None, [targets, rows(4)], seed=0)
    assert (regression.labels, regression.metric, regression.note) == (
        None,
        "correlation",
        "labels inferred: targets of a regression",
    )
    assert [e.label for e in regression.train] == [0.5, 1, 2, 3]


def test_inferred_classes_that_do_not_start_at_zero() -> None:
    """The class 1 of {1, 2} has the index 0, however the file spells it."""
    spelled = replace(rows(4), labels=("1", "2", "1.0", "2.0"))
    data = build("mine", None, [spelled, rows(4, labels="12")], seed=0)
    assert data.labels == ("1", "2")
    assert [e.label for e in data.train] == [0, 1, 0, 1]


def test_choices_number_the_labels() -> None:
    data = build("hellaswag", HELLASWAG, [rows(6, 3, labels="012"), rows(6, 3)], seed=0)
    assert (data.labels, data.format) == (("0", "1", "2"), "choice")
    with pytest.raises(StratoscopeError, match=r"row 3: expected one of the labels 0, 1, got '2'"):
        build("hellaswag", HELLASWAG, [rows(6, 2, labels="012"), rows(6, 2)], seed=0)


def test_skipped_rows_are_noted() -> None:
    data = build("sst2", SST2, [replace(rows(4), skipped=2), rows(4)], seed=0)
    assert data.note == "dir/t.csv: 2 rows with blank text left out"


def test_formats_must_fit() -> None:
    pair = rows(20, pair=True)
    with pytest.raises(
        StratoscopeError, match=r"sst2: expected one text a row, got a pair of texts in dir/t.csv; name"
    ):
        build("sst2", SST2, [pair], seed=0)
    with pytest.raises(StratoscopeError, match=r"rte: expected a pair of texts a row, got one text in dir/t.csv; name"):
        build("rte", task_named("rte"), [rows(20)], seed=0)
    with pytest.raises(StratoscopeError, match=r"mine: expected one text a row, got a pair of texts in b.csv"):
        build("mine", None, [rows(4), replace(pair, source="b.csv")], seed=0)
    with pytest.raises(StratoscopeError, match=r"hellaswag: expected 4 choices a row, got 3 choices in b.csv"):
        build("hellaswag", HELLASWAG, [rows(4, 4), rows(4, 3, source="b.csv")], seed=0)
    with pytest.raises(StratoscopeError, match=r"hellaswag: expected 2 choices a row, got one text in dir/t.csv"):
        build("hellaswag", HELLASWAG, [rows(4), rows(4)], seed=0)


def test_too_few_rows_to_split() -> None:
    with pytest.raises(
        StratoscopeError, match=r"sst2: expected at least 10 rows to split 80/20, got 9 in dir/t.csv; give"
    ):
        build("sst2", SST2, [rows(9)], seed=0)
    build("sst2", SST2, [rows(10)], seed=1)


def test_labels_missing_or_of_one_class() -> None:
    with pytest.raises(StratoscopeError, match="expected a label in every row, got none in 4 of 4 rows"):
        build("mine", None, [replace(rows(4), labels=(None,) * 4), rows(4)], seed=0)
    with pytest.raises(StratoscopeError, match=r"sst2: expected train rows with different labels, got 20 .*'positive'"):
        build("sst2", SST2, [rows(20, labels="1"), rows(4)], seed=0)
