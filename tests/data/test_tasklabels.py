"""Labels as written become class indices or targets."""

from __future__ import annotations

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.build import examples, infer_labels, labelled
from stratoscope.data.tasks.files import TaskRows


def rows(*labels: str | None) -> TaskRows:
    n = len(labels)
    return TaskRows("t.csv", ((("x", None),),) * n, labels, tuple(range(5, 5 + n)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("b a b a", ("a", "b")),
        ("true false true false", ("false", "true")),
        ("10 9 10 9 2 2", ("2", "9", "10")),
        ("1.0 0 1 0.0", ("0", "1")),
        ("-1 1 -1 1", ("-1", "1")),
        ("1 2 one one 1 2", ("1", "2", "one")),
        ("0.5 1 2 3", None),
        ("1e-1 1", None),
        ("nan inf nan inf", ("inf", "nan")),
        ("1_0 2 1_0 2", ("1_0", "2")),
    ],
)
def test_classes_in_order_or_a_regression(written: str, expected: tuple[str, ...] | None) -> None:
    assert infer_labels("t", written.split()) == expected


def test_labels_that_do_not_repeat_are_no_classes() -> None:
    words = (
        r"t: expected labels that repeat, got 20 different ones in 39 rows \(0, 1, .*, 7 and 12 more\); name the label"
    )
    with pytest.raises(StratoscopeError, match=words):
        infer_labels("t", [str(k) for k in range(20)] + ["1"] * 19)


def test_names_codes_and_numbers_of_any_spelling() -> None:
    got = examples(rows("no", "yes", "2", "1.0", "1"), ("no", "yes"), ("1", "2"))
    assert [e.label for e in got] == [0, 1, 1, 0, 0]
    assert got[0].texts == (("x", None),)
    # A name wins over a code.
    assert [e.label for e in examples(rows("2", "1"), ("2", "1"), ("1", "2"))] == [0, 1]


def test_targets() -> None:
    assert [e.label for e in examples(rows("0.25", "-3", "1e1"), None, ())] == [0.25, -3, 10]


def test_every_refusal_names_the_row() -> None:
    with pytest.raises(
        StratoscopeError, match=r"t.csv: expected a label in every row, got none in 2 of 3 rows .*row 7\)"
    ):
        labelled(rows("a", None, None))
    with pytest.raises(
        StratoscopeError, match=r"t.csv: row 7: expected one of the labels no, yes or 0, 1, got 'maybe'; "
    ):
        examples(rows("no", "maybe"), ("no", "yes"), ("0", "1"))
    with pytest.raises(StratoscopeError, match=r"t.csv: row 6: expected one of the labels 0, 1, got '2'; fix the row"):
        examples(rows("2"), ("0", "1"), ("0", "1"))
    with pytest.raises(StratoscopeError, match="row 6: expected a number as the target of a regression, got 'high'; "):
        examples(rows("high"), None, ())
