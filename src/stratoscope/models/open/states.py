"""Weights that come as tensors rather than as a checkpoint: an adapter merged into its base, a model in memory."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home, file_sha256
from stratoscope.data.extras import optional_module
from stratoscope.models.open.checkpoints import ADAPTER, CONFIG, TOKENIZER_FILES, WEIGHTS

SAFE, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
"""What the names of an adapter's tensors begin with."""
IN_MEMORY = "in memory: "
AUTO_CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "CAUSAL_LM": "AutoModelForCausalLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}
"""The model an adapter was trained on, by the task its configuration names."""
OUTPUTS = re.compile(r"(?:^|\.)(?:score|classifier|out_proj|logits_proj)\.weight$")
"""Last weight of a classification head: its rows are the labels."""


@dataclass(frozen=True)
class Adapter:
    """A PEFT adapter in a folder."""

    folder: Path
    config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Adapter:
        """The adapter of a folder; refused where it is damaged, or where a whole model lies beside it."""
        try:
            config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as e:
            raise StratoscopeError(f"{folder / ADAPTER} is damaged ({e}); save the adapter again") from e
        if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
            raise StratoscopeError(f"{folder / ADAPTER} names no peft_type; save the adapter again with peft")
        if both := [name for name in (CONFIG, *WEIGHTS) if (folder / name).is_file()]:
            raise StratoscopeError(
                f"{folder} holds an adapter ({ADAPTER}) and a whole model ({both[0]}): which one is meant is not clear;"
                " move one of them to a folder of its own"
            )
        return cls(folder, config)

    @property
    def base(self) -> str | None:
        """The model it was trained on, as its configuration names it."""
        name, revision = (self.config.get(key) for key in ("base_model_name_or_path", "revision"))
        pinned = revision and not at_home(str(name)).exists()
        return f"{name}@{revision}" if name and pinned else str(name) if name else None

    @property
    def fingerprint(self) -> str:
        """Sha256 over its configuration, its weights and its tokenizer."""
        kinds = (ADAPTER, SAFE, PICKLE, *TOKENIZER_FILES)
        files = sorted({p for kind in kinds for p in self.folder.glob(kind) if p.is_file()})
        return hashlib.sha256("".join(f"{p.name} {file_sha256(p)}\n" for p in files).encode()).hexdigest()

    @property
    def has_tokenizer(self) -> bool:
        return (self.folder / "tokenizer.json").is_file()

    def check(self, *, allow_pickle: bool) -> None:
        """Refuse an adapter without safe weights."""
        if (self.folder / SAFE).is_file() or (allow_pickle and (self.folder / PICKLE).is_file()):
            return
        if (self.folder / PICKLE).is_file():
            raise StratoscopeError(
                f"{self.folder} holds its weights as a pickle only ({PICKLE}), which can run code when loaded;"
                " save the adapter as safetensors, or give --allow-pickle if you trust it"
            )
        raise StratoscopeError(f"{self.folder} has no weights ({SAFE}); give an adapter folder written by peft")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by its name in the model; empty for a pickle."""
        if not (self.folder / SAFE).is_file():
            return {}
        try:
            with safe_open(self.folder / SAFE, framework="pt") as f:
                return {plain_name(name): tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as e:
            raise StratoscopeError(f"{self.folder / SAFE} is damaged ({e}); save the adapter again") from e

    @property
    def auto_class(self) -> Any:
        """The class of model that it was trained on."""
        import transformers

        task = self.config.get("task_type")
        own = (self.config.get("auto_mapping") or {}).get("base_model_class")
        auto_class = getattr(transformers, str(AUTO_CLASSES.get(str(task), own or "AutoModel")), None)
        if auto_class is None:
            raise StratoscopeError(f"the adapter {self.folder} is for '{own}', which transformers does not have")
        return auto_class

    def configure_(self, config: Any) -> None:
        """Make the base's configuration that of the model with the adapter: its head and number of labels."""
        mapping = getattr(self.auto_class, "_model_mapping", {})
        trained = mapping.get(type(config), self.auto_class)
        config.architectures = [(trained[0] if isinstance(trained, tuple) else trained).__name__]
        outputs = [shape for name, shape in self.shapes.items() if OUTPUTS.search(name)]
        if outputs and config.architectures[0].endswith(("SequenceClassification", "TokenClassification")):
            config.num_labels = outputs[-1][0]

    def merged(self, load: Callable[[Any], tuple[Any, Mapping[str, Any]]]) -> dict[str, Tensor]:
        """Weights of the base with the adapter in it; `load` opens the base as a class, with what was missing."""
        peft = optional_module("peft", extra="peft", wanted_for=f"the adapter {self.folder}")
        module, info = load(self.auto_class)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = peft.PeftModel.from_pretrained(module, str(self.folder), torch_device="cpu")
            own = {plain_name(k) for k in peft.get_peft_model_state_dict(tuned, save_embedding_layers=False)}
        if not hasattr(tuned, "merge_and_unload") or not hasattr(tuned.base_model, "merge_and_unload"):
            raise StratoscopeError(
                f"the adapter {self.folder} ({self.config['peft_type']}) cannot be merged into its base; give one that"
                " can, such as LoRA"
            )
        # peft passes over what does not fit: an adapter of another model would change nothing, without a word.
        plain = {plain_name(name) for name, _ in tuned.base_model.model.named_parameters()}
        if strange := sorted((own ^ set(self.shapes)) - plain if self.shapes else ()):
            raise StratoscopeError(
                f"the adapter {self.folder} does not fit its base: {len(strange)} of its tensors have no place or are"
                f" missing (first: {strange[0]})",
                "give --base the model it was trained on",
            )
        made_up = set(info["missing_keys"]) - own
        state = tuned.merge_and_unload().state_dict()
        return {name: t for name, t in state.items() if name not in made_up}


def plain_name(name: str) -> str:
    """The name that a tensor of an adapter has in the model."""
    return name.removeprefix(PREFIX).replace(".modules_to_save", "").replace(".base_layer", "")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model and its tokenizer as the caller has them in memory; neither is changed."""

    module: nn.Module
    tokenizer: Any

    @classmethod
    def of(cls, pair: tuple[Any, Any]) -> Loaded:
        """A pair of model and tokenizer, refused unless they are a transformers model and a tokenizer."""
        module, tokenizer = pair
        if not isinstance(module, nn.Module) or not hasattr(getattr(module, "config", None), "model_type"):
            raise StratoscopeError(f"expected a transformers model before its tokenizer, got {type(module).__name__}")
        if not hasattr(tokenizer, "get_vocab"):
            raise StratoscopeError(f"expected the model's tokenizer beside it, got {type(tokenizer).__name__}")
        if getattr(module.config, "quantization_config", None) is not None:
            raise StratoscopeError("the model in memory is quantised; load it without, for example in bfloat16")
        return cls(module, tokenizer)

    @property
    def source(self) -> str:
        """What it was loaded from; it may have been trained since."""
        return IN_MEMORY + str(getattr(self.module.config, "_name_or_path", "") or type(self.module).__name__)

    def config(self) -> Any:
        """A configuration of its own."""
        made: Any = copy.deepcopy(self.module.config)
        made.architectures = [type(self._plain_module()).__name__]
        return made

    def state(self) -> dict[str, Tensor]:
        """A copy of the weights, an adapter merged into them."""
        module: Any = self.module
        if hasattr(module, "merge_and_unload"):
            module = copy.deepcopy(module).merge_and_unload()
        return {name: t.detach().clone() for name, t in module.state_dict().items()}

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over weights, configuration and tokenizer."""
        config: Any = self.module.config
        h = hashlib.sha256(repr(sorted(config.to_diff_dict().items())).encode())
        h.update(json.dumps(self.tokenizer.get_vocab(), sort_keys=True).encode("utf-8", "surrogatepass"))
        for name, t in sorted(self.module.state_dict().items()):
            h.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
            h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return f"in memory sha256:{h.hexdigest()}"

    def _plain_module(self) -> Any:
        """The model inside a PeftModel; a plain one is itself."""
        module: Any = self.module
        return module.get_base_model() if hasattr(module, "merge_and_unload") else module
