"""Checkpoints on disk: what a folder must hold before it is loaded, and the hash that says which weights they are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import file_sha256
from stratoscope.runs.kinds import kind_named

CONFIG = "config.json"
TUNED = kind_named("finetuned").file
SAFE = "model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WEIGHTS = (SAFE, "model.safetensors.index.json", *PICKLES)
"""Files that hold the weights or name those that do, in the order in which `from_pretrained` looks for them."""
TOKENIZER_FILES = "tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.spm", "added_tokens.json", "special_tokens*"


@dataclass(frozen=True)
class Checkpoint:
    """Where a model comes from, in the words of `from_pretrained`."""

    source: str
    """Folder or hub id."""
    local: bool
    gguf_file: str | None = None
    """Name of the GGUF file inside the folder."""


def locate(source: str) -> Checkpoint:
    """Tell a local folder, a GGUF file and a hub id apart; what looks like a path must exist."""
    path = Path(source).expanduser()
    if path.is_dir():
        return Checkpoint(str(path), local=True)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return Checkpoint(str(path.parent), local=True, gguf_file=path.name)
        raise StratoscopeError(f"model '{source}' is a file; expected a checkpoint folder, a .gguf file or a hub id")
    looks_like_a_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if looks_like_a_path or path.suffix.lower() == ".gguf" or not source.strip():
        raise StratoscopeError(f"no model at '{source}'; expected a checkpoint folder, a .gguf file or a hub id")
    return Checkpoint(source, local=False)


def check_folder(checkpoint: Checkpoint, *, weights: bool, allow_pickle: bool) -> None:
    """Refuse a folder that cannot be loaded safely, before anything is read from it."""
    if not checkpoint.local or checkpoint.gguf_file:
        return
    folder = Path(checkpoint.source)
    if not (folder / CONFIG).is_file():
        raise StratoscopeError(f"{folder} has no {CONFIG}; expected a checkpoint folder written by save_pretrained")
    held = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights and held is None:
        raise StratoscopeError(
            f"{folder} has no weights ({SAFE})", "give a checkpoint folder written by save_pretrained"
        )
    if weights and held in PICKLES and not allow_pickle:
        raise StratoscopeError(
            f"{folder} holds its weights as a pickle only ({held}), which can run code when loaded;"
            " convert it to safetensors, or give --allow-pickle if you trust it"
        )


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    """The files `from_pretrained` reads the weights from: safetensors first, shards by their index."""
    folder = Path(checkpoint.source)
    if checkpoint.gguf_file:
        return [folder / checkpoint.gguf_file]
    for name in WEIGHTS:
        path = folder / name
        if not path.is_file():
            continue
        if not name.endswith(".json"):
            return [path]
        try:
            shards = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as e:
            raise StratoscopeError(f"{path} is damaged ({e!r}); fetch the checkpoint again") from e
        if absent := [s for s in shards if not (folder / s).is_file()]:
            raise StratoscopeError(f"{folder} lacks the weight file {absent[0]} its index names; fetch it again")
        return [path, *(folder / s for s in shards)]
    return []


def fingerprint(checkpoint: Checkpoint) -> str:
    """Sha256 over everything in a folder that decides the activations: weights, configuration, tokenizer, own code."""
    folder = Path(checkpoint.source)
    files = weight_files(checkpoint)
    if not checkpoint.gguf_file:
        files += sorted({p for kind in (CONFIG, *TOKENIZER_FILES, "*.py") for p in folder.glob(kind) if p.is_file()})
    h = hashlib.sha256()
    for path in files:
        h.update(f"{path.name} {file_sha256(path)}\n".encode())
    return f"sha256:{h.hexdigest()}"


def check_unchanged(checkpoint: Checkpoint, found: str) -> None:
    """Refuse a fine-tuned checkpoint whose files are not those its record was written for."""
    try:
        record = json.loads((Path(checkpoint.source) / TUNED).read_text(encoding="utf-8"))
        recorded = record["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # none of ours, or a record that cannot be read, which whoever needs it will say
    if recorded != found:
        raise StratoscopeError(
            f"the checkpoint {checkpoint.source} is damaged or was changed after fine-tuning: its files do not match"
            f" the fingerprint in {TUNED} (recorded {str(recorded)[:15]}, now {found[:15]})",
            "fine-tune it again",
            f"remove {TUNED} if you changed it on purpose",
        )
