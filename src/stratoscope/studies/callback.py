"""Watch any transformers Trainer: how far each layer drifts from where it started, at a bounded cost."""

from __future__ import annotations

import importlib.util
import json
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import TrainerCallback

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import atomic, digest, disk_errors, write_text
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import parse
from stratoscope.models.families import base, depth, family_of, width
from stratoscope.models.open.guard import quiet
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, open_model
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.text.encoder import encoder_of
from stratoscope.models.text.rows import Rows, check_unit, plan_rows
from stratoscope.statistics.rows import MemoryRows
from stratoscope.studies.asked import Model, spec_of

DRIFT = "drift.jsonl"
START = "start.safetensors"
TENSORBOARD = "tensorboard"
MEASURES = ("ckasim", "ckasim-debiased")
ROWS = 128
FEWEST_ROWS = 4
SHARE = 0.05
"""Most of the training time the callback takes when it chooses its own rate."""
FIRST = 0.05
"""Part of the planned steps after which the first record is made, and the length of the run can be told."""


class StratoscopeCallback(TrainerCallback):
    """Records the drift of every layer while a Trainer runs.

    Drift is 1 − linear CKA, plain and debiased, of a layer's rows now and at the start, on a fixed set of texts.
    Each record is a line of `<folder>/drift.jsonl` (step, epoch, one value per layer and measure; null where a layer
    does not vary, as the embedding of [CLS]) and, where TensorBoard is installed, a point in `<folder>/tensorboard`.
    Training itself is not touched: no random number is drawn and no mode is left changed.

    >>> from transformers import Trainer
    >>> trainer = Trainer(..., callbacks=[StratoscopeCallback("runs/drift", texts=texts)])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        texts: Sequence[str] | Corpus,
        tokenizer: Any = None,
        base: Model | None = None,
        unit: str = "mean",
        rows: int = ROWS,
        every: int | None = None,
        seed: int = 0,
    ) -> None:
        """`tokenizer` is the Trainer's `processing_class` unless given; `base` is the model as training starts.

        `every` records each so many steps; without it the callback times itself, makes its first record early and
        spreads the others so that all of them stay below 5 % of the run as it is planned.
        """
        check_unit(unit)
        for name, value, least in (("every", every, 1), ("rows", rows, FEWEST_ROWS)):
            if value is not None and value < least:
                raise StratoscopeError(f"StratoscopeCallback: expected {name} of at least {least}, got {value}")
        self.folder = Path(folder)
        if not isinstance(texts, Corpus):
            texts = Corpus("texts", tuple(Sentence(t) for t in texts), tuple(range(len(texts))))
        self.corpus = texts.sample(rows, seed)
        self.limit, self.tokenizer, self.base, self.unit, self.every = rows, tokenizer, base, unit, every
        self._start: list[Tensor] = []
        self._rows: Rows | None = None
        self._writer: Any = None
        self._began = self._spent = self._cost = 0.0
        self._first, self._last, self._recorded = 0, -1, -math.inf

    # --- what the Trainer calls ------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, processing_class: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._began, self._spent, self._recorded = time.monotonic(), 0.0, -math.inf
        self._first = self._last = state.global_step
        self.tokenizer = self.tokenizer or processing_class
        if not getattr(self.tokenizer, "is_fast", False):
            advice = "give the Trainer a processing_class or the callback a tokenizer"
            raise StratoscopeError(f"StratoscopeCallback needs a fast tokenizer; {advice}")
        current = self._current(model)
        self._rows = self._plan(current)
        self._start = self._starting_point(current, state.global_step)
        self._keep_lines(state.global_step)
        self._writer = _tensorboard(self.folder)
        self._cost = self._spent = time.monotonic() - self._began

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self._rows is None:
            return
        if state.global_step % self.every == 0 if self.every else self._due(state):
            self._record(state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self._rows is None:
            return
        if state.global_step > self._last and (self.every or self._affordable(self._cost)):
            self._record(state, model)
        if self._last <= 0:
            warnings.warn(
                f"training took {time.monotonic() - self._began:.0f} s, too short to record drift at less than"
                f" {SHARE:.0%} of it; give every=N to record each N steps",
                stacklevel=2,
            )
        if self._writer is not None:
            self._writer.close()
        self._rows, self._start, self._writer = None, [], None

    @property
    def share(self) -> float:
        """Part of the time since training began that the callback took."""
        return self._spent / max(time.monotonic() - self._began, 1e-9)

    # --- work ------------------------------------------------------------------------------------------------------

    def _due(self, state: Any) -> bool:
        """Whether the next of the records that the planned run can afford, evenly spread, has its turn."""
        done = state.global_step - self._first
        planned, now = max(state.max_steps - self._first, done), time.monotonic() - self._began
        if done < FIRST * planned:
            return False
        total = now * planned / done
        left = int((SHARE * total - self._spent) / max(self._cost, 1e-9)) - 1  # the last one is made at the end
        return left > 0 and now - self._recorded >= (total - now) / (left + 1)

    def _affordable(self, cost: float) -> bool:
        return self._spent + cost <= SHARE * (time.monotonic() - self._began)

    def _record(self, state: Any, model: Any) -> None:
        began = time.monotonic()
        now = self._read(self._current(model))
        scores = drift(self._start, now)
        line = {"step": state.global_step, "epoch": state.epoch, "rows": len(now[0]), "unit": self.unit, **scores}
        path = self.folder / DRIFT
        with disk_errors(path), path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(line, allow_nan=False) + "\n")
        if self._writer is not None:
            for name, values in scores.items():
                for layer, value in enumerate(values):
                    if value is not None:
                        self._writer.add_scalar(f"stratoscope/{name}/layer-{layer:02d}", value, state.global_step)
        self._last = state.global_step
        self._cost = time.monotonic() - began
        self._spent += self._cost
        self._recorded = time.monotonic() - self._began

    def _current(self, model: Any) -> OpenedModel:
        """The Trainer's model, as extraction wants it: its encoder, wherever it stands in training."""
        inner, config = base(model), model.config
        family = family_of(inner)
        encoder = encoder_of("the model in training", config, self.tokenizer, family)
        p = next(inner.parameters())
        dtype = str(p.dtype).removeprefix("torch.")
        surveyed = Survey(ModelSpec(""), encoder, depth(config) + 1, width(config), "", dtype, str(p.device))
        return OpenedModel(surveyed, inner)

    def _plan(self, current: OpenedModel) -> Rows:
        rows = plan_rows(self.corpus, [current.encoder], self.unit)
        if len(rows) < FEWEST_ROWS:
            raise StratoscopeError(
                f"StratoscopeCallback: expected at least {FEWEST_ROWS} rows to compare, got {len(rows)}; give more text"
            )
        if len(rows) > self.limit:  # a text has many words and tokens
            self.corpus, rows = rows.slice(self.corpus, 0, self.limit)
        return rows

    def _read(self, model: OpenedModel) -> list[Tensor]:
        assert self._rows is not None
        return read_rows(model, self.corpus, self._rows)

    def _starting_point(self, current: OpenedModel, step: int) -> list[Tensor]:
        """Rows of the base model: given, or the model itself at step 0, kept in the folder for when it is resumed."""
        if self.base is not None:
            spec = spec_of(self.base)
            with quiet():
                loaded = open_model(spec)
            if loaded.layers != current.layers:
                raise StratoscopeError(
                    f"StratoscopeCallback: expected a base of {current.layers - 1} blocks, as many as are in training,"
                    f" got {loaded.layers - 1} in '{spec.label}'"
                )
            return self._read(loaded)
        assert self._rows is not None
        key = digest([self._rows.fingerprint, current.layers, current.width])
        path = self.folder / START
        if step == 0:
            layers = self._read(current)
            with atomic(path) as f:
                f.write(save({f"{k:04d}": x for k, x in enumerate(layers)}, metadata={"key": key}))
            return layers
        try:
            with safe_open(path, framework="pt") as stored:
                if (stored.metadata() or {}).get("key") == key:
                    return [stored.get_tensor(name) for name in sorted(stored.keys())]
        except (OSError, SafetensorError):
            pass
        raise StratoscopeError(
            f"training resumes from step {step}, but {path} does not hold these texts' rows from its start; use the"
            " folder and texts of the first run, or give base= the model it started from"
        )

    def _keep_lines(self, step: int) -> None:
        """Forget what a killed run recorded beyond the step from which this one resumes; at step 0, everything."""
        path = self.folder / DRIFT
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if step and path.is_file() else []
        write_text(path, "".join(line for line in lines if _step(line) <= step))


def drift(start: Sequence[Tensor], now: Sequence[Tensor]) -> dict[str, list[float | None]]:
    """1 − CKA of each layer with itself at the start, by measure; None where one of the two does not vary."""
    requested = [parse(name) for name in MEASURES]
    scores: dict[str, list[float | None]] = {name: [] for name in MEASURES}
    for x, y in zip(start, now, strict=True):
        scored = score_layers(MemoryRows([x, y]), requested).scored
        for name in MEASURES:
            value = float(scored[name].values[0, 1])
            scores[name].append(None if math.isnan(value) else 1 - value)
    return scores


def read_drift(folder: str | Path) -> list[dict[str, Any]]:
    """The records of a run, in order."""
    path = Path(folder) / DRIFT
    if not path.is_file():
        raise StratoscopeError(f"no {DRIFT} in {folder}; train with a StratoscopeCallback on that folder first")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if _step(line) < math.inf]


def _step(line: str) -> float:
    """Step of a line; infinity for one that a kill cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _tensorboard(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / TENSORBOARD)
