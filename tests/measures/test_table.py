"""Names become requests; `all` is what fits; few rows draw a caution."""

from __future__ import annotations

import pytest

from stratoscope.core import names
from stratoscope.core.errors import StratoscopeError
from stratoscope.measures import table
from stratoscope.measures.kernels.kernel import MEDIAN_ROWS
from stratoscope.measures.kernels.rsa import ROWS
from stratoscope.measures.table import (
    MEASURES,
    QUADRATIC_ROWS,
    Request,
    caution,
    chance_level,
    known_names,
    parse,
    requests,
)


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
        "knn",
        "knn-jaccard",
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
    wanted, notes = requests(["all"], n=2000, width=5)
    assert [r.name for r in wanted] == [n for n in known_names() if n != "mixedsim-heldout"]
    assert notes == [
        "mixedsim-heldout left out of 'all': it is for rows that do not outnumber neurons; name it to have it anyway"
    ]


def test_chance_levels_are_told_in_one_sentence_while_they_matter() -> None:
    """Five rows a neuron: canonical correlations of noise average .39; ten percent of them more."""
    _, notes = requests(["linreg", "cca", "svsim", "svsim@0.1", "ckasim-debiased", "rsa"], n=501, width=100)
    assert notes == [
        "with 501 rows and 100 neurons, unrelated layers already score up to 0.20 (linreg), up to 0.39 (cca), "
        "up to 0.39 (svsim), above 0.39 (svsim@0.1); only higher scores are meaningful; ckasim-debiased is about 0 "
        "for them if rows are independent"
    ]
    assert requests(["linreg"], n=1_100, width=100)[1] == []
    assert requests(["cca"], n=8_000, width=100)[1] == []


def test_measures_that_sample_rows_say_so() -> None:
    _, notes = requests(["rsa", "ckasim-rbf"], n=MEDIAN_ROWS + 1, width=1)
    assert notes == [
        "rsa compares 2000 rows drawn with the seed, not all 2049",
        "the bandwidth of ckasim-rbf is from 2048 rows drawn with the seed, not all 2049",
    ]
    assert requests(["rsa"], n=ROWS, width=1)[1] == []
    assert requests(["ckasim-rbf"], n=MEDIAN_ROWS, width=1)[1] == []


def test_all_with_few_rows_leaves_out_what_saturates() -> None:
    wanted, notes = requests(["all"], n=768, width=768)
    left = {"mixedsim", "cca", "linreg"}
    assert {r.name for r in wanted} == set(known_names()) - left
    for name in left:
        assert f"{name} left out of 'all': it is 1 for any two layers with 768 rows for 768 neurons" in notes
    (said,) = [note for note in notes if "unrelated layers already score" in note]
    assert "up to 1.00 (svsim)" in said
    assert "up to 0.50 (ckasim)" in said
    assert not any(name in said for name in ("mixedsim", "(cca)", "linreg"))


def test_all_with_very_many_rows_leaves_out_what_is_quadratic() -> None:
    wanted, notes = requests(["all"], n=QUADRATIC_ROWS + 1, width=8)
    assert not {"ckasim-rbf", "knn", "knn-jaccard"} & {r.name for r in wanted}
    assert notes == [
        "ckasim-rbf left out of 'all': its cost grows with the square of 20001 rows; name it to have it anyway",
        "knn left out of 'all': its cost grows with the square of 20001 rows; name it to have it anyway",
        "knn-jaccard left out of 'all': its cost grows with the square of 20001 rows; name it to have it anyway",
        "mixedsim-heldout left out of 'all': it is for rows that do not outnumber neurons; name it to have it anyway",
        "rsa compares 2000 rows drawn with the seed, not all 20001",
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
    for n in (100, 101, 199, 400, 2_000, 20_000, 200_000):
        text, level = caution(Request(measure), n, 100), chance_level(measure, n, 100)
        assert (text is not None) == (level > 0.1), n
        assert ("is 1 for any two" in (text or "")) == (measure.saturates and n == 100)
        assert (f"up to {level:.2f}" in (text or "")) == (level > 0.1 and not (measure.saturates and n == 100))
        assert ("not unique where correlations repeat" in (text or "")) == (measure.name == "pwsim" and n < 200)
    assert caution(Request(measure), 200_000, 100) is None


def test_the_light_list_of_names_is_that_of_the_table() -> None:
    assert tuple(m.name for m in MEASURES) == names.MEASURES
    assert set(names.ALIASES.values()) <= set(names.MEASURES)
