from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stratoscope.core.model import ModelInfo
from stratoscope.report.words import observations, sentences


def one(lines, *parts):
    """The only sentence that holds all these parts."""
    found = [line for line in lines if all(part in line for part in parts)]
    assert len(found) == 1, (parts, lines)
    return found[0]


def none(lines, part):
    assert not [line for line in lines if part in line], (part, lines)


def drift(series, measure="ckasim"):
    return {measure: [{"first": "a", "second": "b", "same_layer": series}]}


def split(contrast, start=3):
    return {"start": start, "contrast": contrast, "within": 0.5 + contrast, "between": 0.5}


def model(name, *, family="bert", layers=5, width=64, role="model"):
    return ModelInfo(name, f"./{name}", family, layers, width, "sha256:0", role)


WU6 = "'top layers change more than bottom ones' (Wu et al. 2020, section 6)"
PHANG = "'two blocks after fine-tuning' (Phang et al. 2021, section 3)"
WU5 = "'Higher layers are more localized' (Wu et al. 2020, section 5.1)"


def test_drift_names_the_extreme_layers_and_where_the_drop_starts(make_findings):
    lines = sentences(make_findings({"drift": drift([0.98, 0.99, 0.97, 0.61, 0.42])}))
    one(lines, "a and b differ least at layer 1 (ckasim 0.99) and most at layer 4 (ckasim 0.42)")
    one(lines, "The drop starts at layer 3 (0.61)")


def test_drift_skips_a_constant_layer(make_findings):
    lines = sentences(make_findings({"drift": drift([None, 0.9, 0.8, 0.7, 0.6])}))
    one(lines, "differ least at layer 1 (ckasim 0.90) and most at layer 4 (ckasim 0.60)")


def test_drift_carries_the_interval(comparison):
    low, high = (getattr(comparison["ckasim"].between("base", "tuned"), k)[12, 12] for k in ("low", "high"))
    one(sentences(comparison), "most at layer 12", f"[{low:.2f}, {high:.2f}]")


def test_chosen_layers_keep_their_numbers(some_layers):
    lines = sentences(some_layers)
    value = some_layers["ckasim"].at(("base", 8), ("tuned", 8))
    one(lines, "differ least at layer 4", "most at layer 12", f"The drop starts at layer 8 ({value:.2f})")
    one(lines, WU6, "over layers 4,", "over layers 12.")
    one(lines, "Localization of base rises", "at layer 4,", "at layer 12;")


def test_a_flat_or_recovering_curve_has_no_drop(make_findings):
    one(sentences(make_findings({"drift": drift([1.0, 0.98, 0.97, 0.98, 0.96])})), "no drop to place")
    one(sentences(make_findings({"drift": drift([1.0, 0.6, 0.97, 0.98, 0.97])})), "no lasting drop", "0.97")


@pytest.mark.parametrize(
    ("series", "how", "verdict"),
    [
        (
            [1.0, 0.99, 0.97, 0.61, 0.41],
            "more in the upper half: mean 0.98 over layers 1-2, 0.51 over layers 3-4",
            "holds",
        ),
        (
            [1.0, 0.41, 0.61, 0.97, 0.99],
            "less in the upper half: mean 0.51 over layers 1-2, 0.98 over",
            "does NOT hold",
        ),
        ([1.0, 0.90, 0.91, 0.90, 0.90], "about equally in both halves: mean 0.91 over", "does NOT hold"),
    ],
)
def test_top_layers_change_more_is_judged_on_the_data(make_findings, series, how, verdict):
    line = one(sentences(make_findings({"drift": drift(series)})), WU6)
    assert how in line
    assert f"{WU6} {verdict} here" in line
    assert "If the second was fine-tuned from the first" in line


def test_other_measures_that_disagree_are_named_with_their_numbers(make_findings):
    findings = {
        "drift": drift([1, 0.9, 0.9, 0.5, 0.5]) | drift([1, 0.3, 0.3, 0.4, 0.4], "rsa") | drift([1, 1, 1, 0, 0], "cca")
    }
    line = one(sentences(make_findings(findings, measures=("ckasim", "rsa", "cca"))), WU6)
    assert "1 of 2 other measures agree (not rsa 0.30 and 0.40)" in line


def test_models_of_other_shape_or_random_ones_are_never_judged_as_fine_tuned(make_findings):
    findings = {
        "drift": drift([1, 0.9, 0.9, 0.5, 0.5]),
        "blocks": {"ckasim": {"a": split(0.1), "b": split(0.6)}},
        "localization": {"a": [0, 1, 2, 3, 4], "b": [0, 1, 1, 1, 1]},
    }
    for second in (model("b", family="gpt2"), model("b", width=32), model("b", role="control")):
        lines = sentences(make_findings(findings, models=[model("a"), second]))
        one(lines, "differ least at layer 0")
        none(lines, "fine-tun")
    one(sentences(make_findings(findings, models=[model("a"), model("b")])), PHANG)


@pytest.mark.parametrize(
    ("a", "b", "how", "verdict"),
    [
        (0.21, 0.42, "b splits more sharply than a: contrast 0.42, beside a's own 0.21", "holds"),
        (0.42, 0.21, "b splits less sharply than a: contrast 0.21, beside a's own 0.42", "does NOT hold"),
        (0.30, 0.31, "b splits about as sharply as a: contrast 0.31, beside a's own 0.30", "does NOT hold"),
    ],
)
def test_two_blocks_are_judged_beside_the_other_models_own(make_findings, a, b, how, verdict):
    lines = sentences(make_findings({"blocks": {"ckasim": {"a": split(a), "b": split(b, start=4)}}}))
    line = one(lines, PHANG)
    assert how in line
    assert f"{PHANG} {verdict} here" in line
    listed = one(lines, "Contrast of the best split")
    assert f"a {a:.2f} (second block from layer 3; within {0.5 + a:.2f}, between 0.50)" in listed
    assert f"b {b:.2f} (second block from layer 4" in listed
    assert "Any smooth matrix has a best split" in listed


def test_a_random_initialisation_with_as_clear_a_split_is_pointed_out(make_findings):
    models = [model("a"), model("noise", role="control")]
    near = {"blocks": {"ckasim": {"a": split(0.20), "noise": split(0.25)}}}
    far = {"blocks": {"ckasim": {"a": split(0.60), "noise": split(0.25)}}}
    one(
        sentences(make_findings(near, models=models)),
        "noise is a random initialisation",
        "0.25",
        "split of a is not clearer",
    )
    none(sentences(make_findings(far, models=models)), "random initialisation")


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.8, 0.3, "holds"), (0.3, 0.8, "does NOT hold")])
def test_lower_layers_across_architectures(make_findings, low, high, verdict):
    models = [model("a"), model("c", family="gpt2", layers=7)]
    values = np.zeros((12, 12))
    values[1:3, 5 + 1 : 5 + 4] = low
    values[3:5, 5 + 4 :] = high
    values[5:, :5] = values[:5, 5:].T
    line = one(sentences(make_findings({}, models=models, values=values)), "Across architectures, a and c")
    assert f"lower halves {low:.2f}, of the upper halves {high:.2f}" in line
    assert line.endswith(f"(Wu et al. 2020, section 5.1) {verdict} here.")


UNJUDGED = (
    "cannot be judged here: with so few rows unrelated layers score ckasim up to 0.42, so chance alone may decide it"
)
"""Of 64 neurons with 90 rows."""


def across(make_findings, halves, **how):
    """A comparison of two architectures with these similarities of the lower and of the upper halves, by measure."""
    models = [model("a"), model("c", family="gpt2", layers=7)]
    whole = make_findings({}, models=models, measures=tuple(halves), values=np.zeros((12, 12)), **how)
    matrices = []
    for m, (low, high) in zip(whole.matrices, halves.values(), strict=True):
        values = np.zeros((12, 12))
        values[1:3, 5 + 1 : 5 + 4], values[3:5, 5 + 4 :] = low, high
        matrices.append(dataclasses.replace(m, values=values))
    return one(sentences(dataclasses.replace(whole, matrices=tuple(matrices))), "Across architectures, a and c")


@pytest.mark.parametrize(
    ("low", "high", "rows", "verdict"),
    [
        (0.21, 0.20, 90, UNJUDGED),
        (0.41, 0.10, 90, UNJUDGED),
        (0.01, 0.30, 90, UNJUDGED),
        (0.60, 0.55, 90, UNJUDGED),
        (0.55, 0.60, 90, UNJUDGED),
        (0.90, 0.20, 90, "holds here"),
        (0.20, 0.90, 90, "does NOT hold here"),
        (0.98, 0.80, 90, "holds here"),
        (0.21, 0.20, 20_000, "does NOT hold here"),
        (0.60, 0.55, 20_000, "holds here"),
    ],
)
def test_similarity_across_architectures_within_chance_is_not_judged(make_findings, low, high, rows, verdict):
    line = across(make_findings, {"ckasim": (low, high)}, rows=rows)
    assert f"lower halves {low:.2f}, of the upper halves {high:.2f}. 'Lower layers" in line, "the numbers are kept"
    assert line.endswith(f"(Wu et al. 2020, section 5.1) {verdict}.")


def test_debiased_cka_decides_where_chance_could(make_findings):
    line = across(make_findings, {"ckasim": (0.4, 0.3), "ckasim-debiased": (0.3, 0.1)}, rows=90)
    assert line.endswith(
        "5.1) holds here by ckasim-debiased (0.30 and 0.10); ckasim alone, up to 0.42 by chance, cannot tell."
    )
    clear = across(make_findings, {"ckasim": (0.9, 0.3), "ckasim-debiased": (0.9, 0.1)}, rows=90)
    assert clear.endswith("5.1) holds here.")


def test_best_fractions_have_the_highest_level_they_can(make_findings):
    """Half of the correlations have at most twice the mean of all."""
    line = across(make_findings, {"neuronsim@0.5": (0.53, 0.2)}, rows=90)
    assert "cannot be judged here: with so few rows unrelated layers score neuronsim@0.5 up to 0.5" in line
    assert across(make_findings, {"neuronsim": (0.53, 0.2)}, rows=90).endswith("holds here.")


@pytest.mark.parametrize(
    ("series", "verdict"),
    [
        ([1.0, 0.41, 0.41, 0.3, 0.3], UNJUDGED),
        ([1.0, 0.6, 0.6, 0.6, 0.6], UNJUDGED),
        ([1.0, 0.9, 0.9, 0.3, 0.3], "holds here"),
        ([1.0, 0.3, 0.3, 0.9, 0.9], "does NOT hold here"),
    ],
)
def test_drift_within_chance_is_not_judged(make_findings, series, verdict):
    line = one(sentences(make_findings({"drift": drift(series)}, rows=90)), WU6)
    assert f"mean {series[1]:.2f} over layers 1-2, {series[3]:.2f} over layers 3-4." in line
    assert line.endswith(f"{WU6} {verdict}.")


def test_other_measures_within_chance_neither_agree_nor_disagree(make_findings):
    findings = {"drift": drift([1, 0.9, 0.9, 0.3, 0.3]) | drift([1, 0.9, 0.9, 0.2, 0.2], "rsa")}
    findings["drift"] |= drift([1, 0.5, 0.5, 0.5, 0.5], "cca")
    lines = sentences(make_findings(findings, measures=("ckasim", "rsa", "cca"), rows=90))
    assert one(lines, WU6).endswith("holds here; 1 of 1 other measures agree, 1 cannot tell from chance.")


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((0.40, 0.38), (0.41, 0.20), UNJUDGED),
        ((0.80, 0.50), (0.85, 0.50), UNJUDGED),
        ((0.95, 0.90), (0.95, 0.30), "holds here"),
        ((0.95, 0.30), (0.95, 0.90), "does NOT hold here"),
    ],
)
def test_two_blocks_within_chance_are_not_judged(make_findings, a, b, verdict):
    def best(within, between):
        return {"start": 3, "contrast": within - between, "within": within, "between": between}

    findings = {"blocks": {"ckasim": {"a": best(*a), "b": best(*b)}}}
    line = one(sentences(make_findings(findings, rows=90)), PHANG)
    assert f"contrast {b[0] - b[1]:.2f}, beside a's own {a[0] - a[1]:.2f}" in line
    assert line.endswith(f"{PHANG} {verdict}.")
    both = dict.fromkeys(("ckasim", "ckasim-debiased"), findings["blocks"]["ckasim"])
    told = one(sentences(make_findings({"blocks": both}, rows=90, measures=tuple(both))), PHANG)
    assert "cannot be judged" not in told
    assert ("by ckasim-debiased (" in told) == (verdict == UNJUDGED)


@pytest.mark.parametrize(
    ("series", "way", "share", "verdict"),
    [
        ([-0.3, -0.2, -0.1, 0.0, 0.1], "rises", "100%", "holds"),
        ([0.1, 0.0, -0.1, -0.2, -0.3], "falls", "0%", "does NOT hold"),
        ([0.0, 0.3, 0.1, 0.2, 0.05], "neither rises nor falls", "50%", "does NOT hold"),
    ],
)
def test_localization_is_judged_on_the_data(make_findings, series, way, share, verdict):
    line = one(sentences(make_findings({"localization": {"a": series}})), "Localization of a")
    assert f"{way} with depth: {series[0]:.2f} at layer 0, {series[-1]:.2f} at layer 4; in {share} of all pairs" in line
    assert f"{WU5} {verdict} here" in line


@pytest.mark.parametrize(
    ("top", "how", "verdict"), [(0.0, "less", "holds"), (0.5, "not clearly less", "does NOT hold")]
)
def test_localization_at_the_top_is_compared_between_the_models(make_findings, top, how, verdict):
    findings = {"localization": {"a": [0.1, 0.2, 0.3, 0.4, 0.4], "b": [0.1, 0.2, 0.3, top, top]}}
    line = one(sentences(make_findings(findings)), "In the upper half (layers 3-4)")
    assert f"b is {how} localized than a: mean {top:.2f} against 0.40" in line
    assert f"section 6) {verdict} here" in line


@pytest.mark.parametrize(("chance", "judged"), [(0.39, True), (0.41, False)])
def test_localization_within_chance_is_not_judged(make_findings, chance, judged):
    findings = {"localization": {"a": [-0.3, -0.2, -0.1, 0.0, 0.1]}, "localization_chance": chance}
    line = one(sentences(make_findings(findings)), "Localization of a rises")
    assert (f"{WU5} holds here." in line) == judged
    said = (
        "cannot be judged here: the scores of its least and of its most localized layer are 0.40 apart, which is within"
        " svsim's chance level with so few rows (up to 0.41)."
    )
    assert line.endswith(said) != judged


@pytest.mark.parametrize(("chance", "judged"), [(0.29, True), (0.31, False)])
def test_localization_at_the_top_within_chance_is_not_judged(make_findings, chance, judged):
    series = {"a": [0.1, 0.2, 0.3, 0.4, 0.4], "b": [0.1, 0.2, 0.3, 0.1, 0.1]}
    findings = {"localization": series, "localization_chance": chance}
    line = one(sentences(make_findings(findings)), "In the upper half (layers 3-4)")
    assert ("section 6) holds here." in line) == judged
    assert ("section 6) cannot be judged here: the two are 0.30 apart, which is within" in line) != judged


def test_controls_are_not_judged_on_localization(make_findings):
    rising = [-0.3, -0.2, -0.1, 0.0, 0.1]
    models = [model("a"), model("b", role="control")]
    lines = sentences(make_findings({"localization": {"a": rising, "b": rising}}, models=models))
    one(lines, "Localization of a")
    none(lines, "Localization of b")
    none(lines, "In the upper half")


def test_rows_are_reported_honestly(make_findings):
    one(sentences(make_findings({}, rows=640)), "640 rows, 10.0 for each neuron of the widest layer (64)")
    one(sentences(make_findings({}, rows=64)), "Only 64 rows for layers of up to 64 neurons", "ckasim-debiased")
    one(sentences(make_findings({}, rows=None)), "number of rows is not recorded")


def test_constant_layers_are_named(comparison):
    one(sentences(comparison), "3 constant layers", "base:0, tuned:0 and mini:0")


def test_warnings_are_repeated_last(comparison):
    noisy = dataclasses.replace(comparison, warnings=("first", "second"))
    assert sentences(noisy)[-2:] == ["Warning: first", "Warning: second"]
    none(observations(noisy), "Warning")


def test_every_judgement_has_a_number(comparison):
    for line in observations(comparison):
        assert any(c.isdigit() for c in line) or line.startswith("The sentences below"), line


def test_the_headline_is_ckasim_or_else_the_first(make_findings):
    findings = {"drift": drift([1, 1, 1, 0.5, 0.5], "svsim") | drift([1, 1, 1, 0.2, 0.2])}
    one(sentences(make_findings(findings, measures=("svsim", "ckasim"))), "most at layer 3 (ckasim 0.20)")
    one(sentences(make_findings(findings, measures=("svsim", "rsa"))), "most at layer 3 (svsim 0.50)")


def test_an_empty_result_and_a_result_without_findings_have_words(comparison):
    assert sentences(dataclasses.replace(comparison, findings={}))
    assert observations(dataclasses.replace(comparison, matrices=())) == ["This result holds no matrix."]
