"""Load a fine-tuned checkpoint to be judged on a task: with its own head, which must be the task's."""

from __future__ import annotations

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import CHOICE, TaskData
from stratoscope.models.open.loading import ModelSpec, Survey, checked, load_config, survey
from stratoscope.models.open.task import (
    HEADS,
    TaskModel,
    configure_,
    counted,
    head_class,
    label_names,
    stored_labels,
    stored_model,
)


def check_head(spec: ModelSpec, task: TaskData) -> None:
    """Refuse a checkpoint without a head for `task`, without looking at its weights."""
    config = load_config(spec, checked(spec))
    kind = head_class(config, spec, task)
    stored = next((a for a in config.architectures or () if a.endswith(HEADS)), None)
    if spec.random_init or stored is None:
        raise StratoscopeError(
            f"'{spec.label}' has no task head; expected a checkpoint fine-tuned on {task.name}, so run 'stratoscope"
            f" finetune {spec.source} --task {task.name}' first"
        )
    if kind is not None and stored != kind:
        raise StratoscopeError(
            f"the head of '{spec.label}' is a {stored}, {task.name} needs a {kind}; give a checkpoint fine-tuned on"
            f" {task.name}"
        )
    if task.format == CHOICE:
        return
    have, want = stored_labels(config), label_names(task)
    if len(have) != len(want):
        raise StratoscopeError(
            f"the head of '{spec.label}' has {counted(have)}, {task.name} needs {counted(want)}; give a checkpoint"
            f" fine-tuned on {task.name}"
        )
    plain_have, plain_want = ([name.casefold() for name in names] for names in (have, want))
    by_number = [str(k) for k in range(len(want))]
    unnamed = plain_want == by_number or plain_have in (by_number, [f"label_{k}" for k in by_number])
    if task.regression or unnamed or plain_have == plain_want:
        return
    if sorted(plain_have) == sorted(plain_want):
        raise StratoscopeError(
            f"the head of '{spec.label}' has the labels {', '.join(have)}, {task.name} has them in the order"
            f" {', '.join(want)}; order the labels of one as those of the other"
        )
    raise StratoscopeError(
        f"the head of '{spec.label}' has {counted(have)}, {task.name} has {counted(want)}: which is which cannot be"
        f" told; give a checkpoint fine-tuned on {task.name}, or rows labelled with the head's own names or 0, 1, ..."
    )


def load_tuned(
    spec: ModelSpec, task: TaskData, *, seen: Survey | None = None, progress: Progress | None = None
) -> TaskModel:
    """Load a fine-tuned model with its own head, in float32 on the CPU; see `check_head` for what is refused."""
    progress = progress or Silent()
    check_head(spec, task)
    seen = seen or survey(spec, progress=progress)
    checkpoint = checked(spec)
    config = load_config(spec, checkpoint)
    configure_(config, seen.encoder, task)
    module, lacking = stored_model(config, spec, checkpoint, task)
    if lacking:
        raise StratoscopeError(
            f"'{spec.label}' lacks {len(lacking)} of its head's weights (first: {sorted(lacking)[0]}); give a"
            f" checkpoint fine-tuned on {task.name}"
        )
    return TaskModel(module.eval().requires_grad_(False), seen.encoder, seen.fingerprint, "kept")
