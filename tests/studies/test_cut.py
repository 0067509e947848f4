from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from planted import answers, chooser, chosen_by, classifier, rated_by, task_of
from toys import Reads, Told, classification, plain, regression, verdicts

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.surgery import blocks as surgery
from stratoscope.runs.folder import RunFolder
from stratoscope.studies import checkpoint
from stratoscope.studies.cut import files as cut_files
from stratoscope.studies.cut import study
from stratoscope.studies.cut.confirm import halves
from stratoscope.studies.cut.study import Cut, CutOptions, NothingToCutError, cut, parse_budget
from stratoscope.studies.finetune.study import FinetuneOptions, finetune

BUDGET = 0.05


@pytest.fixture(scope="module")
def task(lazy_task: TaskData) -> TaskData:
    return lazy_task


@pytest.fixture(scope="module")
def done(lazy: Path, task: TaskData, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    return cut(lazy, task, budget=BUDGET, out=tmp_path_factory.mktemp("done") / "small")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every block matters."""
    return classifier(tmp_path_factory.mktemp("busy") / "model", idle=0)


@pytest.fixture(scope="module")
def busy_task(busy: Path) -> TaskData:
    return task_of(busy)


def no_checkpoint(folder: Path) -> bool:
    """Whether the folder shows nothing that could be taken for a result."""
    return not folder.exists() or {p.name for p in folder.iterdir()} <= {".lock", "parts"}


def tried(refused: StratoscopeError) -> list[Any]:
    """The rows of the table that a refusal shows."""
    [rows] = refused.tables.values()
    return list(rows)


# --- what is cut -----------------------------------------------------------------------------------------------------


def test_idle_blocks_go_and_no_others_and_plain_transformers_loads_what_is_left(
    lazy: Path, task: TaskData, done: Cut
) -> None:
    assert done.kept == (1, 2)
    assert done.difference.value == 0
    assert done.parameters["after"] < done.parameters["before"]
    assert done.dropped == (3, 4)
    texts = [e.texts[0][0] for e in task.validation[:40]]
    np.testing.assert_allclose(answers(done.folder, texts), answers(lazy, texts), atol=1e-5)
    assert transformers.AutoConfig.from_pretrained(done.folder).num_hidden_layers == 2
    names = {p.name for p in done.folder.iterdir()}
    assert names == {
        ".lock", "README.md", "config.json", "cut.json", "model.safetensors", "run.yaml", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_the_folder_says_what_was_done(done: Cut) -> None:
    assert plain(Cut.load(done.folder)) == plain(done)
    assert [c.kept[-1] for c in done.candidates] == [1, 2, 3]
    assert [c.verdict for c in done.candidates] == [study.OVER_BUDGET, study.CHOSEN, study.CONFIRMED]
    assert [c.change.value for c in done.candidates[1:]] == [0, 0]
    assert done.candidates[0].change.low <= done.candidates[0].change.value < -BUDGET
    assert done.candidates[1].parameters == done.parameters["after"]
    assert set(done.latency["by_blocks"]) == {"1", "2", "3"}
    assert [(t.kept, t.confirmed) for t in done.tested] == [((1, 2, 3), True), ((1, 2), True)]
    assert done.rows == {"choose": 80, "confirm": 80, "seed": 0}
    assert done.before.value == done.after.value == 1
    assert (done.loads_with, done.metric, done.budget) == ("AutoModelForSequenceClassification", "accuracy", BUDGET)
    # no row was lost on 80: at 95 % the rule of three leaves 1 - 0.05^(1/80) possible
    assert done.difference.low == pytest.approx(0.05 ** (1 / 80) - 1)
    assert (done.folder / "README.md").is_file()


@pytest.mark.parametrize("blocks", ["top", "any"])
def test_post_norm_blocks_that_do_nothing_go_too(tmp_path: Path, blocks: str) -> None:
    folder = classifier(tmp_path / "model", "bert", idle=1)
    found = cut(folder, task_of(folder), budget=BUDGET, out=tmp_path / "small", options=CutOptions(blocks=blocks))
    assert found.kept == (1, 2, 3)


def test_idle_blocks_in_the_middle_are_found_when_any_may_go(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", idle=0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    for part in (model.transformer.h[1].attn.c_proj, model.transformer.h[1].mlp.c_proj):
        part.weight.data.zero_()
        part.bias.data.zero_()
    model.save_pretrained(folder)
    task = task_of(folder)
    with pytest.raises(StratoscopeError, match="nothing can be cut"):
        cut(folder, task, budget=BUDGET, out=tmp_path / "top")
    found = cut(folder, task, budget=BUDGET, out=tmp_path / "any", options=CutOptions(blocks="any"))
    assert found.kept == (1, 3, 4)
    texts = [e.texts[0][0] for e in task.validation[:20]]
    np.testing.assert_allclose(answers(found.folder, texts), answers(folder, texts), atol=1e-5)


def test_regressions_are_cut(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", labels=1)
    assert cut(folder, rated_by(folder), budget=0.15, out=tmp_path / "small").kept == (1, 2)


def test_multiple_choice_models_are_cut(tmp_path: Path) -> None:
    folder = chooser(tmp_path / "model")
    found = cut(folder, chosen_by(folder), budget=BUDGET, out=tmp_path / "small")
    assert found.kept == (1, 2)
    assert found.loads_with == "AutoModelForMultipleChoice"
    assert (
        type(transformers.AutoModelForMultipleChoice.from_pretrained(found.folder)).__name__ == "BertForMultipleChoice"
    )


@pytest.mark.parametrize("family", tiny.TOKENIZERS)
def test_every_family_is_cut_with_its_head_tuned_and_gives_what_it_was_judged_by(family: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(family, tmp_path / "model", head="classification")
    task = classification(24)
    found = cut(folder, task, budget=0.9, out=tmp_path / "small", options=CutOptions(head=True))
    assert found.kept == (1,)
    rows = halves(24, 0)[1]
    told = answers(found.folder, [task.validation[k].texts[0][0] for k in rows]).argmax(axis=1)
    assert (told == task.targets("validation")[rows]).mean() == found.after.value > 0.85


def test_no_fewer_blocks_stay_than_asked(lazy: Path, task: TaskData, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()  # an empty folder is free
    assert cut(lazy, task, budget=BUDGET, out=tmp_path / "s", options=CutOptions(keep=3)).kept == (1, 2, 3)


def test_a_tuned_head_reads_a_lower_layer_and_is_written(tmp_path: Path) -> None:
    rows = verdicts(160, 0)
    task = replace(classification(), train=rows, validation=verdicts(160, 1))
    base = tiny.checkpoint("bert", tmp_path / "base", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    learn = FinetuneOptions(recipe="wu2020", lr=3e-3, epochs=3, batch=8, warmup=0.1)
    tuned = finetune(base, task, out=tmp_path / "tuned", options=learn)[0]
    assert tuned.score.value > 0.95
    found = cut(tuned.folder, task, budget=BUDGET, out=tmp_path / "small", options=CutOptions(head=True))
    assert found.kept == (1,)
    assert found.head["tuned"]
    told = answers(found.folder, [e.texts[0][0] for e in task.validation]).argmax(axis=1)
    assert (told == task.targets("validation")).mean() > 0.95
    before, after = (
        transformers.AutoModelForSequenceClassification.from_pretrained(f) for f in (tuned.folder, found.folder)
    )
    assert not torch.equal(before.bert.pooler.dense.weight, after.bert.pooler.dense.weight)
    assert torch.equal(
        before.bert.encoder.layer[0].output.dense.weight, after.bert.encoder.layer[0].output.dense.weight
    )


def test_a_model_below_the_majority_is_cut_by_force_alone_and_with_a_warning(lazy: Path, tmp_path: Path) -> None:
    task, told = task_of(lazy, right=False), Told()
    with pytest.raises(NothingToCutError, match=r"not above that of the majority label .*--force") as refused:
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert study.AT_MAJORITY in [row["verdict"] for row in tried(refused.value)]
    assert no_checkpoint(tmp_path / "small")
    found = cut(lazy, task, budget=BUDGET, out=tmp_path / "small", force=True, progress=told)
    assert "does not beat" in found.warnings[0]
    assert found.warnings[0] in told.notes
    assert "## Warnings" in (found.folder / "README.md").read_text()


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_model_that_needs_every_block_is_refused_with_the_numbers(
    busy: Path, busy_task: TaskData, tmp_path: Path
) -> None:
    with pytest.raises(NothingToCutError, match=r"budget of 0.05: .*1.0000 to 0\.\d+ .*between -0\.\d+ and.*--budget"):
        cut(busy, busy_task, budget=BUDGET, out=tmp_path / "small")
    assert no_checkpoint(tmp_path / "small")


def test_a_refusal_shows_everything_that_was_tried(busy: Path, busy_task: TaskData, tmp_path: Path) -> None:
    with pytest.raises(NothingToCutError) as refused:
        cut(busy, busy_task, budget=BUDGET, out=tmp_path / "small")
    rows = tried(refused.value.where(lambda option: False))
    assert [row["blocks kept"] for row in rows] == ["1", "1-2", "1-3"]
    assert [row["verdict"] for row in rows] == [study.OVER_BUDGET] * 3
    assert list(rows[0]) == ["blocks kept", "accuracy", "change", "parameters", "time", "verdict"]
    assert rows[0]["parameters"] < rows[1]["parameters"] < rows[2]["parameters"]
    assert all(row["time"] > 0 for row in rows)


def test_a_cut_that_the_other_rows_do_not_confirm_is_refused_with_the_rows_it_takes(
    lazy: Path, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = study.loss_of

    def worse(*given: Any, **how: Any) -> Any:
        return replace(own(*given, **how), value=-0.02, low=-0.08, exact=False)

    monkeypatch.setattr(study, "loss_of", worse)
    # the lower end must come from 0.06 below the loss to 0.03: four times as many of the 80 rows, and as many to choose
    with pytest.raises(NothingToCutError, match=r"block 4, .*-0.0200 \(between -0.0800.*640 validation rows .* 160"):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert no_checkpoint(tmp_path / "small")


@pytest.mark.parametrize("blocks", ["top", "any"])
def test_a_refusal_keeps_what_was_read_for_a_larger_budget(
    busy: Path, busy_task: TaskData, tmp_path: Path, reads: Reads, blocks: str
) -> None:
    task, out, how = busy_task, tmp_path / "small", CutOptions(blocks=blocks)
    with pytest.raises(NothingToCutError):
        cut(busy, task, budget=BUDGET, out=out, options=how)
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "parts").glob("*.safetensors")}
    assert kept
    assert len(reads) >= len(task.validation)
    reads.texts.clear()
    with pytest.raises(NothingToCutError):
        cut(busy, task, budget=BUDGET, out=out, options=how)
    # the best cut of any blocks is run again, on the rows that took no part in the choice
    assert len(reads) <= (0 if blocks == "top" else len(task.validation) / 2)
    found = cut(busy, task, budget=0.9, out=out, options=replace(how, force=True))
    assert len(found.kept) < 4
    assert not (out / "parts").exists()


def test_a_larger_budget_reads_no_text_for_the_choice_again(
    busy: Path, busy_task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, out = busy_task, tmp_path / "small"
    with pytest.raises(NothingToCutError):
        cut(busy, task, budget=BUDGET, out=out)
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    assert cut(busy, task, budget=0.9, out=out, force=True).budget == 0.9
    assert not saved


def test_ctrl_c_keeps_what_was_read(
    lazy: Path, task: TaskData, done: Cut, tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any, **how: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study, "confirm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert no_checkpoint(tmp_path / "small")
    kept = list((tmp_path / "small" / "parts").glob("*.safetensors"))
    assert kept
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    again = cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert [name.partition("-")[0] for name in saved] == ["time"], "only what comes after the interrupt is made"
    assert (again.folder / "model.safetensors").read_bytes() == (done.folder / "model.safetensors").read_bytes()


def test_too_few_rows_for_the_budget_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"32 validation rows are too few.*about 598 rows in all"):
        cut(tmp_path / "nowhere", classification(32), budget=0.01, out=tmp_path / "small")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("much", "as a number, got 'much'"),
        ("nan", "as a number, got 'nan'"),
        (True, "as a number, got 'True'"),
        ("-0.1", "above 0 and below 1, got -0.1"),
        (0, "above 0 and below 1, got 0"),
        ("1", "above 0 and below 1, got 1"),
        ("inf", "above 0 and below 1, got inf"),
    ],
)
def test_a_budget_that_is_none_is_refused(text: Any, words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        parse_budget(text)


def test_budgets_are_read() -> None:
    assert parse_budget(" 1e-2 ") == parse_budget(0.01) == 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CutOptions(seed=-1), "--seed of at least 0"),
        (CutOptions(confidence=1.0), "--confidence above 0.5 and below 1, got 1"),
        (CutOptions(batch_tokens=0), "--batch-tokens of at least 1, got 0"),
        (CutOptions(keep=0), "--keep of at least 1, got 0"),
        (CutOptions(blocks="tpo"), "unknown choice of blocks 'tpo'; did you mean 'top'"),
        (CutOptions(blocks="any", head=True), "leave out --head or --blocks any"),
        (CutOptions(keep=4), "has 4 blocks and 4 must stay: there is nothing to cut"),
    ],
)
def test_options_that_cannot_work_are_refused(
    lazy: Path, task: TaskData, tmp_path: Path, options: CutOptions, words: str
) -> None:
    with pytest.raises(StratoscopeError, match=re.escape(words)):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small", options=options)
    assert no_checkpoint(tmp_path / "small")


def test_a_head_of_another_size_is_refused(lazy: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"has 2 labels .*, rated needs 1 label"):
        cut(lazy, regression(160), budget=BUDGET, out=tmp_path / "small")


def test_a_folder_that_is_not_free_is_refused(lazy: Path, task: TaskData, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StratoscopeError, match="no run of stratoscope made"):
        cut(lazy, task, budget=BUDGET, out=tmp_path)
    with pytest.raises(StratoscopeError, match="is a file; give a folder"):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "file")
    with pytest.raises(
        StratoscopeError, match="no run of stratoscope made"
    ):  # nor does it take the place of what it cuts
        cut(lazy, task, budget=BUDGET, out=lazy, options=CutOptions(overwrite=True))
    with (
        RunFolder.open(tmp_path / "small"),
        pytest.raises(StratoscopeError, match="in use by another run"),
    ):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")


def test_an_architecture_without_a_standard_form_of_any_cut_is_refused(
    lazy: Path, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: Any, blocks: Any) -> Any:
        raise StratoscopeError("no standard checkpoint of 'gpt2' holds this cut")

    monkeypatch.setattr(study, "exported", refuse)
    with pytest.raises(StratoscopeError, match="no standard checkpoint"):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")


# --- what goes wrong in writing --------------------------------------------------------------------------------------


def test_a_model_other_than_the_one_judged_is_not_written(
    lazy: Path, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "exported", lambda model, blocks: surgery.exported(model, (1,)))
    with pytest.raises(StratoscopeError, match="from those it was judged by, so it is not written"):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert no_checkpoint(tmp_path / "small")


def test_a_checkpoint_that_reloads_otherwise_is_not_put_in_place(
    lazy: Path, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = transformers.GPT2ForSequenceClassification.save_pretrained

    def spoilt(model: Any, folder: Any, **how: Any) -> None:
        before = model.score.weight.data
        model.score.weight.data = before + 1e-3
        own(model, folder, **how)
        model.score.weight.data = before

    monkeypatch.setattr(transformers.GPT2ForSequenceClassification, "save_pretrained", spoilt)
    with pytest.raises(StratoscopeError, match=r"score\.weight"):
        cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert no_checkpoint(tmp_path / "small")


def _killed(lazy: Path, task: TaskData, out: Path) -> None:
    torch.set_num_threads(1)
    cut_files.check_reload = lambda *given, **how: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    cut(lazy, task, budget=BUDGET, out=out)


def test_killed_between_writing_and_verifying_leaves_no_result_and_the_next_run_ends_well(
    lazy: Path, task: TaskData, done: Cut, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(lazy, task, out))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (out / "parts" / "checkpoint" / "model.safetensors").is_file()
    assert no_checkpoint(out)
    again = cut(lazy, task, budget=BUDGET, out=out)
    assert {p.name for p in out.iterdir()} == {p.name for p in done.folder.iterdir()}
    assert (again.folder / "model.safetensors").read_bytes() == (done.folder / "model.safetensors").read_bytes()


def test_a_run_that_ends_while_files_are_moved_is_made_again(
    lazy: Path, task: TaskData, done: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files are in place and some are not; without `cut.json` nothing counts as finished."""
    moved: list[Path] = []

    def move(file: Path, target: Path) -> None:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(target)
        os.replace(file, target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "os", SimpleNamespace(replace=move))
        with pytest.raises(KeyboardInterrupt):
            cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert len(moved) == 2
    assert not (tmp_path / "small" / "cut.json").exists()
    again = cut(lazy, task, budget=BUDGET, out=tmp_path / "small")
    assert {p.name for p in again.folder.iterdir()} == {p.name for p in done.folder.iterdir()}
    assert (again.folder / "model.safetensors").read_bytes() == (done.folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_checkpoint_is_made_again(lazy: Path, task: TaskData, done: Cut, tmp_path: Path, damage: str) -> None:
    copy, told = tmp_path / "small", Told()
    shutil.copytree(done.folder, copy)
    whole = (copy / damage).read_bytes()
    (copy / damage).write_bytes(whole[:-3] + b"  }")
    again = cut(lazy, task, budget=BUDGET, out=copy, progress=told)
    assert any("is damaged and is made again" in note for note in told.notes)
    assert (copy / damage).read_bytes() == whole
    assert again.kept == done.kept


def test_overwriting_leaves_no_stale_shard(
    lazy: Path, task: TaskData, done: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut in several files gives way to one in a single file: plain transformers must not find the old ones."""
    copy = tmp_path / "small"
    own = transformers.GPT2ForSequenceClassification.save_pretrained
    with monkeypatch.context() as patch:
        patch.setattr(
            transformers.GPT2ForSequenceClassification,
            "save_pretrained",
            lambda model, folder, **how: own(model, folder, max_shard_size="20KB", **how),
        )
        first = cut(lazy, task, budget=BUDGET, out=copy, options=CutOptions(keep=3))
    assert (first.kept, len(list(copy.glob("model-*.safetensors"))) > 1) == ((1, 2, 3), True)
    assert (copy / "model.safetensors.index.json").is_file()
    second = cut(lazy, task, budget=BUDGET, out=copy, options=CutOptions(overwrite=True))
    assert second.kept == (1, 2)
    assert {p.name for p in copy.iterdir()} == {p.name for p in done.folder.iterdir()}
    texts = [e.texts[0][0] for e in task.validation[:20]]
    np.testing.assert_allclose(answers(copy, texts), answers(lazy, texts), atol=1e-5)


def test_the_checkpoint_was_reloaded_with_plain_transformers(done: Cut) -> None:
    assert done.reload["rows"] == cut_files.RELOADED
    assert done.reload["apart"] < 1e-5
    assert done.reload["weights"] == cut_files.weights_of(done.folder)


def test_damaged_and_missing_records_are_said_to_be(done: Cut, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"no cut.json in .*; run 'stratoscope cut"):
        Cut.load(tmp_path)
    record = json.loads((done.folder / "cut.json").read_text())
    (tmp_path / "cut.json").write_text(json.dumps(record | {"budget": 1}))
    with pytest.raises(StratoscopeError, match="checksum does not match"):
        Cut.load(tmp_path)
    (tmp_path / "cut.json").write_text(json.dumps(record | {"format": 9}))
    with pytest.raises(StratoscopeError, match="'cut' of format 9"):
        Cut.load(tmp_path)
