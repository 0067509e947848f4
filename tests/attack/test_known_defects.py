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
from stratoscope.core.record import header
from stratoscope.data.readers import read_corpus
from stratoscope.models.open.checkpoints import locate


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
