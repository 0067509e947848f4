"""A study of fine-tuning: every text read once per model, the same rows everywhere, and parts that are those alone."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from toys import LEARN, KilledError, Reads, classification, distinct, killing, plain, regression

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import TaskData
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.study import Study
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.study import compare
from stratoscope.studies.cut.study import cut
from stratoscope.studies.depth import judge
from stratoscope.studies.depth.study import DepthOptions, depth
from stratoscope.studies.finetuned.study import StudyOptions, study_finetuned

TASK = distinct(24, 40)
LIMIT = 24
QUICK = StudyOptions(units=("mean",), bootstrap=0, control=False, depth=False)


@pytest.fixture(scope="module")
def found(calm: Path, learnt: tuple[Finetuned, ...], tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study_finetuned(
        calm,
        [t.folder for t in learnt],
        TASK,
        out=tmp_path_factory.mktemp("study"),
        options=StudyOptions(bootstrap=0, limit=LIMIT, localization=True),
    )


def tokens(folder: Path, texts: list[str], length: int) -> Counter[tuple[int, ...]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return Counter(tuple(tokenizer(t, truncation=True, max_length=length)["input_ids"]) for t in texts)


def texts(task: TaskData, *splits: str) -> list[str]:
    return [e.texts[0][0] for split in splits for e in task.split(split)]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_each_text_is_read_once_per_model_and_truncated_as_in_training(
    calm: Path, learnt: tuple[Finetuned, ...], reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four parts want the texts (cls, mean, words, heads); skipping spans, which runs blocks again, is left out."""
    monkeypatch.setattr(judge, "skipped", lambda work, result, whole: result)
    folders = [t.folder for t in learnt]
    length = LEARN.length
    assert length is not None
    options = StudyOptions(bootstrap=0, limit=LIMIT, localization=True)
    study = study_finetuned(calm, folders, TASK, out=tmp_path, options=options)
    assert set(study.compared) == {"cls", "mean", "localization"}
    assert study.depth is not None
    every = tokens(calm, texts(TASK, "train", "validation"), length)
    sample = tokens(calm, [s.text for s in TASK.corpus("validation").sample(LIMIT, 0).sentences], length)
    assert max(map(len, every)) == length, "some texts must be longer"
    # heads are tuned on base and first tuned model; of the second and of the control only the sample is compared
    assert list(reads.texts.values()) == [every, every, sample, sample]


def test_all_parts_have_the_same_rows_and_long_texts_are_among_them(found: Study) -> None:
    assert {c.data["sentences"] for c in found.compared.values()} == {LIMIT}
    assert {c.data["fingerprint"] for c in found.compared.values()} == {
        TASK.corpus("validation").sample(LIMIT, 0).fingerprint
    }
    assert found["cls"].data["rows"] == found["mean"].data["rows"] == LIMIT
    for part in found.compared.values():
        assert any(f"up to {LEARN.length} tokens" in w for w in part.warnings)
    assert found.depth is not None
    assert found.depth.provenance["length"] == LEARN.length
    assert any(f"longer than {LEARN.length} tokens" in w for w in found.depth.warnings)


def test_another_length_is_that_of_all_parts(
    calm: Path, tuned: Path, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "skipped", lambda work, result, whole: result)
    options = StudyOptions(units=("mean",), bootstrap=0, length=12)
    study = study_finetuned(calm, [tuned], TASK, out=tmp_path, options=options)
    assert {len(ids) for counted in reads.texts.values() for ids in counted} <= set(range(13))
    assert study.depth is not None
    assert study.depth.provenance["length"] == 12


def test_a_model_is_opened_once(calm: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    own = judge.open_model
    monkeypatch.setattr(judge, "open_model", lambda s, *a, **k: (opened.append(s.label), own(s, *a, **k))[1])
    study_finetuned(calm, [tuned], TASK, out=tmp_path, options=replace(QUICK, depth=True, control=True))
    assert sorted(opened) == ["base", "base-random", "seed-0"]


# --- its parts -------------------------------------------------------------------------------------------------------


def test_the_parts_are_those_of_the_analyses_alone(
    found: Study, calm: Path, learnt: tuple[Finetuned, ...], tmp_path: Path
) -> None:
    """Of texts short enough for all, so that a comparison alone, which drops long ones, has the same rows."""
    assert (found.base, found.tuned, found.control) == ("base", ("seed-0", "seed-1"), "base-random")
    assert [m.name for m in found.models] == ["base", "seed-0", "seed-1", "base-random"]
    models = [calm, *(t.folder for t in learnt)]
    options = StudyOptions(units=("cls",), bootstrap=20, limit=LIMIT, length=48, localization=True)
    study = study_finetuned(calm, models[1:], TASK, out=tmp_path / "study", options=options)
    how = CompareOptions(unit="cls", measures=("ckasim", "ckasim-debiased"), limit=LIMIT, bootstrap=20)
    alone = compare(models, data=TASK.corpus("validation"), options=replace(how, random_init=True))
    words = CompareOptions(unit="word", measures=("neuronsim", "svsim"), limit=LIMIT, random_init=True)
    for got, wanted in (
        (study["cls"], alone),
        (study["localization"], compare(models, data=TASK.corpus("validation"), options=words)),
    ):
        assert list(got) == list(wanted)
        for name in wanted:
            np.testing.assert_allclose(got[name].values, wanted[name].values, atol=2e-6, err_msg=name)
        assert got.data["rows"] == wanted.data["rows"]
    curves = depth(models[1], TASK, base=calm, out=tmp_path / "depth", options=DepthOptions(length=48))
    assert study.depth is not None
    for name in ("untuned", "tuned", "tunedorig"):
        np.testing.assert_allclose(study.depth.curve(name).values, curves.curve(name).values, atol=1e-6)
    np.testing.assert_allclose(study.depth.skip, curves.skip, atol=1e-6)  # type: ignore[arg-type]


def test_models_across_are_compared_but_neither_localized_nor_judged(
    calm: Path, tuned: Path, checkpoints: Path, tmp_path: Path
) -> None:
    study = study_finetuned(
        calm,
        [tuned],
        TASK,
        out=tmp_path,
        options=replace(QUICK, localization=True, control=True),
        across=[checkpoints / "other"],
    )
    assert study.across == ("other",)
    assert [m.name for m in study["mean"].models] == ["base", "seed-0", "other", "base-random"]
    assert [m.name for m in study["localization"].models] == ["base", "seed-0", "base-random"]


def test_what_a_cut_came_to_is_on_the_same_record(lazy: Path, lazy_task: TaskData, tmp_path: Path) -> None:
    small = cut(lazy, lazy_task, budget=0.05, out=tmp_path / "cut")
    study = study_finetuned(lazy, [lazy], lazy_task, out=tmp_path / "a", options=QUICK, cut=small)
    loaded = Study.load(tmp_path / "a")
    assert loaded.cut is not None
    assert (loaded.cut.kept, loaded.refused) == (small.kept, "") == (study.cut.kept, "")  # type: ignore[union-attr]
    with pytest.raises(StratoscopeError, match=r"holds another result: cut"):
        study_finetuned(lazy, [lazy], lazy_task, out=tmp_path / "a", options=QUICK, refused="nothing to cut")
    again = replace(QUICK, overwrite=True)
    study_finetuned(lazy, [lazy], lazy_task, out=tmp_path / "a", options=again, refused="nothing to cut")
    assert Study.load(tmp_path / "a").refused == "nothing to cut"


def test_everything_is_in_one_folder(found: Study, calm: Path, tuned: Path, tmp_path: Path) -> None:
    study_finetuned(calm, [tuned], TASK, out=tmp_path, options=replace(QUICK, bootstrap=20))
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {".lock", "run.yaml", "study.json", "study.arrays.safetensors"}
    assert plain(Study.load(tmp_path)["mean"]) == plain(
        study_finetuned(calm, [tuned], TASK, out=tmp_path, options=replace(QUICK, bootstrap=20))["mean"]
    )


@pytest.mark.parametrize(("of", "at"), [("reading with 2 models", 104), ("comparing", 1), ("tuning", 3)])
def test_a_killed_study_resumes_with_what_it_has(
    of: str,
    at: int,
    calm: Path,
    tuned: Path,
    reads: Reads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "skipped", lambda work, result, whole: result)
    options = StudyOptions(units=("cls",), bootstrap=0, control=False)

    def run(out: str, **how: Any) -> Study:
        return study_finetuned(calm, [tuned], TASK, out=tmp_path / out, options=options, **how)

    whole = run("whole")
    reads.texts.clear()
    with pytest.raises(KilledError):
        run("killed", progress=killing(of, at))
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    kept = {p.name for p in (tmp_path / "killed" / "parts").glob("*.safetensors")}
    assert plain(run("killed")) == plain(whole)
    assert kept
    assert not kept & set(saved)
    if not of.startswith("reading"):
        assert all(n == 1 for counted in reads.texts.values() for n in counted.values()), "no text was read twice"


# --- which models ----------------------------------------------------------------------------------------------------


def test_folders_of_one_name_are_told_apart_in_all_parts(calm: Path, tuned: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before" / "model", tmp_path / "after" / "model"
    shutil.copytree(calm, before)
    shutil.copytree(tuned, after)
    study = study_finetuned(before, [after], TASK, out=tmp_path / "out", options=replace(QUICK, depth=True))
    assert (study.base, *study.tuned) == ("before/model", "after/model")
    assert study.depth is not None
    assert study.depth.base is not None
    assert (study.depth.base.name, study.depth.model.name) == ("before/model", "after/model")


def test_without_depth_a_model_needs_no_head_and_no_base_of_its_shape(checkpoints: Path, tmp_path: Path) -> None:
    study = study_finetuned(
        checkpoints / "base", [checkpoints / "tuned", checkpoints / "other"], TASK, out=tmp_path, options=QUICK
    )
    assert study.depth is None
    assert [m.width for m in study["mean"].models] == [tiny.HIDDEN, tiny.HIDDEN, 48]


def test_a_base_of_a_shorter_window_reads_as_far_as_it_does(calm: Path, tuned: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    transformers.AutoModel.from_pretrained(calm).save_pretrained(short)
    tiny.tokenizer("bert", max_length=12).save_pretrained(short)
    study = study_finetuned(short, [tuned], TASK, out=tmp_path / "out", options=replace(QUICK, depth=True))
    assert study["mean"].data["rows"] == len(TASK.validation)
    assert any("up to" in w and "short" in w for w in study["mean"].warnings)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ({"tuned": []}, {}, "at least one fine-tuned model"),
        ({}, {"units": ()}, "at least one unit"),
        ({}, {"units": ("sentence",)}, "unknown unit 'sentence'"),
        ({}, {"bootstrap": 3}, "at least 20 bootstrap replicates"),
        ({}, {"workers": 0}, "--workers of at least 1, got 0"),
        ({}, {"length": 4096}, "--length of at most 128"),
        ({}, {"limit": 3}, "at least 4 rows to compare, got 3"),
        ({}, {"memory": 1e6}, "--memory of at least 100MB"),
        ({"across": ["base"]}, {}, "besides the base and the tuned ones, each once"),
        ({"across": ["other", "other"]}, {}, "besides the base and the tuned ones, each once"),
        ({"tuned": ["base"]}, {"depth": True}, "base-2' has no task head"),
    ],
    ids=lambda x: "-".join(map(str, x)) if isinstance(x, dict) else "",
)
def test_what_cannot_work_is_refused_before_anything_is_read(
    given: dict[str, Any],
    options: dict[str, Any],
    words: str,
    calm: Path,
    tuned: Path,
    checkpoints: Path,
    tmp_path: Path,
) -> None:
    at = {"base": calm, "other": checkpoints / "other", "tuned": tuned}
    models = [at[name] for name in given.get("tuned", ["tuned"])]
    with pytest.raises(StratoscopeError, match=words):
        study_finetuned(
            calm,
            models,
            TASK,
            out=tmp_path / "out",
            options=replace(QUICK, **options),
            across=[at[name] for name in given.get("across", [])],
        )
    assert not (tmp_path / "out").exists()


def test_a_head_for_another_task_is_refused(calm: Path, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="rated needs 1 label"):
        study_finetuned(calm, [tuned], regression(), out=tmp_path, options=replace(QUICK, depth=True))
    assert len(classification().validation) == 32
