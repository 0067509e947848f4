"""Calls into transformers: silent, seeded, and with what they raise put into one sentence."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError

CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


@contextmanager
def guarded(source: str, what: str, *, local: bool) -> Iterator[None]:
    """Turn whatever transformers raises for a checkpoint it cannot load into one sentence, and keep it silent."""
    try:
        with quiet():
            yield
    except StratoscopeError:
        raise
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

    hub = logging.getLogger("huggingface_hub")
    with ExitStack() as undo:
        undo.callback(hf.set_verbosity, hf.get_verbosity())
        hf.set_verbosity(logging.CRITICAL)
        undo.callback(hub.setLevel, hub.level)
        hub.setLevel(logging.CRITICAL)
        if hf.is_progress_bar_enabled():
            undo.callback(hf.enable_progress_bar)
        hf.disable_progress_bar()  # type: ignore[no-untyped-call]
        # A pickle-only hub repository must not be converted for us behind the user's back.
        undo.callback(_set_variable, CONVERSION, os.environ.get(CONVERSION))
        _set_variable(CONVERSION, "1")
        # The reader of GGUF draws its bar past the switch of transformers; a version without that module has no bar.
        with suppress(ImportError):
            reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
            if bar := getattr(reader, "tqdm", None):
                undo.callback(setattr, reader, "tqdm", bar)
                reader.tqdm = partial(bar, disable=True)
        yield


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights drawn on the CPU come from `seed`; the caller's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def forward_options(module: nn.Module) -> dict[str, Any]:
    """Switch off the caches a decoder (or XLNet) would fill for a next call that never comes."""
    accepted = inspect.signature(module.forward).parameters
    return {name: False for name in ("use_cache", "use_mems") if name in accepted}
