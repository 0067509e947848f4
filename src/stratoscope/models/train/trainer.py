"""Train a model with transformers' Trainer so that a killed run resumes as if nothing had happened."""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import canonical_json, digest, disk_errors, file_sha256, write_text
from stratoscope.core.progress import Progress
from stratoscope.models.open.guard import quiet
from stratoscope.models.text.examples import Inputs

SEAL = "stratoscope.json"
"""Written last into a checkpoint: one without it, or whose files do not match it, does not exist for us."""
CHECKPOINT_SECONDS = 60.0
CHECKPOINT_SHARE = 0.05
"""Share of the time that writing checkpoints may take."""
GROUPED = 32
"""Batches whose rows are sorted by length together; among so many, a row still meets others than its neighbours."""
PRECISIONS = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True)
class Schedule:
    """How to train; the learning rate rises over `warmup` steps and then falls linearly to 0."""

    lr: float
    batch: int
    steps: int
    warmup: int
    epsilon: float
    clip: float = 1.0
    """Largest norm of the gradient."""
    grouped: bool = False
    """Whether a batch holds texts of about one length, so that little of it is padding."""


@dataclass(frozen=True)
class Setup:
    """Where and under which name a training runs."""

    folder: Path
    """Checkpoints live here; the caller removes it when the result is safe."""
    request: str
    """Digest of everything the result depends on; checkpoints of another request are never picked up."""
    label: str
    progress: Progress
    device: torch.device
    precision: str = "float32"
    """Weights are float32; with `bfloat16` or `float16` products are computed in it (autocast)."""
    seed: int = 0
    checkpoint_steps: int | None = None
    """Steps between checkpoints; None = about every minute, and never more than 5 % of the time."""
    early: tuple[str, Callable[[], float]] | None = None
    """Scores the model on the way; what the score is, and how to get it."""
    early_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trained:
    """What happened on the way."""

    losses: tuple[float, ...]
    """(steps,) training loss of every step."""
    early: tuple[tuple[int, float], ...]
    """(step, score) of the evaluations on the way."""
    seconds: float
    """Of all attempts together, without what was lost by a kill."""
    resumed: int
    """Step at which this attempt began."""


def train_(module: Any, inputs: Inputs, schedule: Schedule, setup: Setup) -> Trained:
    """Train `module` in place; only parameters that require a gradient change. Global generators stay untouched."""
    _check_device(setup)
    place = setup.folder / digest([setup.request, version("torch"), version("transformers"), setup.device.type])
    start = _last_sealed(place)
    keeper = _Keeper(setup, lr=schedule.lr, before=0.0 if start is None else float(_sealed(start)["seconds"]))
    use_cache = getattr(module.config, "use_cache", None)
    rows = grouped_order(inputs.lengths, schedule, setup.seed) if schedule.grouped else range(len(inputs))
    with isolated_seeds(setup.device), quiet(), disk_errors(setup.folder):
        how: dict[str, Any] = {"args": _arguments(schedule, setup, place), "callbacks": [keeper]}
        trainer = Trainer(module, data_collator=inputs.batch, train_dataset=rows, **how)
        trainer.remove_callback(PrinterCallback)
        with setup.progress.step(setup.label, schedule.steps) as keeper.advance:
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
        history = trainer.state.log_history
    if use_cache is not None:
        module.config.use_cache = use_cache  # the Trainer switches it off and leaves it so
    return Trained(
        losses=tuple(e["loss"] for e in history if "loss" in e),
        early=tuple((int(e["step"]), e["early"]) for e in history if "early" in e),
        seconds=keeper.seconds,
        resumed=keeper.resumed,
    )


@contextmanager
def isolated_seeds(device: torch.device) -> Iterator[None]:
    """The Trainer seeds the generators of torch, numpy and Python for everyone: put them back afterwards."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


class _Keeper(TrainerCallback):
    """Shows progress, asks for checkpoints and seals them, and stops when the loss is no number."""

    def __init__(self, setup: Setup, *, lr: float, before: float) -> None:
        self.setup = setup
        self.lr = lr
        self.before = before
        """Seconds of earlier attempts."""
        self.advance: Callable[[int], None] = lambda n: None
        self.began = self.saved = self.asked = time.monotonic()
        self.spacing = CHECKPOINT_SECONDS
        self.resumed = 0

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = self.saved = time.monotonic()
        self.resumed = state.global_step
        self.advance(state.global_step)
        if self.resumed:
            self.setup.progress.note(f"{self.setup.label}: resuming from step {self.resumed} of {state.max_steps}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, every = state.global_step, self.setup.checkpoint_steps
        due = step % every == 0 if every else time.monotonic() - self.saved > self.spacing
        if due and step < state.max_steps:
            control.should_save = True
            self.asked = time.monotonic()
        self.advance(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Comes after every step and before its checkpoint, which therefore holds the early scores."""
        step = state.global_step
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise StratoscopeError(
                f"{self.setup.label}: the loss is not a number at step {step}",
                f"give a lower --lr (it was {self.lr:g})",
            )
        if self.setup.early is not None and step in self.setup.early_steps:
            name, score = self.setup.early[0], self.setup.early[1]()
            state.log_history.append({"step": step, "early": score})
            self.setup.progress.note(f"{self.setup.label}: {name} {score:.3f} after {step} of {state.max_steps} steps")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        seal = {"seconds": self.seconds, "files": _hashes(folder)}
        write_text(folder / SEAL, canonical_json(seal) + "\n")
        self.saved = time.monotonic()
        self.spacing = max(CHECKPOINT_SECONDS, (self.saved - self.asked) / CHECKPOINT_SHARE)


def _arguments(schedule: Schedule, setup: Setup, place: Path) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(place),
        max_steps=schedule.steps,
        per_device_train_batch_size=schedule.batch,
        learning_rate=schedule.lr,
        warmup_steps=schedule.warmup,
        lr_scheduler_type="linear",
        optim="adamw_torch_fused",
        weight_decay=0.0,  # without decay AdamW is Adam
        adam_epsilon=schedule.epsilon,
        max_grad_norm=schedule.clip,
        seed=setup.seed,
        data_seed=setup.seed,
        use_cpu=setup.device.type == "cpu",
        bf16=setup.precision == "bfloat16",
        fp16=setup.precision == "float16",
        # One entry a step: a mean over several would lose those before a kill.
        logging_steps=1,
        logging_nan_inf_filter=False,
        train_sampling_strategy="sequential" if schedule.grouped else "random",
        save_strategy="no",  # the keeper asks for checkpoints
        save_total_limit=2,  # the one before stays until the new one is sealed
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=setup.device.type == "cuda",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs would multiply the batch
    return arguments


def _check_device(setup: Setup) -> None:
    if setup.precision not in PRECISIONS:
        raise unknown_name("dtype", setup.precision, PRECISIONS)
    if setup.precision == "float16" and setup.device.type != "cuda":
        raise StratoscopeError(
            f"training in float16 needs a CUDA device, got '{setup.device.type}'", "give --dtype float32"
        )
    if setup.device.index:
        raise StratoscopeError(
            f"training runs on the first device, got '{setup.device}'; choose it with CUDA_VISIBLE_DEVICES"
        )


def _last_sealed(place: Path) -> Path | None:
    """The latest whole checkpoint; those a kill left unfinished are deleted."""
    checkpoints = sorted(place.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    whole = [p for p in checkpoints if _is_whole(p)]
    for path in checkpoints:
        if path not in whole[-1:]:
            shutil.rmtree(path)
    return whole[-1] if whole else None


def _is_whole(folder: Path) -> bool:
    try:
        return bool(_sealed(folder)["files"] == _hashes(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sealed(folder: Path) -> Any:
    return json.loads((folder / SEAL).read_text(encoding="utf-8"))


def _hashes(folder: Path) -> dict[str, str]:
    return {p.name: file_sha256(p) for p in sorted(folder.iterdir()) if p.name != SEAL}


def planned_steps(rows: int, batch: int, epochs: float | None, most: int | None) -> int:
    """Steps of a run: whichever of `epochs` and `most` ends first."""
    limits = [] if epochs is None else [max(1, math.ceil(epochs * math.ceil(rows / batch)))]
    return min(limits + ([] if most is None else [most]))


def grouped_order(lengths: npt.NDArray[np.int64], schedule: Schedule, seed: int) -> list[int]:
    """Rows of the whole run, batch after batch: shuffled, then sorted by length within `GROUPED` batches.

    Every epoch is shuffled anew; rows that do not fill its last batch are left out of it.
    """
    generator = np.random.default_rng(seed)
    size = min(schedule.batch, len(lengths))
    order: list[int] = []
    while len(order) < schedule.steps * size:
        rows = generator.permutation(len(lengths))[: len(lengths) // size * size]
        spans = [rows[k : k + GROUPED * size] for k in range(0, len(rows), GROUPED * size)]
        batches = np.concatenate([s[np.argsort(lengths[s], kind="stable")] for s in spans]).reshape(-1, size)
        order += generator.permutation(batches).ravel().tolist()
    return order[: schedule.steps * size]


def windows(losses: Sequence[float], count: int = 20) -> list[tuple[int, float]]:
    """Mean loss over equal stretches of the run, as (last step, mean)."""
    parts = np.array_split(np.array(losses, dtype=np.float64), min(count, len(losses)))
    ends = np.cumsum([len(p) for p in parts])
    return [(int(end), float(p.mean())) for end, p in zip(ends, parts, strict=True)]
