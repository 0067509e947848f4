"""Checkpoints on disk: what a folder must hold before it is loaded, and the hash that says which weights they are."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home, file_sha256
from stratoscope.runs.kinds import kind_named

CONFIG = "config.json"
TUNED = kind_named("finetuned").file
SAFE = "model.safetensors"
SAFE_INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WEIGHTS = (SAFE, SAFE_INDEX, *PICKLES)
"""Files that hold the weights or name those that do, in the order in which `from_pretrained` looks for them."""
TOKENIZER_FILES = "tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.spm", "added_tokens.json", "special_tokens*"
ADAPTER = "adapter_config.json"
STEP = re.compile(r"checkpoint-(\d+)")
"""Folders that a Trainer writes while it trains, by their step."""
PART = re.compile(rf"{STEP.pattern}|\d+_Transformer")
"""Names of folders that are part of a model's folder: the parent's name tells more."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a model comes from, in the words of `from_pretrained`."""

    source: str
    """Folder or hub id."""
    local: bool
    gguf_file: str | None = None
    """Name of the GGUF file inside the folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    adapter: Path | None = None
    """Folder of the PEFT adapter that is merged into it."""
    note: str = ""
    """What the user should know of how it was found."""


def locate(source: str) -> Checkpoint:
    """Tell a local folder, a GGUF file and a hub id apart; what looks like a path must exist."""
    path = at_home(source)
    if path.is_dir():
        return _inside(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return Checkpoint(str(path.parent), local=True, gguf_file=path.name)
        raise StratoscopeError(f"model '{source}' is a file; expected a checkpoint folder, a .gguf file or a hub id")
    name, at, revision = source.partition("@")
    looks_like_a_path = source.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_a_path or path.suffix.lower() == ".gguf" or not name.strip():
        raise StratoscopeError(f"no model at '{source}'; expected a checkpoint folder, a .gguf file or a hub id")
    if at and not revision.strip():
        raise StratoscopeError(f"expected a revision after the @ of '{source}', got none; give name@revision")
    return Checkpoint(name, local=False, revision=revision or None)


def label_of(source: str) -> str:
    """What a model without a name is called: its folder, or the one around a part; on the hub, with its revision."""
    path = Path(source)
    if source.startswith(".") or PART.fullmatch(path.name):
        path = at_home(path).resolve()
    if "@" in source and not path.exists():  # a branch may have a name with slashes
        name, _, revision = source.partition("@")
        return f"{Path(name).name}@{revision}"
    return path.parent.name or path.name if PART.fullmatch(path.name) else path.name


def _inside(folder: Path) -> Checkpoint:
    """The checkpoint that a folder is or holds: a Transformer of sentence-transformers, or the best of a training."""
    if any((folder / name).is_file() for name in (CONFIG, ADAPTER)):
        return Checkpoint(str(folder), local=True)
    for module in _list_in(folder / "modules.json"):
        path = module.get("path") if isinstance(module, dict) else None
        if isinstance(path, str) and PART.fullmatch(path) and (folder / path / CONFIG).is_file():
            return Checkpoint(str(folder / path), local=True)
    steps = sorted((int(m[1]), p) for p in folder.iterdir() if (m := STEP.fullmatch(p.name)) and p.is_dir())
    steps = [(step, p) for step, p in steps if any((p / name).is_file() for name in (CONFIG, ADAPTER))]
    if not steps:
        return Checkpoint(str(folder), local=True)
    last = steps[-1][1]
    states = (_mapping_in(place / "trainer_state.json") for place in (folder, last))
    named = next((s["best_model_checkpoint"] for s in states if s.get("best_model_checkpoint")), "")
    best = next((p for _, p in steps if p.name == Path(str(named)).name), None)
    taken, why = (best, "the best by trainer_state.json") if best else (last, "the last")
    note = f"{folder} is the folder of a training: {taken.name} is read, {why} of {len(steps)}; name another to read it"
    return Checkpoint(str(taken), local=True, note=note)


def _json_in(path: Path) -> Any:
    """What a JSON file says; None where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _mapping_in(path: Path) -> dict[str, Any]:
    plain = _json_in(path)
    return plain if isinstance(plain, dict) else {}


def _list_in(path: Path) -> list[Any]:
    plain = _json_in(path)
    return plain if isinstance(plain, list) else []


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
    if weights and held is not None and held.endswith(".json"):
        shards_of(folder / held)


def check_headers(checkpoint: Checkpoint) -> None:
    """Raise for safetensors cut short or otherwise damaged, as far as their headers and sizes tell."""
    for path in weight_files(checkpoint):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                pass


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
        shards = shards_of(path)
        if absent := [s for s in shards if not (folder / s).is_file()]:
            raise StratoscopeError(f"{folder} lacks the weight file {absent[0]} its index names; fetch it again")
        return [path, *(folder / s for s in shards)]
    return []


def shards_of(index: Path) -> list[str]:
    """The weight files that an index names; those of safetensors name safetensors beside them and nothing else."""
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
        raise StratoscopeError(f"{index} is damaged ({e!r}); fetch the checkpoint again") from e
    ending = ".safetensors" if index.name == SAFE_INDEX else ".bin"
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(ending):
            raise StratoscopeError(
                f"{index} names the weight file '{shard}'; expected names that end in {ending} and lie beside it;"
                " fetch the checkpoint again from a source you trust"
            )
    return shards


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
