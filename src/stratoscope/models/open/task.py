"""Load a checkpoint with the head a task needs: kept if the checkpoint has that very head, else drawn from the seed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import CHOICE, TaskData
from stratoscope.models.families import base
from stratoscope.models.heads.reading import head_parameters
from stratoscope.models.open.checkpoints import Checkpoint
from stratoscope.models.open.guard import guarded, seeded
from stratoscope.models.open.loading import ModelSpec, Survey, checked, load_config, load_options, random_model, survey
from stratoscope.models.text.encoder import Encoder

HEADS = ("ForSequenceClassification", "ForMultipleChoice")
"""How the class names of the heads that tasks use end."""
SEGMENTS = "token_type_ids"


@dataclass(frozen=True)
class TaskModel:
    """A model with the head of a task, ready to be trained."""

    module: Any
    """The transformers model: float32, on the CPU, in eval mode."""
    encoder: Encoder
    fingerprint: str
    """Of the checkpoint it was made from."""
    head: str
    """`fresh` (drawn from the seed) or `kept` (as the checkpoint has it)."""


def load_for_task(
    spec: ModelSpec, task: TaskData, *, seed: int, seen: Survey | None = None, progress: Progress | None = None
) -> TaskModel:
    """Load `spec` in float32 with a head for `task`; what becomes of a head it already has is told to `progress`.

    A head is kept when it is of the same kind and its labels are the task's (or have no names, but the same number);
    a fresh one is drawn from `seed`. A pooler inside the encoder counts as the encoder's and is kept wherever stored.
    """
    progress = progress or Silent()
    seen = seen or survey(spec, progress=progress)
    checkpoint = checked(spec)
    config = load_config(spec, checkpoint)
    kind = head_class(config, spec, task)
    stored = next((a for a in config.architectures or () if a.endswith(HEADS)), None)
    keep = not spec.random_init and stored == kind and _same_labels(config, task)
    if stored and not spec.random_init:
        progress.note(_what_becomes(spec.label, config, stored, task, keep=keep))
    configure_(config, seen.encoder, task)
    with guarded(spec.source, "architecture", local=checkpoint.local), seeded(seed):
        fresh = auto_class(task).from_config(config, dtype=torch.float32, trust_remote_code=spec.trust_remote_code)
    if spec.random_init:
        base(fresh).load_state_dict(random_model(config, spec, checkpoint).state_dict(), strict=False)
        module, kept = fresh, False
    else:
        module, lacking = stored_model(config, spec, checkpoint, task)
        kept = keep and not lacking
        _renew_(module, fresh, lacking if kept else lacking | _outside(module))
    return TaskModel(module.eval(), seen.encoder, seen.fingerprint, "kept" if kept else "fresh")


def label_names(task: TaskData) -> tuple[str, ...]:
    """Names of the outputs of a classification head: the classes, or the one score of a regression."""
    return task.labels if task.labels is not None else ("score",)


def auto_class(task: TaskData) -> Any:
    import transformers

    choice = task.format == CHOICE
    return transformers.AutoModelForMultipleChoice if choice else transformers.AutoModelForSequenceClassification


def head_class(config: Any, spec: ModelSpec, task: TaskData) -> str | None:
    """Class name of the model with a head; None for code of the checkpoint's own, which brings its names itself."""
    from transformers.models.auto import modeling_auto as auto

    choice = task.format == CHOICE
    table = (
        auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES if choice else auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    )
    if config.model_type in table:
        return str(table[config.model_type])
    if getattr(config, "auto_map", None):
        return None
    what = "multiple-choice" if choice else "classification"
    raise StratoscopeError(
        f"'{spec.label}' is a {config.model_type}, for which transformers has no {what} head, and {task.name} needs"
        " one; choose a model of another family or another task"
    )


def _same_labels(config: Any, task: TaskData) -> bool:
    if task.format == CHOICE:
        return True  # such a head gives one score, however many choices there are
    have, want = stored_labels(config), label_names(task)
    return len(have) == len(want) and (have == want or all(name.startswith("LABEL_") for name in have))


def stored_labels(config: Any) -> tuple[str, ...]:
    return tuple(str(config.id2label[k]) for k in sorted(config.id2label))


def _what_becomes(label: str, config: Any, stored: str, task: TaskData, *, keep: bool) -> str:
    if keep:
        return f"'{label}' already has a head for {task.name}; training goes on from it"
    have, want = stored_labels(config), label_names(task)
    if not stored.endswith(HEADS[1]) and task.format != CHOICE:
        return (
            f"the head of '{label}' has {counted(have)}, {task.name} needs {counted(want)};"
            " a fresh head takes its place"
        )
    return f"the head of '{label}' ({stored}) is not of the kind {task.name} needs; a fresh head takes its place"


def counted(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(names)} label{'s' if len(names) != 1 else ''} ({shown})"


def configure_(config: Any, encoder: Encoder, task: TaskData) -> None:
    """Write the labels into the configuration, and make plain use of the tokenizer give what the model is fed here."""
    if task.format != CHOICE:
        names = label_names(task)
        config.num_labels = len(names)
        config.id2label = dict(enumerate(names))
        config.label2id = {name: k for k, name in enumerate(names)}
        config.problem_type = "regression" if task.regression else "single_label_classification"
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None:
        text.pad_token_id = encoder.pad_id
    tokenizer = encoder.tokenizer
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if encoder.segments and SEGMENTS not in tokenizer.model_input_names:
        # A generic fast tokenizer leaves them out unless told, and the checkpoint would be used otherwise than trained.
        tokenizer.model_input_names = [*tokenizer.model_input_names, SEGMENTS]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # what is saved


def stored_model(config: Any, spec: ModelSpec, checkpoint: Checkpoint, task: TaskData) -> tuple[Any, set[str]]:
    """The checkpoint under the task's head, and the names of head parameters it does not have in that shape."""
    with guarded(spec.source, "weights", local=checkpoint.local), seeded(0):
        module, info = auto_class(task).from_pretrained(
            checkpoint.source,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if spec.allow_pickle else True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **load_options(spec, checkpoint),
        )
    made_up = {*info["missing_keys"], *(k if isinstance(k, str) else k[0] for k in info["mismatched_keys"])}
    head = {name for name, _ in head_parameters(module)}
    if missing := sorted(made_up - head):
        raise StratoscopeError(
            f"'{spec.source}' lacks {len(missing)} of the encoder's weights (first: {missing[0]}), which would be"
            f" made up at random; give a complete {config.model_type} checkpoint"
        )
    return module.float(), made_up & head


def _outside(module: nn.Module) -> set[str]:
    """Names of the parameters outside the encoder."""
    inner = {id(p) for p in base(module).parameters()}
    return {name for name, p in module.named_parameters() if id(p) not in inner}


def _renew_(module: nn.Module, fresh: nn.Module, names: Collection[str]) -> None:
    drawn = dict(fresh.named_parameters())
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name in names:
                p.copy_(drawn[name])
