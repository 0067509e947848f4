"""Calls into transformers: silent, seeded, and with what they raise put into one sentence."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError


@contextmanager
def guarded(source: str, what: str, *, local: bool) -> Iterator[None]:
    """Turn whatever transformers raises for a checkpoint it cannot load into one sentence, and keep it silent."""
    try:
        with quiet():
            yield
    except Exception as e:
        # transformers, the hub client, safetensors and remote code raise anything here; the cause stays attached.
        raise _unloadable(source, what, str(e).strip() or type(e).__name__, local=local) from e


def _unloadable(source: str, what: str, text: str, *, local: bool) -> StratoscopeError:
    reason = re.split(r"(?<=[.!?])\s|\n", text)[0].rstrip(".:")
    if "trust_remote_code" in text:
        return StratoscopeError(
            f"'{source}' brings its own code", "read it, and give --trust-remote-code if you want to run it"
        )
    if local:
        return StratoscopeError(
            f"cannot read the {what} of '{source}' ({reason})", "give a checkpoint written by save_pretrained"
        )
    if "safetensors" in text:
        return StratoscopeError(
            f"'{source}' on the hub has no safetensors weights",
            "give another --revision",
            "give --allow-pickle if you trust its pickle",
        )
    return StratoscopeError(
        f"cannot get '{source}': expected a local folder or a hub id that can be reached, got neither ({reason})",
        "check the spelling and the network",
        "give a folder",
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and the hub client, and put their settings back afterwards."""
    from transformers.utils import logging as hf

    verbosity, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    # A pickle-only hub repository must not be converted for us behind the user's back.
    conversion = os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    hf.set_verbosity(logging.CRITICAL)
    hub.setLevel(logging.CRITICAL)
    hf.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with _no_gguf_bar():
            yield
    finally:
        hf.set_verbosity(verbosity)
        hub.setLevel(level)
        if bars:
            hf.enable_progress_bar()  # type: ignore[no-untyped-call]
        if conversion is None:
            del os.environ["DISABLE_SAFETENSORS_CONVERSION"]
        else:
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = conversion


@contextmanager
def _no_gguf_bar() -> Iterator[None]:
    """The reader of GGUF draws its bar past the switch of transformers; a version without that module has no bar."""
    try:
        reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    except ImportError:
        reader = None
    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights drawn on the CPU come from `seed`; the caller's generator is left as it was."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def forward_options(module: nn.Module) -> dict[str, Any]:
    """Switch off the caches a decoder (or XLNet) would fill for a next call that never comes."""
    accepted = inspect.signature(module.forward).parameters
    return {name: False for name in ("use_cache", "use_mems") if name in accepted}
