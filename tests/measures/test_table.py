"""Names become requests; `all` is what fits; few rows draw a caution."""

from __future__ import annotations

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures import table
from stratoscope.measures.table import MEASURES, QUADRATIC_ROWS, caution, known_names, parse, requests


def test_public_names() -> None:
    assert known_names() == (
        "neuronsim",
        "mixedsim",
        "svsim",
        "pwsim",
        "ckasim",
        "ckasim-debiased",
        "ckasim-rbf",
        "ckasim-minibatch",
        "cca",
        "linreg",
        "procrustes",
        "rsa",
        "mixedsim-heldout",
    )


@pytest.mark.parametrize("name", known_names())
def test_every_name_parses_to_itself(name: str) -> None:
    request = parse(name)
    assert (request.name, request.measure.name, request.top) == (name, name, 1)


@pytest.mark.parametrize(
    ("text", "name", "top"),
    [("svsim@0.1", "svsim@0.1", 0.1), ("pwsim@1.0", "pwsim", 1), ("neuronsim@.50", "neuronsim@0.5", 0.5)],
)
def test_fractions(text: str, name: str, top: float) -> None:
    assert (parse(text).name, parse(text).top) == (name, top)


def test_unknown_name_offers_the_nearest_and_all() -> None:
    with pytest.raises(StratoscopeError, match=r"unknown measure 'ckasimm'; did you mean 'ckasim'\?.*rsa.*all"):
        parse("ckasimm")


@pytest.mark.parametrize("name", [m.name for m in MEASURES if not m.averages])
def test_a_fraction_of_what_is_no_mean(name: str) -> None:
    with pytest.raises(
        StratoscopeError, match=f"{name} is not a mean, so '@0.5' has no meaning; it goes with neuronsim, mix"
    ):
        parse(f"{name}@0.5")


@pytest.mark.parametrize("fraction", ["0", "-0.1", "1.01", "ten", "", "nan", "inf"])
def test_fractions_out_of_range(fraction: str) -> None:
    words = f"expected a fraction above 0 and at most 1 after '@', got '{fraction}' in 'svsim@{fraction}'"
    with pytest.raises(StratoscopeError, match=words):
        parse(f"svsim@{fraction}")


def test_no_measure_at_all() -> None:
    with pytest.raises(StratoscopeError, match="expected at least one measure, got none; choose from: neuronsim, "):
        requests([], n=100, width=10)


def test_all_with_many_rows_is_everything_but_the_stand_in() -> None:
    wanted, notes = requests(["all"], n=10_000, width=768)
    assert [r.name for r in wanted] == [n for n in known_names() if n != "mixedsim-heldout"]
    assert notes == []


def test_all_with_few_rows_leaves_out_what_saturates() -> None:
    wanted, notes = requests(["all"], n=768, width=768)
    left = {"mixedsim", "cca", "linreg"}
    assert {r.name for r in wanted} == set(known_names()) - left
    for name in left:
        assert f"{name} left out of 'all': it is 1 for any two layers with 768 rows for 768 neurons" in notes
    assert any(note.startswith("svsim of unrelated layers is far above 0") for note in notes)


def test_all_with_very_many_rows_leaves_out_what_is_quadratic() -> None:
    wanted, notes = requests(["all"], n=QUADRATIC_ROWS + 1, width=768)
    assert "ckasim-rbf" not in [r.name for r in wanted]
    assert notes == [
        "ckasim-rbf left out of 'all': its cost grows with the square of 20001 rows; name it to have it anyway"
    ]
    assert "ckasim-rbf" in [r.name for r in requests(["all"], n=QUADRATIC_ROWS, width=768)[0]]


def test_named_measures_come_anyway_once_and_in_order() -> None:
    wanted, notes = requests(["rsa", "cca", "all", "cca", "svsim@0.1"], n=50, width=64)
    names = [r.name for r in wanted]
    assert names[:2] == ["rsa", "cca"]
    assert names[-1] == "svsim@0.1"
    assert len(names) == len(set(names))
    assert (
        "cca is 1 for any two layers while rows (50) do not outnumber neurons (64); add rows, or use mixedsim-heldout"
        in notes
    )


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)
def test_cautions_follow_from_what_is_declared(measure: table.Measure) -> None:
    few, some, many = (caution(measure, n, 100) for n in (100, 199, 200))
    assert many is None
    assert (some is not None) == measure.inflates
    assert (few is not None) == (measure.saturates or measure.inflates)
    assert not measure.saturates or measure.inflates, "what saturates at n = width is far too high just above it"
    assert ("is 1 for any two" in (few or "")) == measure.saturates
    assert ("not unique where correlations repeat" in (some or "")) == (measure.name == "pwsim")
