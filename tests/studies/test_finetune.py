from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toys import LEARN, KilledError, Reads, Told, choices, classification, killing, plain, regression, verdicts

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Value
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec
from stratoscope.models.text.examples import Inputs
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.finetune.options import FinetuneOptions
from stratoscope.studies.finetune.study import TRAINING, finetune

WEIGHTS = "model.safetensors"
BRIEF = FinetuneOptions(recipe="wu2020", lr=1e-3, max_steps=10, batch=8, warmup=0.1, checkpoint_steps=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with dropout, so that training draws random numbers at every step."""
    return tiny.checkpoint("bert", tmp_path_factory.mktemp("noisy") / "base")


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    """The run that others are killed in."""
    return finetune(base, classification(), out=tmp_path_factory.mktemp("whole"), options=BRIEF)[0]


def weights(found: Finetuned) -> bytes:
    return (found.folder / WEIGHTS).read_bytes()


def lasting(found: Finetuned) -> dict[str, Any]:
    """The record without what may differ between two runs of one request: the time they took, and what was said."""
    record: dict[str, Any] = plain(replace(found, seconds=0.0))
    record["provenance"]["request"].pop("said")
    return record


def plain_scores(folder: Path, task: TaskData, head: str = "AutoModelForSequenceClassification") -> np.ndarray:
    """Scores by plain transformers, one example at a time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, head).from_pretrained(folder).eval()
    scores = []
    for example in task.validation:
        first, second = [t for t, _ in example.texts], [p for _, p in example.texts]
        inputs = tokenizer(first, second if second[0] else None, padding=True, return_tensors="pt")
        if len(first) > 1:
            inputs = {k: v[None] for k, v in inputs.items()}
        with torch.no_grad():
            scores.append(model(**inputs).logits[0].numpy())
    return np.stack(scores)


# --- learning --------------------------------------------------------------------------------------------------------


def test_a_separable_task_is_learnt_and_the_checkpoint_is_standard(
    calm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = classification()
    capfd.readouterr()
    (found,) = finetune(calm, task, out=tmp_path / "out", options=LEARN)
    assert capfd.readouterr() == ("", "")
    assert found.score == Value(1.0, 1.0, 1.0)
    assert found.folder == tmp_path / "out" / "seed-0"
    assert (plain_scores(found.folder, task).argmax(1) == task.targets("validation")).all()
    config = json.loads((found.folder / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["architectures"] == ["BertForSequenceClassification"]
    names = {p.name for p in found.folder.iterdir()}
    assert names == {
        ".lock", "config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json", "finetune.json", "run.yaml",
    }  # fmt: skip
    assert json.loads((found.folder / "tokenizer.json").read_text())["truncation"] is None


def test_the_record_says_how_the_model_was_made(learnt: tuple[Finetuned, ...]) -> None:
    found, task = learnt[0], classification()
    assert plain(Finetuned.load(found.folder)) == plain(found)
    recipe = {k: found.recipe[k] for k in ("name", "lr", "batch", "epochs", "steps", "warmup", "length")}
    assert recipe == {
        "name": "quick", "lr": 3e-3, "batch": 8, "epochs": 10, "steps": 40, "warmup": 4, "length": 24,
    }  # fmt: skip
    assert found.baselines == {"majority": 0.5, "bag_of_words": 1.0}
    assert (found.metric, found.score, found.parts) == ("accuracy", Value(1.0, 1.0, 1.0), {"accuracy": 1.0})
    assert (found.seed, found.head, found.parameters["frozen"]) == (0, "fresh", 0)
    assert found.task["fingerprint"] == task.fingerprint
    assert [step for step, _ in found.early["scores"]] == [10, 20, 30]
    losses = [loss for _, loss in found.loss]
    assert losses[0] > 0.4 > 0.1 > losses[-1]
    assert found.seconds > 0
    assert {"torch", "transformers", "python"} <= set(found.provenance["versions"])
    assert found.pruned is None


def test_regression_learns_a_number(calm: Path, tmp_path: Path) -> None:
    task = regression()
    (found,) = finetune(calm, task, out=tmp_path, options=LEARN)
    assert found.metric == "correlation"
    assert found.score.value > 0.9
    scores = plain_scores(found.folder, task)
    assert scores.shape == (32, 1)
    assert np.abs(scores[:, 0] - task.targets("validation")).mean() < 1  # on the scale of the targets, 0.5 and 4.5
    assert json.loads((found.folder / "config.json").read_text())["problem_type"] == "regression"


def test_multiple_choice_learns_which_ending_fits(calm: Path, tmp_path: Path) -> None:
    task = choices()
    (found,) = finetune(calm, task, out=tmp_path, options=LEARN)
    assert found.score.value == 1.0
    scores = plain_scores(found.folder, task, "AutoModelForMultipleChoice")
    assert (scores.argmax(1) == task.targets("validation")).all()


def test_a_decoder_without_padding_token_gets_one(tmp_path: Path) -> None:
    task = classification()
    gpt2 = tiny.checkpoint("gpt2", tmp_path / "gpt2")
    (found,) = finetune(gpt2, task, out=tmp_path / "out", options=BRIEF)
    config = json.loads((found.folder / "config.json").read_text())
    tokens = tiny.tokenizer("gpt2")
    assert config["pad_token_id"] == tokens.eos_token_id
    assert config.get("use_cache", True) is True
    scores = plain_scores(found.folder, task)
    assert (scores.argmax(1) == task.targets("validation")).mean() == found.score.value


def test_random_weights_can_be_trained_as_a_control(calm: Path, tmp_path: Path) -> None:
    spec = ModelSpec(str(calm), random_init=True, seed=5)
    (found,) = finetune(spec, classification(), out=tmp_path, options=replace(BRIEF, freeze="bottom:3"))
    import transformers

    torch.manual_seed(5)
    drawn = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(calm)).state_dict()
    stored = load_file(found.folder / WEIGHTS)
    assert torch.equal(stored["bert.encoder.layer.0.output.dense.weight"], drawn["encoder.layer.0.output.dense.weight"])
    assert found.base["random_init"] is True


def test_a_model_below_the_simple_baselines_is_told(base: Path, tmp_path: Path) -> None:
    told = Told()
    finetune(base, classification(), out=tmp_path, options=replace(BRIEF, max_steps=1, warmup=0), progress=told)
    assert any(re.search(r"accuracy 0\.\d+ does not beat the simple baselines \(1\.000\)", n) for n in told.notes)


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_differ_and_repeat(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    zero, one = finetune(base, classification(), out=tmp_path / "two", options=replace(BRIEF, seeds=2))
    (again,) = finetune(base, classification(), out=tmp_path / "one", options=replace(BRIEF, first_seed=1))
    assert [zero.seed, one.seed, again.folder.name] == [0, 1, "seed-1"]
    assert weights(one) == weights(again)
    assert weights(zero) == weights(whole)
    a, b = load_file(zero.folder / WEIGHTS), load_file(one.folder / WEIGHTS)
    assert all(not torch.equal(a[k], b[k]) for k in ("classifier.weight", "bert.encoder.layer.0.output.dense.weight"))


def test_each_seed_reads_the_examples_in_its_own_order(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []
    batch = Inputs.batch

    def spy(self: Inputs, rows: Any) -> Any:
        read.append(list(rows))
        return batch(self, rows)

    monkeypatch.setattr(Inputs, "batch", spy)
    options = replace(BRIEF, epochs=2, max_steps=None, warmup=0)
    orders = []
    for seed in (0, 1):
        read.clear()
        finetune(base, classification(), out=tmp_path, options=replace(options, first_seed=seed))
        batches = [rows for rows in read if len(rows) == options.batch]
        orders.append([[row for rows in part for row in rows] for part in (batches[:4], batches[4:8])])
    assert all(sorted(epoch) == list(range(32)) for order in orders for epoch in order)
    (first, second), other = orders[0], orders[1][0]
    assert first != second
    assert first != other


def test_the_callers_generators_are_left_alone(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(11)
    np.random.seed(12)
    random.seed(13)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    finetune(base, classification(), out=tmp_path, options=replace(BRIEF, max_steps=2, warmup=0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


# --- freezing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freeze", "held"),
    [
        ("bottom:2", r"bert\.(embeddings|encoder\.layer\.[01])\."),
        ("bottom:0", r"bert\.embeddings\."),
        ("top:1", r"bert\.encoder\.layer\.2\."),
    ],
)
def test_frozen_parameters_are_bit_identical_and_the_others_move(
    base: Path, tmp_path: Path, freeze: str, held: str
) -> None:
    (found,) = finetune(base, classification(), out=tmp_path, options=replace(BRIEF, freeze=freeze))
    before = {f"bert.{k}": v for k, v in load_file(base / WEIGHTS).items()}
    after = load_file(found.folder / WEIGHTS)
    # keys' biases shift all of a row's logits alike: their gradient is rounding only, and may be exactly 0
    moved = {k for k, v in before.items() if not torch.equal(v, after[k]) or "key.bias" in k}
    unused = {"bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"}
    frozen = {k for k in before if re.match(held, k)}
    assert moved & frozen <= {k for k in frozen if "key.bias" in k}
    assert all(torch.equal(before[k], after[k]) for k in frozen)
    assert set(before) - frozen - unused <= moved
    assert found.parameters["frozen"] == sum(before[k].numel() for k in frozen)


# --- killed and resumed -----------------------------------------------------------------------------------------------


def killed_at(step: int, base: Path, out: Path, options: FinetuneOptions) -> None:
    """Run in a child that kills itself without warning after so many steps."""

    def die(done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        finetune(base, classification(), out=out, options=options, progress=Told(at=die))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


def checkpoint_steps(out: Path) -> list[int]:
    return sorted(int(p.name.rpartition("-")[2]) for p in (out / "seed-0" / "parts" / TRAINING).glob("*/checkpoint-*"))


@pytest.mark.parametrize(("every", "at"), [(3, 5), (4, 6)], ids=["inside an epoch", "at the end of an epoch"])
def test_a_killed_run_ends_as_if_it_had_not_been(
    base: Path, whole: Finetuned, tmp_path: Path, every: int, at: int
) -> None:
    options = replace(BRIEF, checkpoint_steps=every)
    killed_at(at, base, tmp_path, options)
    last = max(checkpoint_steps(tmp_path))
    told = Told()
    (found,) = finetune(base, classification(), out=tmp_path, options=options, progress=told)
    assert any(f"from step {last} of 10" in note for note in told.notes)
    assert weights(found) == weights(whole)
    assert lasting(found) == lasting(whole)
    assert not (found.folder / "parts").exists()


def test_a_killed_run_with_grouped_batches_goes_on_among_the_same_rows(base: Path, tmp_path: Path) -> None:
    options = replace(BRIEF, recipe="quick")
    (whole,) = finetune(base, classification(), out=tmp_path / "whole", options=options)
    killed_at(8, base, tmp_path / "killed", options)
    (found,) = finetune(base, classification(), out=tmp_path / "killed", options=options)
    assert whole.recipe["grouped"]
    assert weights(found) == weights(whole)
    assert lasting(found) == lasting(whole)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    killed_at(8, base, tmp_path, BRIEF)
    assert checkpoint_steps(tmp_path) == [3, 6]
    (optimizer,) = tmp_path.glob(f"seed-0/parts/{TRAINING}/*/checkpoint-6/optimizer.pt")
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    told = Told()
    (found,) = finetune(base, classification(), out=tmp_path, options=BRIEF, progress=told)
    assert any("from step 3 of 10" in n for n in told.notes)
    assert weights(found) == weights(whole)


def test_checkpoints_of_another_request_are_not_picked_up(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    killed_at(8, base, tmp_path, replace(BRIEF, lr=5e-3))
    assert checkpoint_steps(tmp_path) == [3, 6]
    told = Told()
    (found,) = finetune(base, classification(), out=tmp_path, options=BRIEF, progress=told)
    assert not any("from step" in n for n in told.notes)
    assert weights(found) == weights(whole)


@pytest.mark.parametrize("damage", [WEIGHTS, "config.json", "finetune.json"])
def test_a_damaged_model_is_made_again(base: Path, whole: Finetuned, tmp_path: Path, damage: str) -> None:
    shutil.copytree(whole.folder, tmp_path / "seed-0")
    path, told = tmp_path / "seed-0" / damage, Told()
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    (again,) = finetune(base, classification(), out=tmp_path, options=BRIEF, progress=told)
    assert any("damaged and is made again" in note for note in told.notes)
    assert weights(again) == weights(whole)
    assert lasting(again) == lasting(whole)
    assert plain(Finetuned.load(tmp_path / "seed-0")) == plain(again)


def test_a_model_without_its_weights_is_made_again(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "seed-0")
    (tmp_path / "seed-0" / WEIGHTS).unlink()
    (again,) = finetune(base, classification(), out=tmp_path, options=BRIEF)
    assert weights(again) == weights(whole)


def test_another_model_is_overwritten_only_when_asked(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    (first,) = finetune(base, classification(), out=tmp_path, options=replace(BRIEF, lr=5e-3))
    with pytest.raises(StratoscopeError, match=r"holds another result: lr \(0.005, now 0.001\).*--overwrite"):
        finetune(base, classification(), out=tmp_path, options=BRIEF)
    assert plain(Finetuned.load(first.folder)) == plain(first)
    (second,) = finetune(base, classification(), out=tmp_path, options=replace(BRIEF, overwrite=True))
    assert weights(second) == weights(whole)


def test_other_seeds_do_not_disturb_one_another(base: Path, whole: Finetuned, reads: Reads, tmp_path: Path) -> None:
    """One seed is finished and one was killed when both are asked for."""
    shutil.copytree(whole.folder, tmp_path / "seed-0")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "seed-0").iterdir()}
    second = replace(BRIEF, first_seed=1)
    with pytest.raises(KilledError):
        finetune(base, classification(), out=tmp_path, options=second, progress=killing("fine-tuning", 8))
    reads.texts.clear()
    told = Told()
    zero, one = finetune(base, classification(), out=tmp_path, options=replace(BRIEF, seeds=2), progress=told)
    assert [any(words in n for n in told.notes) for words in ("nothing to do", "from step 6 of 10")] == [True, True]
    after = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "seed-0").iterdir()}
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"run.yaml"}
    assert after["run.yaml"][0] == before["run.yaml"][0]
    assert (zero.seed, one.seed) == (0, 1)
    assert weights(one) != weights(zero)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(base: Path, tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "seed-0"), pytest.raises(StratoscopeError, match="is in use by another run"):
        finetune(base, classification(), out=tmp_path, options=BRIEF)


def test_a_folder_no_run_made_is_not_written_to(base: Path, tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / WEIGHTS).write_text("mine")
    with pytest.raises(StratoscopeError, match=r"seed-0 .*no run of stratoscope made"):
        finetune(base, classification(), out=tmp_path, options=replace(BRIEF, overwrite=True))
    assert (tmp_path / "seed-0" / WEIGHTS).read_text() == "mine"
    with pytest.raises(StratoscopeError, match="--out, got an empty name"):
        finetune(base, classification(), out="", options=BRIEF)


def test_a_loss_that_is_no_number_stops_the_run(base: Path, tmp_path: Path) -> None:
    with pytest.raises(
        StratoscopeError, match=r"the loss is not a number at step \d+; give a lower --lr \(it was 1e\+"
    ):
        finetune(base, classification(), out=tmp_path, options=replace(BRIEF, lr=1e20, warmup=0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(BRIEF, freeze="bottom:4"), "cannot freeze 4 blocks of a model that has 3; freeze at most 3"),
        (replace(BRIEF, warmup=10), "expected fewer warm-up steps than the run's 10, got 10"),
        (replace(BRIEF, length=200), "expected --length of at most 128, the tokens 'base' reads; got 200"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_training(
    base: Path, tmp_path: Path, options: FinetuneOptions, words: str
) -> None:
    with pytest.raises(StratoscopeError, match=words):
        finetune(base, classification(), out=tmp_path, options=options)


def test_rows_that_do_not_fit_the_task_are_refused(base: Path, tmp_path: Path) -> None:
    task = classification()
    pairs = replace(task, train=verdicts(8, 0, pair=True))
    with pytest.raises(StratoscopeError, match="toy is a single-sentence task, but its example 1 has a second text"):
        finetune(base, pairs, out=tmp_path, options=BRIEF)
    with pytest.raises(StratoscopeError, match="8 rows all labelled 'bad'; give rows of at least two classes"):
        replace(task, train=task.train[::2][:8])


def test_narrow_floats_need_a_device_that_has_them(base: Path, tmp_path: Path) -> None:
    spec = ModelSpec(str(base), dtype="float16", device="cpu")
    with pytest.raises(StratoscopeError, match="training in float16 needs a CUDA device, got 'cpu'; give --dtype"):
        finetune(spec, classification(), out=tmp_path, options=BRIEF)


def test_bfloat16_products_leave_the_weights_float32(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    spec = ModelSpec(str(base), dtype="bfloat16", device="cpu")
    (found,) = finetune(spec, classification(), out=tmp_path, options=replace(BRIEF, max_steps=2, warmup=0))
    assert {v.dtype for v in load_file(found.folder / WEIGHTS).values()} == {torch.float32}


def test_a_record_that_is_missing_or_damaged_is_said(tmp_path: Path, whole: Finetuned) -> None:
    with pytest.raises(StratoscopeError, match=r"no finetune\.json in"):
        Finetuned.load(tmp_path)
    text = (whole.folder / "finetune.json").read_text()
    (tmp_path / "finetune.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StratoscopeError, match=r"finetune\.json is damaged .*checksum"):
        Finetuned.load(tmp_path)
    (tmp_path / "finetune.json").write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(StratoscopeError, match="'finetuned' of format 3, this version reads 'finetuned' of format 2"):
        Finetuned.load(tmp_path)


def test_texts_that_are_truncated_are_counted(base: Path, tmp_path: Path) -> None:
    told = Told()
    (found,) = finetune(base, classification(), out=tmp_path, options=replace(BRIEF, length=8), progress=told)
    assert found.task["truncated"] > 0
    assert any(f"{found.task['truncated']} texts of toy are longer than 8 tokens" in n for n in told.notes)
