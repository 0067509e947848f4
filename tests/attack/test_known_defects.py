"""Bad inputs that once ended in a traceback, a hang or a wall of text, one each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import stratoscope as ss
from stratoscope.cli.main import LONGEST_SENTENCE, _shortened
from stratoscope.core.files import at_home, write_text
from stratoscope.core.options import check_options
from stratoscope.core.record import header
from stratoscope.data.readers import read_corpus
from stratoscope.models.open.checkpoints import locate
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.diff.options import DiffOptions
from stratoscope.studies.finetune.options import FinetuneOptions
from stratoscope.studies.finetune.recipes import resolve
from stratoscope.studies.finetuned.options import StudyOptions


@pytest.mark.parametrize("name", ["bad.txt", "bad.csv", "bad.jsonl", "bad.conllu", "bad.parquet"])
def test_a_pipe_is_no_data(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ss.StratoscopeError, match="pipe or a device"):
        read_corpus(str(tmp_path / name))


def test_a_pipe_in_place_of_a_result_is_none_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result.json")
    assert header(tmp_path / "result.json") is None


def test_the_home_of_nobody_is_no_model() -> None:
    assert at_home("~nosuchuser/x") == Path("~nosuchuser/x")
    assert at_home("~") == Path.home()
    with pytest.raises(ss.StratoscopeError, match="no model at '~nosuchuser/x'"):
        locate("~nosuchuser/x")


def test_half_a_surrogate_pair_survives_a_result_file(tmp_path: Path) -> None:
    plain = {"label": "half \ud800 ä"}
    write_text(tmp_path / "a.json", json.dumps(plain, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == plain


def test_a_sentence_fits_a_screen() -> None:
    assert _shortened("short") == "short"
    cut = _shortened("a" * 5000 + "the end")
    assert len(cut) < LONGEST_SENTENCE + 10
    assert cut.endswith("the end")


@pytest.mark.parametrize(("alias", "name"), [("cka", "ckasim"), ("svcca", "svsim"), ("pwcca", "pwsim@0.5")])
def test_measures_answer_to_the_names_of_other_packages(alias: str, name: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3))
    asked = alias + name[len(name.partition("@")[0]) :]
    assert ss.similarity(x, y, asked) == ss.similarity(x, y, name)


@pytest.mark.parametrize("number", [10_001, 99_999_999_999, -1])
def test_replicates_that_would_never_end_are_refused(number: int) -> None:
    for options in (CompareOptions, DiffOptions, StudyOptions, AttentionOptions):
        with pytest.raises(ss.StratoscopeError, match=r"--bootstrap of at (most 10,000|least 0)"):
            check_options(options(bootstrap=number))


@pytest.mark.parametrize(("name", "most"), [("seeds", "1,000"), ("batch", "1,000,000"), ("max_steps", "1,000,000,000")])
def test_training_that_would_never_end_is_refused(name: str, most: str) -> None:
    with pytest.raises(ss.StratoscopeError, match=f"of at most {most}, got 99,999,999,999"):
        resolve(FinetuneOptions(**{name: 99_999_999_999}), "mine")
