"""Open a model and its tokenizer from a folder or the hub; weights that are missing are an error, never made up."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import at_home, digest
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.extras import optional_module
from stratoscope.data.formats.hub import hub_answers
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.families import Family, base, depth, family_of, known_family, width
from stratoscope.models.open import checkpoints
from stratoscope.models.open.checkpoints import ADAPTER, CONFIG, PART, SAFE_INDEX, Checkpoint, shards_of
from stratoscope.models.open.guard import guarded, quiet, seeded
from stratoscope.models.open.heads import Causal, Head, TaskHead
from stratoscope.models.open.states import IN_MEMORY, Adapter, Loaded
from stratoscope.models.open.states import SAFE as ADAPTER_WEIGHTS
from stratoscope.models.open.verify import check_blocks, verify
from stratoscope.models.text.encoder import Encoder, encoder_of

DTYPES = ("float32", "float16", "bfloat16", "auto")
DEVICES = ("auto", "cpu", "cuda", "mps")
CAUSAL = "causal"
"""The head that predicts the next token."""


@dataclass(frozen=True)
class ModelSpec:
    """A model as the user asked for it."""

    source: str
    """Checkpoint or adapter folder, `.gguf` file, or hub id (`org/name`, `org/name@revision`)."""
    name: str | None = None
    """Label in results; made from the source when not given."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: str = "float32"
    device: str = "auto"
    """`auto` takes CUDA, else MPS, else the CPU."""
    random_init: bool = False
    """Fresh weights instead of the stored ones."""
    seed: int = 0
    """Seed of the fresh weights."""
    allow_pickle: bool = False
    trust_remote_code: bool = False
    base: str | None = None
    """The model that an adapter is merged into; the one that the adapter names when not given."""
    loaded: Loaded | None = field(default=None, repr=False, compare=False)
    """The model itself, where the caller has it in memory."""

    @property
    def label(self) -> str:
        """The name, made from the source when none was given: that of the folder, or of the one it is part of."""
        if self.name:
            return self.name
        stem = checkpoints.label_of(self.source.removeprefix(IN_MEMORY))
        return f"{stem}-random" if self.random_init else stem

    @property
    def full_label(self) -> str:
        """A longer label, for where several models have the same one: with the name of the folder around."""
        if self.loaded is not None:
            return self.label
        path = at_home(self.source).resolve()
        return f"{path.parent.name}/{path.name if PART.fullmatch(path.name) else self.label}"


@dataclass(frozen=True)
class Survey:
    """What is known of a model without its weights: enough to plan rows and to recognise earlier work."""

    spec: ModelSpec
    encoder: Encoder
    layers: int
    """L+1: the embeddings and every block."""
    width: int
    fingerprint: str
    """Hub commit, sha256 of the local files, or the seed and configuration of a random initialisation."""
    dtype: str
    device: str
    notes: tuple[str, ...] = ()
    """What a reader of the result must know of it."""

    @property
    def family(self) -> Family:
        """The family's row; `detected` when the architecture is not in the table."""
        return self.encoder.family


@dataclass(frozen=True)
class OpenedModel:
    """A model in eval mode, bare or with a head, and the tokenizer that feeds it."""

    survey: Survey
    """With the dtype that the weights have."""
    module: Any
    """The transformers model; nothing requires a gradient."""
    head: str | None = None
    """None of a bare encoder, `kept` (as the checkpoint has it), `fresh` (drawn from the seed) or `causal`."""
    alone: bool = False
    """Padding changes its states, so that each text must be read alone."""

    @property
    def name(self) -> str:
        return self.survey.encoder.name

    @property
    def encoder(self) -> Encoder:
        return self.survey.encoder

    @property
    def family(self) -> Family:
        return self.survey.encoder.family

    @property
    def layers(self) -> int:
        """L+1: the embeddings and every block."""
        return self.survey.layers

    @property
    def width(self) -> int:
        return self.survey.width

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.module.parameters()).device
        return device


def survey(spec: ModelSpec, *, progress: Progress | None = None) -> Survey:
    """Look at a model without loading its weights; an architecture outside the table is reported to `progress`."""
    device = choose_device(spec.device)
    checkpoint = resolve(spec)
    if checkpoint.note:
        (progress or Silent()).note(checkpoint.note)
    config = load_config(spec, checkpoint)
    family = known_family(config) or family_of(_built(config, spec, checkpoint, Head(), None))
    if family.detected:
        (progress or Silent()).note(
            f"'{spec.label}' is a {config.model_type}, which is not in the table of families: its blocks were taken"
            f" to be '{family.blocks}', its final norm {family.final_norm or 'missing'}"
        )
    encoder = encoder_of(spec.label, config, load_tokenizer(spec), family)
    stored = getattr(config, "dtype", None) or torch.float32
    return Survey(
        spec=spec,
        encoder=encoder,
        layers=depth(config) + 1,
        width=width(config),
        fingerprint=_fingerprint(spec, checkpoint, config, encoder),
        dtype=str(stored).removeprefix("torch.") if spec.dtype == "auto" else spec.dtype,
        device=str(device),
    )


def open_model(
    spec: ModelSpec,
    head: TaskData | str | None = None,
    *,
    surveyed: Survey | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> OpenedModel:
    """Load a model as its bare encoder, with the head of a task, or with the language-model head (`CAUSAL`).

    Without `seed` a task's head must be in the checkpoint; with it, a head that is missing or made for another task is
    drawn from the seed, and what becomes of a stored one is reported to `progress`. Models with a task's head are
    always float32.
    """
    progress = progress or Silent()
    device = choose_device(spec.device)
    checkpoint = resolve(spec)
    config = load_config(spec, checkpoint)
    kind = _checked_head(spec, config, head, seed)
    surveyed = surveyed or survey(spec, progress=progress)
    kind.configure_(config, surveyed.encoder)
    build = _random if spec.random_init else _stored
    module, missing = build(config, spec, checkpoint, kind, surveyed.family)
    state = kind.complete_(module, missing, lambda: _built(config, spec, checkpoint, kind, seed or 0))
    if note := kind.note(spec.label):
        progress.note(note)
    module = module.to(device).eval().requires_grad_(False)
    alone = verify(module, surveyed.encoder, progress) if surveyed.family.detected else False
    dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
    return OpenedModel(replace(surveyed, dtype=dtype), module, state, alone)


def check_head(spec: ModelSpec, head: TaskData | str) -> None:
    """Refuse a checkpoint without a head for a task, or for `CAUSAL`, without looking at its weights."""
    _checked_head(spec, load_config(spec, resolve(spec)), head, None)


def _checked_head(spec: ModelSpec, config: Any, head: TaskData | str | None, seed: int | None) -> Head:
    kind = TaskHead(head, seed) if isinstance(head, TaskData) else Head() if head is None else Causal()
    kind.check(config, spec.label, spec.source, random_init=spec.random_init)
    return kind


def _stored(config: Any, spec: ModelSpec, checkpoint: Checkpoint, head: Head, family: Family) -> tuple[Any, set[str]]:
    """The checkpoint's weights under this head, and the names of parameters of the head that it does not have."""
    with guarded(spec.source, "weights", local=checkpoint.local), seeded(0):
        how = {
            "config": None if checkpoint.gguf_file and head.dtype is None else config,
            "dtype": _dtype(spec, head),
            "ignore_mismatched_sizes": head.may_differ,
            "output_loading_info": True,
        }
        state = _state(spec, checkpoint)
        if state is None:
            module, info = _from_pretrained(head.auto_class, spec, checkpoint, **how)
        else:
            bare: Any = type(_built(config, spec, checkpoint, head, None))
            module, info = bare.from_pretrained(None, state_dict=state, **how)
    check_blocks(module, family, info["unexpected_keys"], spec.source)
    made_up = {*info["missing_keys"], *(k if isinstance(k, str) else k[0] for k in info["mismatched_keys"])}
    if missing := sorted(made_up - head.optional(module, made_up)):
        raise StratoscopeError(
            f"'{spec.source}' lacks {len(missing)} of the {head.what}'s weights (first: {missing[0]}), which would be"
            f" made up at random; give a complete {config.model_type} checkpoint{head.complete}"
        )
    # Some parameters are created in float32 whatever was asked (DeBERTa's biases) and would not multiply with the rest.
    dtype = _dtype(spec, head)
    kept = dtype == "auto" or (head.dtype is None and getattr(module, "_keep_in_fp32_modules", None))
    return module if kept else module.to(dtype), made_up


def _state(spec: ModelSpec, checkpoint: Checkpoint) -> dict[str, Tensor] | None:
    """The weights of a model in memory, or of a base with its adapter; None where the checkpoint is all there is."""
    if spec.loaded is not None:
        return spec.loaded.state()
    if checkpoint.adapter is None:
        return None
    adapter = Adapter.read(checkpoint.adapter)
    config = load_config(spec, checkpoint)
    how = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True}
    return adapter.merged(lambda cls: _from_pretrained(cls, spec, checkpoint, **how))


def _from_pretrained(cls: Any, spec: ModelSpec, checkpoint: Checkpoint, **how: Any) -> Any:
    """A stored checkpoint as a class of transformers; of the hub, too, an index may name safetensors only."""
    options = load_options(spec, checkpoint)
    if not checkpoint.local and (index := on_hub(checkpoint.source, checkpoint.revision, SAFE_INDEX)):
        shards_of(index)
    return cls.from_pretrained(checkpoint.source, use_safetensors=None if spec.allow_pickle else True, **how, **options)


def _random(config: Any, spec: ModelSpec, checkpoint: Checkpoint, head: Head, family: Family) -> tuple[Any, set[str]]:
    """Weights drawn from the seed of `spec`: the encoder's are those it has without a head."""
    module, dtype = _built(config, spec, checkpoint, head, spec.seed), _dtype(spec, head)
    if isinstance(head, TaskHead):
        encoder = _built(config, spec, checkpoint, Head(), spec.seed)
        base(module).load_state_dict(encoder.state_dict(), strict=False)
    return module if dtype == "auto" else module.to(dtype), set()


def _built(config: Any, spec: ModelSpec, checkpoint: Checkpoint, head: Head, seed: int | None) -> Any:
    """The architecture with float32 weights drawn from `seed`; None for one without any memory for weights."""
    weights = torch.device("meta") if seed is None else seeded(seed)
    with guarded(spec.source, "architecture", local=checkpoint.local), weights:
        return head.auto_class.from_config(config, dtype=torch.float32, trust_remote_code=spec.trust_remote_code)


def _dtype(spec: ModelSpec, head: Head) -> Any:
    name = head.dtype or spec.dtype
    return name if name == "auto" else getattr(torch, name)


def load_tokenizer(spec: ModelSpec) -> Any:
    """Load the fast tokenizer of a checkpoint."""
    checkpoint = resolve(spec)
    if checkpoint.adapter is not None and Adapter.read(checkpoint.adapter).has_tokenizer:
        checkpoint = Checkpoint(str(checkpoint.adapter), local=True)
    with guarded(spec.source, "tokenizer", local=checkpoint.local):
        from transformers import AutoTokenizer

        if spec.loaded is not None:
            tokenizer = copy.deepcopy(spec.loaded.tokenizer)
        else:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.source, **load_options(spec, checkpoint))
    if not getattr(tokenizer, "is_fast", False):
        raise StratoscopeError(
            f"'{spec.source}' has no fast tokenizer, which the alignment of words needs;"
            " convert it, so that the folder holds a tokenizer.json"
        )
    # Without its files transformers builds a tokenizer that knows its special tokens only: every word is unknown.
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    if not set(vocabulary) - set(tokenizer.all_special_tokens):
        raise StratoscopeError(f"'{spec.source}' has no tokenizer files; save the tokenizer beside the weights")
    return tokenizer


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, else MPS, else the CPU; a device that is not there is an error."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    kind, _, _ = name.partition(":")
    if name == "auto":
        return torch.device(next(k for k, here in present.items() if here))
    if kind not in present:
        raise unknown_name("device", name, DEVICES)
    if not present[kind]:
        raise StratoscopeError(f"device '{name}' is not available here; give --device cpu or auto")
    return torch.device(name)


def resolve(spec: ModelSpec) -> Checkpoint:
    """Where a model comes from, refused unless it can be loaded safely."""
    if spec.dtype not in DTYPES:
        raise unknown_name("dtype", spec.dtype, DTYPES)
    if spec.loaded is not None:
        return Checkpoint(spec.source, local=True)
    checkpoint = checkpoints.locate(spec.source)
    if not checkpoint.local:
        checkpoint = replace(checkpoint, revision=checkpoint.revision or spec.revision)
    if (folder := _adapter_folder(checkpoint)) is not None:
        adapter = Adapter.read(folder)
        adapter.check(allow_pickle=spec.allow_pickle)
        checkpoint = replace(_base_of(adapter, spec), adapter=folder, note=checkpoint.note)
    checkpoints.check_folder(checkpoint, weights=not spec.random_init, allow_pickle=spec.allow_pickle)
    if checkpoint.local and not spec.random_init:
        with guarded(spec.source, "weights", local=True):
            checkpoints.check_headers(checkpoint)
    if checkpoint.gguf_file:
        optional_module("gguf", extra="gguf", wanted_for=f"reading '{spec.source}'")
    return checkpoint


def _adapter_folder(checkpoint: Checkpoint) -> Path | None:
    """Where the adapter is, if it is one; on the hub, what has no configuration of a model may be."""
    if checkpoint.gguf_file:
        return None
    if checkpoint.local:
        folder = Path(checkpoint.source)
        return folder if (folder / ADAPTER).is_file() else None
    source, revision = checkpoint.source, checkpoint.revision
    if on_hub(source, revision, CONFIG) is not None or (config_file := on_hub(source, revision, ADAPTER)) is None:
        return None
    for name in (ADAPTER_WEIGHTS, "tokenizer.json", "tokenizer_config.json"):
        on_hub(source, revision, name)
    return config_file.parent


def _base_of(adapter: Adapter, spec: ModelSpec) -> Checkpoint:
    """The model that an adapter is merged into."""
    named = spec.base or adapter.base
    if named is None:
        raise StratoscopeError(f"the adapter '{spec.source}' does not name its base model", "give --base")
    try:
        checkpoint = checkpoints.locate(named)
    except StratoscopeError as e:
        if spec.base is not None:
            raise
        raise StratoscopeError(
            f"the adapter '{spec.source}' was trained on '{named}', which is not there", "give --base, where it is now"
        ) from e
    if _adapter_folder(checkpoint) is not None:
        raise StratoscopeError(
            f"the base '{named}' of the adapter '{spec.source}' is an adapter itself; merge it first"
        )
    return checkpoint


def load_options(spec: ModelSpec, checkpoint: Checkpoint) -> dict[str, Any]:
    """What every `from_pretrained` is given besides the source."""
    options: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if not checkpoint.local:
        options["revision"] = _commit(checkpoint.source, checkpoint.revision)
        options["local_files_only"] = not _reachable(checkpoint.source, checkpoint.revision)
    if checkpoint.gguf_file:
        options["gguf_file"] = checkpoint.gguf_file
    return options


@cache
def on_hub(source: str, revision: str | None, name: str) -> Path | None:
    """A file of a hub model, fetched into the cache; None where the model has none, or cannot be had."""
    from transformers.utils.hub import cached_file

    silent = ("missing_entries", "connection_errors", "gated_repo")
    how = {f"_raise_exceptions_for_{kind}": False for kind in silent}
    try:
        with quiet():
            path = cached_file(
                source, name, revision=revision, local_files_only=not _reachable(source, revision), **how
            )
    except Exception:  # whoever loads the model says what is wrong with it
        return None
    return None if path is None else Path(path)


@cache
def _reachable(source: str, revision: str | None) -> bool:
    """Whether the hub answers, asked once per model; without it only what was downloaded before is looked at."""
    return hub_answers(source, revision, kind="model")


@cache
def _commit(source: str, revision: str | None) -> str | None:
    """The commit a branch, a tag or nothing stands for, asked once: a branch may move between looking and loading."""
    from transformers.utils.hub import cached_file

    # The hub's cache keeps each file in a folder named by its commit; the configuration no longer tells it.
    path = cached_file(source, CONFIG, revision=revision, local_files_only=not _reachable(source, revision))
    return None if path is None else Path(path).parent.name


def load_config(spec: ModelSpec, checkpoint: Checkpoint) -> Any:
    """The configuration of a checkpoint; what is neither encoder nor decoder is refused."""
    with guarded(spec.source, "configuration", local=checkpoint.local):
        from transformers import AutoConfig

        if spec.loaded is not None:
            config = spec.loaded.config()
        else:
            config = AutoConfig.from_pretrained(checkpoint.source, **load_options(spec, checkpoint))
        if not all(isinstance(name, str) for name in getattr(config, "architectures", None) or ()):
            raise ValueError(f"architectures: expected names, got {config.architectures}")
        if checkpoint.adapter is not None:
            Adapter.read(checkpoint.adapter).configure_(config)
    if getattr(config, "is_encoder_decoder", False):
        raise StratoscopeError(
            f"'{spec.source}' is an encoder-decoder ({config.model_type}); only encoder-only and decoder-only"
            " models are supported now"
        )
    return config


def _fingerprint(spec: ModelSpec, checkpoint: Checkpoint, config: Any, encoder: Encoder) -> str:
    if spec.random_init:
        plain = {k: repr(v) for k, v in config.to_dict().items() if k not in _NOT_ARCHITECTURE}
        text = encoder.tokenizer.backend_tokenizer.to_str().encode()
        return f"random-init seed {spec.seed} of {digest([plain, hashlib.sha256(text).hexdigest()])}"
    return identity(spec, checkpoint)


def identity(spec: ModelSpec, checkpoint: Checkpoint) -> str:
    """Which weights a model has: commit on the hub or sha256 of its files, of base and adapter alike."""
    if spec.loaded is not None:
        return spec.loaded.fingerprint
    if checkpoint.local:
        fingerprint = checkpoints.fingerprint(checkpoint)
        checkpoints.check_unchanged(checkpoint, fingerprint)
    else:
        fingerprint = str(_commit(checkpoint.source, checkpoint.revision))
    if checkpoint.adapter is None:
        return fingerprint
    both = f"{fingerprint} {Adapter.read(checkpoint.adapter).fingerprint}".encode()
    return f"adapter sha256:{hashlib.sha256(both).hexdigest()}"


_NOT_ARCHITECTURE = ("_name_or_path", "transformers_version", "dtype", "architectures", "_commit_hash")
