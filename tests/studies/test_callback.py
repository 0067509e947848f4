from __future__ import annotations

import json
import sys
import types
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import slow_reference as plain
import torch
from toys import TOPICS, verdicts
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import stratoscope as ss
import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.studies import callback as module
from stratoscope.studies.callback import StratoscopeCallback, drift, read_drift

TEXTS = tiny.SENTENCES


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint("bert", tmp_path_factory.mktemp("watched") / "base", head="classification")


def train(
    base: Path,
    out: Path,
    *callbacks: StratoscopeCallback,
    steps: int = 6,
    save: int | None = None,
    resume: bool = False,
    tokenizer: bool = True,
) -> Any:
    """A user's own Trainer, as in any tutorial; returns its model."""
    tokens = AutoTokenizer.from_pretrained(base)
    rows = [{**tokens(e.texts[0][0]), "labels": int(e.label)} for e in verdicts(16, 0)]
    arguments = TrainingArguments(
        str(out), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-3, report_to="none",
        disable_tqdm=True, use_cpu=True, save_strategy="steps" if save else "no", save_steps=save or 500,
        logging_strategy="no",
    )  # fmt: skip
    state = torch.get_rng_state()
    try:
        trainer = Trainer(
            AutoModelForSequenceClassification.from_pretrained(base),
            arguments,
            train_dataset=rows,  # type: ignore[arg-type]
            data_collator=lambda batch: tokens.pad(batch, return_tensors="pt"),
            processing_class=tokens if tokenizer else None,
            callbacks=list(callbacks),
        )
        trainer.train(resume_from_checkpoint=resume)
    finally:
        torch.set_rng_state(state)
    return trainer.model


@pytest.mark.parametrize("unit", ["mean", "cls"])
def test_drift_is_the_similarity_of_the_same_rows_before_and_after(base: Path, tmp_path: Path, unit: str) -> None:
    watch = StratoscopeCallback(tmp_path / "watch", texts=TEXTS, every=3, unit=unit)
    tuned = train(base, tmp_path / "out", watch)
    tuned.save_pretrained(tmp_path / "tuned")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "tuned")
    records = read_drift(tmp_path / "watch")
    assert [r["step"] for r in records] == [3, 6]
    before, after = (plain.activations(f, TEXTS, unit) for f in (base, tmp_path / "tuned"))
    for name in ("ckasim", "ckasim-debiased"):
        got = records[-1][name]
        assert len(got) == tiny.LAYERS + 1
        for k, (x, y) in enumerate(zip(before, after, strict=True)):
            if unit == "cls" and k == 0:
                assert got[0] is None, "the embedding of [CLS] is the same in every sentence"
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ten rows are few
                assert got[k] == pytest.approx(1 - ss.similarity(x, y, name), abs=2e-5)
    assert records[-1]["ckasim"][-1] > 0.001 > records[-1]["ckasim"][1 if unit == "cls" else 0] - 0.1
    assert (records[-1]["rows"], records[-1]["unit"]) == (len(TEXTS), unit)


def test_training_is_not_touched(base: Path, tmp_path: Path) -> None:
    alone = train(base, tmp_path / "a").state_dict()
    watched = train(base, tmp_path / "b", StratoscopeCallback(tmp_path / "w", texts=TEXTS, every=1)).state_dict()
    assert all(torch.equal(alone[k], watched[k]) for k in alone)


def test_a_model_that_has_not_moved_has_not_drifted() -> None:
    rows = [torch.randn(12, 5, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    same = drift(rows, rows)
    assert same["ckasim"] == pytest.approx([0, 0], abs=1e-6)
    assert same["ckasim-debiased"] == pytest.approx([0, 0], abs=1e-6)
    assert drift(rows, rows[::-1])["ckasim"][0] > 0.1
    assert drift([torch.ones(12, 5)], rows[:1]) == {"ckasim": [None], "ckasim-debiased": [None]}


class Clock:
    """Time that passes only where the test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("cost", "step", "length", "fewest"),
    [(1.0, 1.0, 200, 7), (0.2, 0.5, 200, 7), (3.0, 0.1, 200, 7), (1.8, 0.3, 66, 2)],
)
def test_left_to_itself_it_stays_below_five_percent(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cost: float,
    step: float,
    length: int,
    fewest: int,
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    watch = StratoscopeCallback(tmp_path, texts=TEXTS, tokenizer=AutoTokenizer.from_pretrained(base))
    model = AutoModelForSequenceClassification.from_pretrained(base)
    read = watch._read

    def slow(loaded: Any) -> Any:
        clock.now += cost
        return read(loaded)

    monkeypatch.setattr(watch, "_read", slow)
    steps = int(length * cost / step)
    state = types.SimpleNamespace(global_step=0, epoch=0.0, is_world_process_zero=True, max_steps=steps)
    watch.on_train_begin(None, state, None, model=model)
    for state.global_step in range(1, steps + 1):
        clock.now += step
        watch.on_step_end(None, state, None, model=model)
    watch.on_train_end(None, state, None, model=model)
    assert watch.share <= 0.05
    recorded = [r["step"] for r in read_drift(tmp_path)]
    assert fewest <= len(recorded) <= fewest + 3, "and it uses what it may: start and records are 5 % of the time"
    assert recorded[0] <= 0.1 * steps, "the first record is early"
    assert recorded[-1] == steps
    gaps = [b - a for a, b in pairwise(recorded)]
    assert max(gaps) <= 2.5 * min(gaps), "and the others are spread"


def test_a_run_too_short_to_watch_says_so(base: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"too short to record drift at less than 5% of it; give every=N"):
        train(base, tmp_path / "out", StratoscopeCallback(tmp_path / "w", texts=TEXTS), steps=2)
    assert read_drift(tmp_path / "w") == []


def test_a_run_that_goes_on_compares_with_the_very_start(base: Path, tmp_path: Path) -> None:
    def watch(folder: str) -> StratoscopeCallback:
        return StratoscopeCallback(tmp_path / folder, texts=TEXTS, every=2)

    train(base, tmp_path / "whole", watch("w"), save=4)
    whole = read_drift(tmp_path / "w")
    assert [r["step"] for r in whole] == [2, 4, 6]
    # the killed run had gone further than its last checkpoint, and died in the middle of a line
    path = tmp_path / "w" / module.DRIFT
    last = path.read_text().splitlines()[-1]
    path.write_text(path.read_text() + last.replace('"step": 6', '"step": 7') + '\n{"step": 8, "ckas')
    assert [r["step"] for r in read_drift(tmp_path / "w")] == [2, 4, 6, 7]
    (tmp_path / "whole" / "checkpoint-6").rename(tmp_path / "gone")
    train(base, tmp_path / "whole", watch("w"), resume=True)
    assert read_drift(tmp_path / "w") == whole
    with pytest.raises(StratoscopeError, match=r"resumes from step 4, but .*start\.safetensors does not hold these te"):
        train(base, tmp_path / "whole", watch("elsewhere"), resume=True)
    named = StratoscopeCallback(tmp_path / "n", texts=TEXTS, every=2, base=base)
    train(base, tmp_path / "whole", named, resume=True)
    assert read_drift(tmp_path / "n")[0]["ckasim"] == pytest.approx(whole[-1]["ckasim"])


def test_a_new_run_starts_a_new_record(base: Path, tmp_path: Path) -> None:
    for steps in (4, 2):
        train(base, tmp_path / "out", StratoscopeCallback(tmp_path / "w", texts=TEXTS, every=2), steps=steps)
    assert [r["step"] for r in read_drift(tmp_path / "w")] == [2]


def test_rows_are_limited_for_every_unit(base: Path, tmp_path: Path) -> None:
    many = [f"the {topic} is number {k}" for k in range(40) for topic in TOPICS]
    for unit in ("mean", "word"):
        watch = StratoscopeCallback(tmp_path / unit, texts=many, every=1, unit=unit, rows=50)
        train(base, tmp_path / "out", watch, steps=1)
        assert read_drift(tmp_path / unit)[0]["rows"] == 50


def test_points_go_to_tensorboard_where_it_is_installed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: Path) -> None:
            assert folder == tmp_path / "w" / "tensorboard"

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: name == "tensorboard" or None)
    train(base, tmp_path / "out", StratoscopeCallback(tmp_path / "w", texts=TEXTS, every=1, unit="cls"), steps=1)
    (record,) = read_drift(tmp_path / "w")
    expected = [
        (f"stratoscope/{name}/layer-{k:02d}", record[name][k], 1)
        for name in ("ckasim", "ckasim-debiased")
        for k in range(1, tiny.LAYERS + 1)
    ]
    assert written == [*expected, ("closed", 0, 0)]


def test_lines_are_json_that_any_reader_takes(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "o", StratoscopeCallback(tmp_path, texts=TEXTS, every=1, unit="cls"), steps=1)
    (line,) = (tmp_path / "drift.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {"step", "epoch", "rows", "unit", "ckasim", "ckasim-debiased"}
    assert "NaN" not in line


def test_what_it_cannot_do_is_said(base: Path, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="expected every of at least 1, got 0"):
        StratoscopeCallback(tmp_path, texts=TEXTS, every=0)
    with pytest.raises(StratoscopeError, match="expected rows of at least 4, got 2"):
        StratoscopeCallback(tmp_path, texts=TEXTS, rows=2)
    with pytest.raises(StratoscopeError, match="unknown unit 'sentence'"):
        StratoscopeCallback(tmp_path, texts=TEXTS, unit="sentence")
    with pytest.raises(StratoscopeError, match="expected at least 4 rows to compare, got 2; give more text"):
        train(base, tmp_path / "o", StratoscopeCallback(tmp_path / "w", texts=TEXTS[:2]))
    with pytest.raises(StratoscopeError, match="needs a fast tokenizer; give the Trainer a processing_class or the"):
        train(base, tmp_path / "o", StratoscopeCallback(tmp_path / "w", texts=TEXTS), tokenizer=False)
    shallow = tiny.checkpoint("bert", tmp_path / "shallow", layers=2)
    with pytest.raises(StratoscopeError, match="expected a base of 3 blocks, as many as are in training, got 2 in 'sh"):
        train(base, tmp_path / "o", StratoscopeCallback(tmp_path / "w", texts=TEXTS, base=shallow))
    with pytest.raises(StratoscopeError, match=r"no drift\.jsonl in"):
        read_drift(tmp_path)
