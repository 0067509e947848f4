"""The heads a model is opened with: none, that of a task, or that of a language model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, TaskData
from stratoscope.models.families import base, generates
from stratoscope.models.heads.reading import head_parameters
from stratoscope.models.text.encoder import Encoder

HEADS = ("ForSequenceClassification", "ForMultipleChoice")
"""How the class names of the heads that tasks use end."""
SEGMENTS = "token_type_ids"
KEPT, FRESH = "kept", "fresh"
"""What became of a task's head: as the checkpoint has it, or drawn from the seed."""
UNUSED_WEIGHTS = re.compile(r"(^|\.)pooler\.")
"""Weights that no hidden state depends on; a checkpoint may lack them."""


class Head:
    """No head, the encoder alone, and what opening a model depends on when it comes with one after all."""

    what = "encoder"
    """Whose weights must not be missing."""
    complete = ""
    """What a checkpoint must have besides them."""
    dtype: str | None = None
    """The dtype it is always opened in, whatever the user asked for."""
    may_differ = False
    """Stored weights of another shape are passed over."""
    name: str | None = None
    """What an opened model says it has."""
    auto = "AutoModel"

    @property
    def auto_class(self) -> Any:
        """The Auto class of transformers."""
        import transformers

        return getattr(transformers, self.auto)

    def check(self, config: Any, label: str, source: str, *, random_init: bool) -> None:
        """Refuse a checkpoint that cannot have this head, by its configuration."""

    def configure_(self, config: Any, encoder: Encoder) -> None:
        """Write what the head needs into the configuration and the tokenizer."""

    def optional(self, module: nn.Module, missing: set[str]) -> set[str]:
        """Names of parameters a checkpoint may lack."""
        return {name for name in missing if UNUSED_WEIGHTS.search(name)}

    def complete_(self, module: nn.Module, missing: set[str], draw: Callable[[], nn.Module]) -> str | None:
        """Fill in what is missing; what became of the head. `draw` gives the architecture under the head's seed."""
        return self.name

    def note(self, label: str) -> str:
        """What the user should know of the head."""
        return ""


class Causal(Head):
    """The language-model head of a decoder."""

    what = "language model"
    complete = " with its language-model head"
    name = "causal"
    auto = "AutoModelForCausalLM"

    def check(self, config: Any, label: str, source: str, *, random_init: bool) -> None:
        # Code of the checkpoint's own is not known beforehand; `check_causal` tries whether a model looks ahead.
        if not (generates(config) or getattr(config, "is_decoder", False) or getattr(config, "auto_map", None)):
            raise StratoscopeError(
                f"'{label}' is a {config.model_type}, which is no causal language model, and perplexity needs one;"
                " give a decoder such as GPT-2, Llama or Qwen, or a task"
            )

    def optional(self, module: nn.Module, missing: set[str]) -> set[str]:
        return set()


@dataclass
class TaskHead(Head):
    """The head of a task: the checkpoint's own, or one drawn from a seed where that is allowed."""

    task: TaskData
    seed: int | None
    """None where the checkpoint must have the head."""
    keep: bool = True
    """The checkpoint says that it has this very head."""
    stored: str | None = None
    """Class name of the head the checkpoint says it has, with its labels as they were."""
    labels: tuple[str, ...] = ()

    dtype = "float32"
    may_differ = True

    @property
    def auto_class(self) -> Any:
        return auto_class(self.task)

    def check(self, config: Any, label: str, source: str, *, random_init: bool) -> None:
        kind = _head_class(config, label, self.task)
        self.stored = None if random_init else next((a for a in config.architectures or () if a.endswith(HEADS)), None)
        self.labels = tuple(str(config.id2label[k]) for k in sorted(config.id2label))
        if self.seed is not None:
            self.keep = self.stored is not None and self.stored == kind and _same_labels(self.labels, self.task)
        elif self.stored is None:
            raise StratoscopeError(
                f"'{label}' has no task head; expected a checkpoint fine-tuned on {self.task.name}, so run 'stratoscope"
                f" finetune {source} --task {self.task.name}' first"
            )
        elif kind is not None and self.stored != kind:
            raise StratoscopeError(
                f"the head of '{label}' is a {self.stored}, {self.task.name} needs a {kind}; give a checkpoint"
                f" fine-tuned on {self.task.name}"
            )
        elif self.task.format != CHOICE:
            _check_labels(label, self.labels, self.task)

    def configure_(self, config: Any, encoder: Encoder) -> None:
        """Write the labels into the configuration, and make plain use of the tokenizer give what the model is fed."""
        if self.task.format != CHOICE:
            names = _label_names(self.task)
            config.num_labels = len(names)
            config.id2label = dict(enumerate(names))
            config.label2id = {name: k for k, name in enumerate(names)}
            config.problem_type = "regression" if self.task.regression else "single_label_classification"
        text = config.get_text_config()
        if getattr(text, "pad_token_id", None) is None:
            text.pad_token_id = encoder.pad_id
        tokenizer = encoder.tokenizer
        if tokenizer.pad_token is None and tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token
        if encoder.segments and SEGMENTS not in tokenizer.model_input_names:
            # A generic fast tokenizer leaves them out unless told; the checkpoint would be used otherwise than trained.
            tokenizer.model_input_names = [*tokenizer.model_input_names, SEGMENTS]
            tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # what is saved

    def optional(self, module: nn.Module, missing: set[str]) -> set[str]:
        return {name for name, _ in head_parameters(module)}

    def complete_(self, module: nn.Module, missing: set[str], draw: Callable[[], nn.Module]) -> str | None:
        """A pooler inside the encoder counts as the encoder's and is kept wherever stored."""
        if self.seed is None and missing:
            raise StratoscopeError(
                f"the checkpoint lacks {len(missing)} of its head's weights (first: {sorted(missing)[0]}); give one"
                f" fine-tuned on {self.task.name}"
            )
        kept = self.keep and not missing
        if not kept:
            inner = {id(p) for p in base(module).parameters()}
            missing = missing | {name for name, p in module.named_parameters() if id(p) not in inner}
        if missing:
            drawn = dict(draw().named_parameters())
            with torch.no_grad():
                for name, p in module.named_parameters():
                    if name in missing:
                        p.copy_(drawn[name])
        return KEPT if kept else FRESH

    def note(self, label: str) -> str:
        if self.seed is None or self.stored is None:
            return ""
        if self.keep:
            return f"'{label}' already has a head for {self.task.name}; training continues from it"
        if not self.stored.endswith(HEADS[1]) and self.task.format != CHOICE:
            return (
                f"the head of '{label}' has {_counted(self.labels)}, {self.task.name} needs"
                f" {_counted(_label_names(self.task))}; a fresh head takes its place"
            )
        return (
            f"the head of '{label}' ({self.stored}) is not of the kind {self.task.name} needs; a fresh head takes its"
            " place"
        )


def auto_class(task: TaskData) -> Any:
    """The Auto class of transformers for a task."""
    import transformers

    choice = task.format == CHOICE
    return transformers.AutoModelForMultipleChoice if choice else transformers.AutoModelForSequenceClassification


def _head_class(config: Any, label: str, task: TaskData) -> str | None:
    """Class name of the model with a head; None for code of the checkpoint's own, which brings its names itself."""
    from transformers.models.auto import modeling_auto as auto

    what, table = "classification", auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if task.format == CHOICE:
        what, table = "multiple-choice", auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES
    if config.model_type in table:
        return str(table[config.model_type])
    if getattr(config, "auto_map", None):
        return None
    raise StratoscopeError(
        f"'{label}' is a {config.model_type}, for which transformers has no {what} head, and {task.name} needs"
        " one; choose a model of another family or another task"
    )


def _label_names(task: TaskData) -> tuple[str, ...]:
    """Names of the outputs of a classification head: the classes, or the one score of a regression."""
    return task.labels if task.labels is not None else ("score",)


def _same_labels(have: tuple[str, ...], task: TaskData) -> bool:
    if task.format == CHOICE:
        return True  # such a head gives one score, however many choices there are
    want = _label_names(task)
    return len(have) == len(want) and (have == want or all(name.startswith("LABEL_") for name in have))


def _check_labels(label: str, have: tuple[str, ...], task: TaskData) -> None:
    """Refuse a head whose labels are not the task's in its order; unnamed ones are taken in the order they have."""
    want = _label_names(task)
    if len(have) != len(want):
        raise StratoscopeError(
            f"the head of '{label}' has {_counted(have)}, {task.name} needs {_counted(want)}; give a checkpoint"
            f" fine-tuned on {task.name}"
        )
    plain_have, plain_want = ([name.casefold() for name in names] for names in (have, want))
    by_number = [str(k) for k in range(len(want))]
    unnamed = plain_want == by_number or plain_have in (by_number, [f"label_{k}" for k in by_number])
    if task.regression or unnamed or plain_have == plain_want:
        return
    if sorted(plain_have) == sorted(plain_want):
        raise StratoscopeError(
            f"the head of '{label}' has the labels {', '.join(have)}, {task.name} has them in the order"
            f" {', '.join(want)}; order the labels of one as those of the other"
        )
    raise StratoscopeError(
        f"the head of '{label}' has {_counted(have)}, {task.name} has {_counted(want)}: which is which cannot be"
        f" told; give a checkpoint fine-tuned on {task.name}, or rows labelled with the head's own names or 0, 1, ..."
    )


def _counted(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(names)} label{'s' if len(names) != 1 else ''} ({shown})"
