from __future__ import annotations

import re

import report_cases as cases

from stratoscope.claims.works import WORKS
from stratoscope.measures.table import MEASURES
from stratoscope.report.cite import short, works_of


def test_measures_and_claims_have_their_works_and_no_other():
    got = {w.key for w in works_of(["neuronsim@0.1", "procrustes"], cases.statements()[1:2])}
    assert got == {"wu2020", "bau2019", "schonemann1966", "williams2021", "phang2021"}
    assert works_of([], ()) == []


def test_every_measure_cites_works_that_are_in_the_table():
    for m in MEASURES:
        wanted = {short(w) for w in m.reference.split(";")}
        assert wanted <= set(WORKS), m.name


def test_every_work_is_a_whole_bibtex_entry_with_a_key_of_its_own():
    works = works_of([m.name for m in MEASURES], cases.statements(), WORKS)
    assert len({w.key for w in works}) == len(works) == len(WORKS)
    for w in works:
        entry = w.bibtex
        assert re.match(r"@(inproceedings|article)\{" + w.key + r",\n", entry), entry
        assert all(f"  {name} = {{" in entry for name in ("author", "title", "year")), entry
        assert entry.count("{") == entry.count("}")
    (phang,) = [w for w in works if w.key == "phang2021"]
    assert "author = {Phang and Liu and Bowman}" in phang.bibtex
    assert "booktitle = {BlackboxNLP}" in phang.bibtex
    (nguyen,) = [w for w in works if w.key == "nguyen2021"]
    assert "Learn the Same Things?}" in nguyen.bibtex
