from __future__ import annotations

from stratoscope.report.references import REFERENCES, to_cite

PUBLIC = (
    *("neuronsim", "mixedsim", "svsim", "pwsim", "cca", "linreg", "procrustes", "rsa"),
    *("ckasim", "ckasim-debiased", "ckasim-rbf", "ckasim-minibatch"),
)


def test_every_public_measure_has_a_source():
    covered = {m for r in REFERENCES for m in r.measures}
    assert covered == set(PUBLIC)


def test_only_what_is_present_is_cited():
    assert [r.split(",")[0] for r in to_cite(["ckasim"])] == ["Wu", "Phang", "Kornblith"]
    assert [r.split(",")[0] for r in to_cite(["svsim@0.1"])] == ["Wu", "Phang", "Raghu"]
