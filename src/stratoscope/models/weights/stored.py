"""Two checkpoints, or a checkpoint and an adapter of it, read tensor by tensor from safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import FAMILIES
from stratoscope.models.open.checkpoints import CONFIG, SAFE, SAFE_INDEX, Checkpoint, shards_of
from stratoscope.models.open.loading import on_hub
from stratoscope.models.open.states import SAFE as ADAPTER_WEIGHTS
from stratoscope.models.open.states import Adapter, plain_name
from stratoscope.models.weights.change import Change, Factors

INDEX = re.compile(r"(.+?)\.(\d+)\.(.+)")
"""A parameter of a list of modules: the list, the position, the rest."""
EMBEDDING = re.compile(r"emb|wte|wpe|word_|shared", re.IGNORECASE)
EXPERT = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""Which of several like modules of one block, such as experts: they are taken together."""
LORA = re.compile(r"(.+)\.lora_(embedding_)?(A|B|magnitude_vector)(?:\.weight)?")
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(frozen=True)
class Stored:
    """The tensors of a checkpoint on disk, none of them in memory."""

    folder: str
    files: Mapping[str, tuple[str, str]]
    """By name of a parameter, its file and its name there."""
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: tuple[str, ...]
    config: Mapping[str, Any]

    def tensor(self, name: str) -> Tensor:
        """One of them, alone in memory."""
        path, there = self.files[name]
        with safe_open(path, framework="pt") as f:
            tensor: Tensor = f.get_tensor(there)
        return tensor

    def renamed(self, prefix: str) -> Stored:
        """The same without a prefix that some of the names have."""
        files = {name.removeprefix(prefix): v for name, v in self.files.items()}
        shapes = {name.removeprefix(prefix): v for name, v in self.shapes.items()}
        return replace(self, files=files, shapes=shapes)


def open_stored(checkpoint: Checkpoint, source: str) -> Stored:
    """The tensors of a checkpoint, in a folder or on the hub."""
    if checkpoint.gguf_file:
        raise StratoscopeError(
            f"'{source}' is a GGUF file; weights are read from safetensors: give the original folder"
        )
    if checkpoint.local:
        folder = Path(checkpoint.source)
        single, index = (p if (p := folder / name).is_file() else None for name in (SAFE, SAFE_INDEX))
    else:
        single, index = (on_hub(checkpoint.source, checkpoint.revision, name) for name in (SAFE, SAFE_INDEX))
    paths = [single] if single else []
    if not paths and index is not None:
        shards = shards_of(index)
        names = [index.parent / s if checkpoint.local else on_hub(checkpoint.source, checkpoint.revision, s)
                 for s in shards]  # fmt: skip
        paths = [p for p in names if p is not None and p.is_file()]
        if len(paths) < len(shards):
            raise StratoscopeError(f"'{source}' lacks {len(shards) - len(paths)} of its weight files; fetch it again")
    if not paths:
        raise StratoscopeError(
            f"'{source}' has no safetensors weights ({SAFE}), or cannot be reached; convert it first"
        )
    config = paths[0].parent / CONFIG
    if not checkpoint.local:
        config = on_hub(checkpoint.source, checkpoint.revision, CONFIG) or config
    return _read(paths, config)


def _read(paths: Iterable[Path], config: Path | None) -> Stored:
    files: dict[str, tuple[str, str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: set[str] = set()
    folder = ""
    for path in paths:
        folder = str(path.parent)
        try:
            with safe_open(path, framework="pt") as f:
                for there in f.keys():  # noqa: SIM118
                    part, name = f.get_slice(there), plain_name(there)
                    for old, new in OLD_NAMES.items():  # as transformers reads them
                        name = name.removesuffix(old) + new if name.endswith(old) else name
                    if part.get_dtype() in ("F64", "F32", "F16", "BF16"):  # a table of positions is no weight
                        files[name], shapes[name] = (str(path), there), tuple(part.get_shape())
                        dtypes.add(part.get_dtype())
        except (OSError, SafetensorError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); fetch it again") from e
    try:
        said = json.loads(config.read_text(encoding="utf-8")) if config else {}
    except (OSError, ValueError, RecursionError):
        said = {}
    return Stored(folder, files, shapes, tuple(sorted(dtypes)), said if isinstance(said, dict) else {})


@dataclass(frozen=True)
class Lora:
    """The tensors of a LoRA adapter by the parameter they change."""

    stored: Stored
    factors: Mapping[str, tuple[str, str]]
    """Names of A and B."""
    magnitudes: Mapping[str, str]
    """Names of DoRA's magnitudes (Liu et al. 2024, arXiv:2402.09353)."""
    saved: Mapping[str, str]
    """Parameters that are stored whole."""
    scales: Mapping[str, float]
    transposed: frozenset[str]
    """Parameters that are stored as the transpose of B A: embeddings, and GPT-2's Conv1D."""

    def change(self, name: str, before: Tensor) -> Change | None:
        """What the adapter does to a parameter: scale · B A, or as a whole where it is stored so or has magnitudes."""
        kept = self.stored.tensor(self.saved[name]).double() if name in self.saved else before.double()
        if name not in self.factors:
            return kept - before.double() if name in self.saved else None
        a, b = (self.stored.tensor(x).double() for x in self.factors[name])
        made = Factors(self.scales[name] * b, a)
        if name in self.transposed:
            made = Factors(made.right.T, made.left.T)
        if name not in self.magnitudes:
            return made if torch.equal(kept, before.double()) else kept + made.whole() - before.double()
        after, across = kept + made.whole(), 0 if name in self.transposed else 1
        size = self.stored.tensor(self.magnitudes[name]).double().reshape(-1)
        factor: Tensor = size / after.square().sum(dim=across).sqrt()
        return after * factor.unsqueeze(across) - before.double()


def open_lora(adapter: Adapter, base: Stored) -> Lora:
    """An adapter's tensors beside those of its base; one that does not fit it is refused."""
    kind = adapter.config["peft_type"]
    path = adapter.folder / ADAPTER_WEIGHTS
    if kind != "LORA" or not path.is_file():
        raise StratoscopeError(f"the adapter {adapter.folder} is {kind}; expected LoRA factors in {ADAPTER_WEIGHTS}")
    stored = _read([path], None)
    halves: dict[str, dict[str, str]] = {}
    saved: dict[str, str] = {}
    for name in stored.files:
        if m := LORA.fullmatch(name):
            halves.setdefault(f"{m[1]}.weight", {})[m[3]] = name
        else:
            saved[_known(name, base.files) or name] = name
    factors, magnitudes, scales, transposed = {}, {}, {}, set()
    for name, parts in halves.items():
        place = _known(name, base.files)
        if place is None or not {"A", "B"} <= set(parts):
            raise StratoscopeError(
                f"the adapter {adapter.folder} does not fit its base, which has no '{name}'",
                "give the model it was trained on",
            )
        factors[place] = parts["A"], parts["B"]
        scales[place] = _scale(adapter.config, name.removesuffix(".weight"), stored.shapes[parts["A"]][0])
        if "magnitude_vector" in parts:
            magnitudes[place] = parts["magnitude_vector"]
        made = stored.shapes[parts["B"]][0], stored.shapes[parts["A"]][1]
        if "lora_embedding" in parts["A"] or adapter.config.get("fan_in_fan_out"):
            transposed.add(place)
            made = made[::-1]
        if made != base.shapes[place]:
            raise StratoscopeError(
                f"the adapter {adapter.folder} does not fit its base: it changes '{name}' by a matrix of {made}, which"
                f" is {base.shapes[place]} there",
                "give the model it was trained on",
            )
    return Lora(stored, factors, magnitudes, saved, scales, frozenset(transposed))


def _known(name: str, names: Iterable[str]) -> str | None:
    """The parameter that an adapter's name is about: the same, but for what a head puts before it."""
    return next((n for n in names if n == name or name.endswith(f".{n}") or n.endswith(f".{name}")), None)


def _scale(config: Mapping[str, Any], module: str, r: int) -> float:
    """alpha/r, or alpha/√r where rank-stabilised (Hu et al. 2022, arXiv:2106.09685; Kalajdzievski 2023)."""
    patterns = config.get("alpha_pattern") or {}
    own = next((a for key, a in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), config.get("lora_alpha", r))
    return float(own) / (r**0.5 if config.get("use_rslora") else r)


@dataclass(frozen=True)
class Pair:
    """Two models by their tensors; what a worker needs to compare some of them."""

    base: Stored
    tuned: Stored | None
    lora: Lora | None
    blocks: str
    """Path of the list of blocks, as `base` has it."""
    names: tuple[str, ...] = field(default=())
    """Parameters that both have."""

    def change(self, name: str, before: Tensor) -> Change | None:
        """What became of a parameter; None where nothing did."""
        if self.lora is not None:
            return self.lora.change(name, before)
        assert self.tuned is not None
        after = self.tuned.tensor(name)
        return after[: len(before)].double() - before[: len(after)].double()

    def place(self, name: str) -> tuple[int | None, str]:
        """Layer of a parameter (0 embeddings, k block k, None elsewhere), and its module there."""
        module = name.rpartition(".")[0] or name
        if name.startswith(f"{self.blocks}."):
            index, _, rest = name.removeprefix(f"{self.blocks}.").partition(".")
            return int(index) + 1, EXPERT.sub("*", rest.rpartition(".")[0] or rest)
        return (0 if EMBEDDING.search(module) and "head" not in module else None), module


def pair_of(base: Stored, tuned: Stored | None, lora: Lora | None, labels: tuple[str, str]) -> Pair:
    """Parameters of two models by the names that both have, whatever heads they come with."""
    blocks = _block_list(base, labels[0])
    if tuned is not None:
        other = _block_list(tuned, labels[1])
        one, two = blocks.split("."), other.split(".")
        shared = sum(1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(one[::-1], two[::-1], strict=False)))
        base, tuned = (
            s.renamed("".join(f"{part}." for part in path[: len(path) - shared]))
            for s, path in ((base, one), (tuned, two))
        )
        blocks = ".".join(one[len(one) - shared :])
    names = [n for n, shape in base.shapes.items() if tuned is None or _alike(shape, tuned.shapes.get(n))]
    if not any(n.startswith(f"{blocks}.") for n in names):
        raise StratoscopeError(
            f"'{labels[0]}' and '{labels[1]}' are not two versions of one model: their blocks have no parameter of the"
            " same name and shape; give a model and what it was trained from"
        )
    return Pair(base, tuned, lora, blocks, tuple(names))


def _alike(one: tuple[int, ...], two: tuple[int, ...] | None) -> bool:
    """Of one shape, but for rows of a table that were added."""
    return one == two or (
        two is not None and len(one) == len(two) == 2 and one[1] == two[1] and min(one[0], two[0]) > 1
    )


def _block_list(stored: Stored, label: str) -> str:
    """Where the blocks are: as the table of families says, else the longest list among the names."""
    lists: dict[str, dict[int, int]] = {}
    for name in stored.files:
        if m := INDEX.fullmatch(name):
            known = lists.setdefault(m[1], {})
            known[int(m[2])] = known.get(int(m[2]), 0) + 1
    family = next((f for f in FAMILIES if stored.config.get("model_type") in f.model_types), None)
    if family is not None:
        own = [p for p in lists if p == family.blocks or p.endswith(f".{family.blocks}")]
        if own:
            return min(own, key=len)
    if not lists:
        raise StratoscopeError(f"'{label}' has no list of blocks among the names of its weights")
    return max(lists, key=lambda p: (len(lists[p]), sum(lists[p].values())))


def vocabulary(folder: str) -> dict[int, str]:
    """Tokens by id, from the tokenizer beside the weights; empty where there is none that can be read."""
    try:
        plain = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
        known = plain["model"]["vocab"]
        pairs = known.items() if isinstance(known, dict) else ((piece[0], k) for k, piece in enumerate(known))
        added = {int(t["id"]): str(t["content"]) for t in plain.get("added_tokens") or ()}
        return {int(k): str(token) for token, k in pairs} | added
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return {}


def row_changes(change: Change, before: Tensor) -> Tensor:
    """Relative change of each row of a table; 0 for rows of zeros that stayed so."""
    moved = (change.whole() if isinstance(change, Factors) else change).norm(dim=1)
    size = before.double()[: len(moved)].norm(dim=1)
    return torch.where(size > 0, moved / size.clamp_min(1e-300), torch.where(moved > 0, torch.inf, 0.0))
