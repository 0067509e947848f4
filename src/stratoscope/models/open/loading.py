"""Load a model and its tokenizer from a folder or the hub; weights that are missing are an error, never made up."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import digest
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.extras import optional_module
from stratoscope.data.formats.hub import hub_answers
from stratoscope.models.families import Family, depth, family_of, known_family, width
from stratoscope.models.open import checkpoints
from stratoscope.models.open.checkpoints import CONFIG, Checkpoint
from stratoscope.models.open.guard import guarded, seeded
from stratoscope.models.text.encoder import Encoder, window_of

DTYPES = ("float32", "float16", "bfloat16", "auto")
DEVICES = ("auto", "cpu", "cuda", "mps")
UNUSED_WEIGHTS = re.compile(r"(^|\.)pooler\.")
"""Weights that no hidden state depends on; a checkpoint may lack them."""


@dataclass(frozen=True)
class ModelSpec:
    """A model as the user asked for it."""

    source: str
    """Checkpoint folder, `.gguf` file or hub id."""
    name: str | None = None
    """Label in results; the last part of the source when not given."""
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

    @property
    def label(self) -> str:
        """The name, made from the source when none was given."""
        if self.name:
            return self.name
        stem = Path(self.source).expanduser().resolve().name if self.source.startswith(".") else Path(self.source).name
        return f"{stem}-random" if self.random_init else stem


@dataclass(frozen=True)
class Survey:
    """What is known of a model without its weights: enough to plan rows and to recognise earlier work."""

    encoder: Encoder
    layers: int
    """L+1: the embeddings and every block."""
    width: int
    fingerprint: str
    """Hub commit, sha256 of the local files, or the seed and configuration of a random initialisation."""
    dtype: str

    @property
    def family(self) -> Family:
        """The family's row; `detected` when the architecture is not in the table."""
        return self.encoder.family


@dataclass(frozen=True)
class LoadedModel:
    """A base model in eval mode with the tokenizer that feeds it."""

    name: str
    source: str
    module: nn.Module
    encoder: Encoder
    layers: int
    """L+1: the embeddings and every block."""
    width: int
    fingerprint: str
    """Hub commit, sha256 of the local files, or the seed and configuration of a random initialisation."""
    device: torch.device
    dtype: str

    @property
    def tokenizer(self) -> Any:
        """The fast tokenizer."""
        return self.encoder.tokenizer

    @property
    def family(self) -> Family:
        """The family's row; `detected` when the architecture is not in the table."""
        return self.encoder.family


def load_tokenizer(spec: ModelSpec) -> Any:
    """Load the fast tokenizer of a checkpoint."""
    checkpoint = checked(spec)
    with guarded(spec.source, "tokenizer", local=checkpoint.local):
        from transformers import AutoTokenizer

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


def survey(spec: ModelSpec, *, progress: Progress | None = None) -> Survey:
    """Look at a model without loading its weights; an architecture outside the table is told through `progress`."""
    if spec.dtype not in DTYPES:
        raise unknown_name("dtype", spec.dtype, DTYPES)
    checkpoint = checked(spec)
    config = load_config(spec, checkpoint)
    family = known_family(config) or family_of(_skeleton(config, spec, checkpoint))
    if family.detected:
        (progress or Silent()).note(
            f"'{spec.label}' is a {config.model_type}, which is not in the table of families: its blocks were taken"
            f" to be '{family.blocks}', its final norm {family.final_norm or 'absent'}"
        )
    encoder = _encoder(spec, config, family)
    stored = getattr(config, "dtype", None) or torch.float32
    return Survey(
        encoder=encoder,
        layers=depth(config) + 1,
        width=width(config),
        fingerprint=_fingerprint(spec, checkpoint, config, encoder),
        dtype=str(stored).removeprefix("torch.") if spec.dtype == "auto" else spec.dtype,
    )


def load(spec: ModelSpec, *, seen: Survey | None = None, progress: Progress | None = None) -> LoadedModel:
    """Load a model as its bare encoder; a head in the checkpoint is left out."""
    device = choose_device(spec.device)
    seen = seen or survey(spec, progress=progress)
    checkpoint = checked(spec)
    config = load_config(spec, checkpoint)
    module = random_model(config, spec, checkpoint) if spec.random_init else _stored(config, spec, checkpoint)
    return LoadedModel(
        name=spec.label,
        source=spec.source,
        module=module.to(device).eval().requires_grad_(False),
        encoder=seen.encoder,
        layers=seen.layers,
        width=seen.width,
        fingerprint=seen.fingerprint,
        device=device,
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
    )


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


def checked(spec: ModelSpec) -> Checkpoint:
    checkpoint = checkpoints.locate(spec.source)
    checkpoints.check_folder(checkpoint, weights=not spec.random_init, allow_pickle=spec.allow_pickle)
    if checkpoint.gguf_file:
        optional_module("gguf", extra="gguf", wanted_for=f"reading '{spec.source}'")
    return checkpoint


def load_options(spec: ModelSpec, checkpoint: Checkpoint) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if not checkpoint.local:
        options["revision"] = _commit(checkpoint.source, spec.revision)
        options["local_files_only"] = not _reachable(checkpoint.source, spec.revision)
    if checkpoint.gguf_file:
        options["gguf_file"] = checkpoint.gguf_file
    return options


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
    with guarded(spec.source, "configuration", local=checkpoint.local):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(checkpoint.source, **load_options(spec, checkpoint))
    if getattr(config, "is_encoder_decoder", False):
        raise StratoscopeError(
            f"'{spec.source}' is an encoder-decoder ({config.model_type}); only encoder-only and decoder-only"
            " models are supported now"
        )
    return config


def _stored(config: Any, spec: ModelSpec, checkpoint: Checkpoint) -> nn.Module:
    with guarded(spec.source, "weights", local=checkpoint.local), seeded(0):
        from transformers import AutoModel

        module, info = AutoModel.from_pretrained(
            checkpoint.source,
            config=None if checkpoint.gguf_file else config,
            dtype=spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype),
            use_safetensors=None if spec.allow_pickle else True,
            output_loading_info=True,
            **load_options(spec, checkpoint),
        )
    missing = sorted(key for key in info["missing_keys"] if not UNUSED_WEIGHTS.search(key))
    if missing:
        raise StratoscopeError(
            f"'{spec.source}' lacks {len(missing)} of the encoder's weights (first: {missing[0]}), which would be"
            f" made up at random; give a complete {config.model_type} checkpoint"
        )
    # Some parameters are created in float32 whatever was asked (DeBERTa's biases) and would not multiply with the rest.
    loaded: nn.Module = module
    mixed = getattr(loaded, "_keep_in_fp32_modules", None)
    return loaded if spec.dtype == "auto" or mixed else loaded.to(getattr(torch, spec.dtype))


def random_model(config: Any, spec: ModelSpec, checkpoint: Checkpoint) -> nn.Module:
    with guarded(spec.source, "architecture", local=checkpoint.local), seeded(spec.seed):
        module = _architecture(config, spec, dtype=torch.float32)
    return module if spec.dtype == "auto" else module.to(getattr(torch, spec.dtype))


def _skeleton(config: Any, spec: ModelSpec, checkpoint: Checkpoint) -> nn.Module:
    """The architecture without any memory for weights, to look for its blocks."""
    with guarded(spec.source, "architecture", local=checkpoint.local), torch.device("meta"):
        return _architecture(config, spec)


def _architecture(config: Any, spec: ModelSpec, **options: Any) -> nn.Module:
    from transformers import AutoModel

    build: Any = AutoModel.from_config
    module: nn.Module = build(config, trust_remote_code=spec.trust_remote_code, **options)
    return module


def _encoder(spec: ModelSpec, config: Any, family: Family) -> Encoder:
    tokenizer = load_tokenizer(spec)
    kinds = getattr(config, "type_vocab_size", 2)
    return Encoder(
        name=spec.label,
        tokenizer=tokenizer,
        family=family,
        window=window_of(config, tokenizer, family),
        vocabulary=int(config.get_text_config().vocab_size),
        segments=family.segments and kinds > 1,
    )


def _fingerprint(spec: ModelSpec, checkpoint: Checkpoint, config: Any, encoder: Encoder) -> str:
    if spec.random_init:
        plain = {k: repr(v) for k, v in config.to_dict().items() if k not in _NOT_ARCHITECTURE}
        text = encoder.tokenizer.backend_tokenizer.to_str().encode()
        return f"random-init seed {spec.seed} of {digest([plain, hashlib.sha256(text).hexdigest()])}"
    if checkpoint.local:
        return checkpoints.fingerprint(checkpoint)
    return str(_commit(checkpoint.source, spec.revision))


_NOT_ARCHITECTURE = ("_name_or_path", "transformers_version", "dtype", "architectures", "_commit_hash")
