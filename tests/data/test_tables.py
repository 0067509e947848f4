"""Which columns become text, pair and label, and which values are refused."""

from __future__ import annotations

from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.data.formats.tables import LABELS, PAIRS, TEXTS, Literal, Table, to_corpus


def table(*rows: dict[str, Any], columns: tuple[str, ...] = ()) -> Table:
    names = columns or tuple(dict.fromkeys(k for row in rows for k in row))
    return Table("t", names, lambda wanted: [{k: v for k, v in row.items() if k in wanted} for row in rows])


def first(columns: str, **named: str) -> tuple[str, str | None, str | None]:
    """Read one row whose value in each column is `in <column>`."""
    (s,) = to_corpus(table({c: f"in {c}" for c in columns.split()}), "t", **named).sentences
    return s.text, s.pair, s.label


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_well_known_pair_is_found(a: str, b: str) -> None:
    (s,) = to_corpus(table({"index": "9", b.upper(): "second", a.title(): "first"}), "t").sentences
    assert (s.text, s.pair) == ("first", "second")


@pytest.mark.parametrize("name", TEXTS)
def test_every_well_known_text_is_found(name: str) -> None:
    assert first(f"id {name.upper()}") == (f"in {name.upper()}", None, None)


@pytest.mark.parametrize("name", LABELS)
def test_every_well_known_label_is_found(name: str) -> None:
    assert first(f"{name} text") == ("in text", None, f"in {name}")


@pytest.mark.parametrize(
    ("columns", "named", "expected"),
    [
        ("index question sentence label", {}, ("question", "sentence", "label")),
        ("question title answer passage", {}, ("question", "passage", "answer")),
        ("id context question answer0 label", {}, ("context", "question", "label")),
        ("sentence1 sentence2 score genre", {}, ("sentence1", "sentence2", "score")),
        ("text rating label stars", {}, ("text", None, "label")),
        ("text rating stars", {"label": "stars"}, ("text", None, "stars")),
        ("premise hypothesis", {"text": "hypothesis"}, ("hypothesis", None, None)),
        ("premise hypothesis text", {"pair": "hypothesis", "text": "text"}, ("text", "hypothesis", None)),
        ("premise hypothesis", {"pair": "hypothesis"}, ("premise", "hypothesis", None)),
        ("text other", {"pair": "other"}, ("text", "other", None)),
        ("odd", {}, ("odd", None, None)),
        ("odd label", {"label": "label"}, ("odd", None, "label")),
        ("text sentence", {"label": "sentence"}, ("text", None, "sentence")),
        ("label text", {"text": "label"}, ("label", None, None)),
    ],
)
def test_columns_are_inferred_around_the_named_ones(
    columns: str, named: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    assert first(columns, **named) == tuple(None if e is None else f"in {e}" for e in expected)
    roles = zip(("text", "pair", "label"), expected, strict=True)
    corpus = to_corpus(table({c: f"in {c}" for c in columns.split()}), "t", **named)
    assert corpus.columns == {role: column for role, column in roles if column is not None}


def test_several_texts_are_ambiguous() -> None:
    with pytest.raises(
        StratoscopeError,
        match="t: expected one text, got several candidates: 'text', or 'review'; choose with --text "
        r"\(columns: 'text', 'review', 'n'\) or with --text and --pair for two texts",
    ):
        first("text review n")
    with pytest.raises(StratoscopeError, match="'question' with 'passage', or 'question' with 'sentence'; choose"):
        first("question passage sentence")


def test_several_labels_are_ambiguous() -> None:
    with pytest.raises(
        StratoscopeError, match=r"one label column, got several candidates: 'rating', 'stars'; .*--label"
    ):
        first("text stars rating")


def test_no_well_known_text() -> None:
    with pytest.raises(
        StratoscopeError,
        match=r"well-known name such as 'text', 'sentence', .*got the columns: 'a', 'b'; name .*--text$",
    ):
        first("a b")


@pytest.mark.parametrize("flag", ["text", "pair", "label"])
def test_a_column_that_does_not_exist(flag: str) -> None:
    named = {"text": "sentence", flag: "sentense"}
    with pytest.raises(
        StratoscopeError,
        match=f"unknown --{flag} column of t 'sentense'; did you mean 'sentence'. choose from: id, sent",
    ):
        first("id sentence", **named)


def test_one_column_cannot_have_two_roles() -> None:
    with pytest.raises(
        StratoscopeError, match="expected different columns for --text, --pair and --label, got 'a', 'a'"
    ):
        first("a b", text="a", label="a")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, r"nothing \(null\)"),
        (3, "the number 3"),
        (2.5, "the number 2.5"),
        (Literal("5.000"), "the number 5.000"),
        (Literal("positive"), "the label 'positive'"),
        (True, "the truth value true"),
        (["a", "b"], "a list of 2"),
        ({"a": 1}, "a value of type dict"),
    ],
)
def test_a_value_that_is_no_text_names_row_and_column(value: object, words: str) -> None:
    bad = table({"text": "fine", "n": 1}, {"text": value, "n": 2})
    with pytest.raises(
        StratoscopeError, match=f"t: row 2, column 'text': expected text, got {words}; name the text col"
    ):
        to_corpus(bad, "t")


def test_a_missing_key_is_no_text() -> None:
    with pytest.raises(StratoscopeError, match=r"row 2, column 'text': expected text, got nothing \(null\)"):
        to_corpus(table({"text": "fine"}, {"other": "x"}), "t")


def test_a_second_text_that_is_no_text() -> None:
    with pytest.raises(StratoscopeError, match="row 1, column 'sentence2': expected text, got the number 1"):
        to_corpus(table({"sentence1": "a", "sentence2": 1}), "t")


def test_a_column_of_written_numbers_is_no_text() -> None:
    rows = table({"text": " ", "y": "0"}, {"text": "a", "y": "1"}, {"text": "b", "y": "-2.5e3"})
    with pytest.raises(
        StratoscopeError, match=r"row 1, column 'y': expected text, got the number 0 and numbers only.*--text"
    ):
        to_corpus(rows, "t", text="y")
    with pytest.raises(StratoscopeError, match="row 2, column 'y': expected text, got the number 1"):
        to_corpus(rows, "t", text="text", pair="y")


def labelled(*names: str, n: int) -> Table:
    return table(*({"review": f"film number {k}", "sentiment": names[k % len(names)]} for k in range(n)))


@pytest.mark.parametrize("names", [("positive", "negative"), ("positive",), ("bad", " so-so ", "good")])
def test_a_column_of_class_names_is_no_text(names: tuple[str, ...]) -> None:
    with pytest.raises(
        StratoscopeError,
        match=rf"row 1, column 'sentiment': expected text, got the label '{names[0]}' and no more than {len(names)}"
        r" different words in 30 rows; name the text column with --text \(columns: 'review', 'sentiment'\)$",
    ):
        to_corpus(labelled(*names, n=30), "t", text="sentiment")


def test_few_rows_many_words_phrases_and_second_texts_are_no_class_names() -> None:
    assert len(to_corpus(labelled("positive", "negative", n=29), "t", text="sentiment")) == 29
    assert len(to_corpus(labelled("a", "b", "c", "d", n=39), "t", text="sentiment")) == 39
    assert len(to_corpus(labelled("yes", "not at all", n=60), "t", text="sentiment")) == 60
    assert len(to_corpus(labelled("yes", "no", n=60), "t", text="review", pair="sentiment")) == 60


def test_one_number_among_texts_is_text() -> None:
    assert [s.text for s in to_corpus(table({"text": "1984"}, {"text": "a novel"}), "t").sentences] == [
        "1984",
        "a novel",
    ]


def test_labels_are_strings_in_their_own_spelling() -> None:
    values = [1, 0.5, Literal("5.000"), "yes", True, False, None, " ", ""]
    rows = table(*({"text": "x", "label": v} for v in values))
    labels = [s.label for s in to_corpus(rows, "t").sentences]
    assert labels == ["1", "0.5", "5.000", "yes", "true", "false", None, None, None]
    assert {type(x) for x in labels} == {str, type(None)}


def test_a_named_label_must_be_a_label_and_a_guessed_one_is_dropped() -> None:
    rows = table({"text": "a", "labels": 1}, {"text": "b", "labels": [1, 2]})
    assert [s.label for s in to_corpus(rows, "t").sentences] == [None, None]
    with pytest.raises(
        StratoscopeError, match=r"row 2, column 'labels': expected a label, got a list of 2; name .* with --label"
    ):
        to_corpus(rows, "t", label="labels")


def test_blank_rows_are_skipped_counted_and_keep_positions() -> None:
    rows = table(
        {"sentence1": " ", "sentence2": "x"},
        {"sentence1": " a ", "sentence2": "b"},
        {"sentence1": "c", "sentence2": ""},
        {"sentence1": "d", "sentence2": "e"},
    )
    got: Corpus = to_corpus(rows, "t")
    assert [(s.text, s.pair) for s in got.sentences] == [(" a ", "b"), ("d", "e")]
    assert (got.positions, got.skipped) == ((1, 3), 2)


def test_only_blank_rows() -> None:
    with pytest.raises(
        StratoscopeError, match=r"t: no usable text: expected it in 'text', got only blanks \(2 rows\); .*--text .*'n'"
    ):
        to_corpus(table({"text": "", "n": 1}, {"text": "\t", "n": 2}), "t")


def test_no_rows() -> None:
    with pytest.raises(StratoscopeError, match="t: expected rows of text, got no rows; give a file with data"):
        to_corpus(table(columns=("text",)), "t")
