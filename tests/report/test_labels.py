from __future__ import annotations

import math

import pytest

from stratoscope.core.value import MISSING, Value
from stratoscope.report.labels import estimate, number, points, printable, ranges, shorten, shown, slugs


@pytest.mark.parametrize("value", [0.0003, 0.9997, 0.00002, 0.99998, -0.0004])
def test_a_small_drift_and_a_similarity_close_to_one_keep_a_digit_that_shows_them(value):
    text = number(value).replace("−", "-")
    assert float(text) not in (0.0, 1.0)
    assert float(text) == pytest.approx(value, rel=0.06)


def test_numbers_have_no_more_digits_than_they_need():
    assert [number(v) for v in (0.5, 1.0, 0.0, 12.345, 123.45, 20000.4)] == [
        *("0.500", "1.000", "0.000"),
        *("12.35", "123.5", "20,000"),
    ]
    assert number(3e-9) == "3.0e-09"
    assert number(math.nan) == "–"


def test_an_interval_has_the_digits_of_its_value():
    assert shown(Value(0.0003, 0.0001, 0.0005)) == "0.00030 [0.00010, 0.00050]"
    assert estimate(Value(-4e-12, -0.0001, 0.0002)) == "−0.000"
    assert shown(Value(0.7)) == "0.700"
    assert shown(MISSING) == "–"


def test_points_have_a_sign_and_never_vanish():
    assert [points(v) for v in (-0.01, 0.123, 0.0)] == ["−1.0 point", "+12.3 points", "±0.0 points"]
    assert points(-0.0002) == "−0.02 points"


def test_names_from_outside_are_one_clean_line():
    assert printable("a\x1b[31mb\x07\nc\td\u202e\udcff") == "a\ufffd[31mb\ufffd c d\ufffd?"


def test_a_long_name_keeps_beginning_and_end():
    assert shorten("abcdefghijklmnop", 10) == "abc…klmnop"
    assert len(shorten("x" * 300, 17)) == 17
    assert shorten("short", 10) == "short"


def test_ranges_of_layers():
    assert ranges([7, 1, 2, 3, 4]) == "1–4, 7"
    assert ranges([]) == ""


def test_file_names_and_links_are_safe_and_different():
    got = slugs(["a@0.1", "a-at-0.1", "../../etc/passwd", "A-AT-0.1", "...", "x y/z", "名"])
    assert list(got.values()) == ["a-at-0.1", "a-at-0.1-2", "etc-passwd", "A-AT-0.1-3", "unnamed", "x-y-z", "unnamed-2"]
