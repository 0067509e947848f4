"""Model families as data: where blocks and the final norm live, and how inputs and blocks behave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Family:
    """One row of the table; paths are relative to the base model (what `AutoModel` returns)."""

    name: str
    """Value of `config.model_type` this row describes."""
    blocks: str
    """Path of the list of blocks."""
    description: str
    reference: str
    relatives: tuple[str, ...] = ()
    """Other values of `config.model_type` that it describes too."""
    final_norm: str | None = None
    """Path of the norm applied after the last block; layer L is its output."""
    sequence_first: bool = False
    """Blocks work on (sequence, batch, width) instead of (batch, sequence, width)."""
    looped: bool = False
    """The list holds groups that are applied again and again; cutting changes the loop count."""
    cls: Literal["first", "last"] = "first"
    """Which real token the classification head reads."""
    pads_left: bool = False
    """Padding goes before the text. Only for models without absolute positions, whatever the tokenizer says."""
    segments: bool = False
    """The model has segment embeddings, so it must be given token_type_ids."""
    positions: Literal["absolute", "after-padding", "unbounded"] = "absolute"
    """How many tokens fit: all position embeddings, those after the padding index, or no limit."""
    per_layer: tuple[str, ...] = ()
    """Lists in the configuration with one entry per block; an entry goes where its block goes."""
    with_first: tuple[tuple[str, str], ...] = ()
    """(path, configuration field) of what belongs to block 1 but lies outside it; a field of 0 means there is none."""
    needs_block: bool = False
    """The forward pass fails when there is no block at all."""
    down: str | None = None
    """Path inside a block of the projection that ends its feed-forward part, where what it says is added as it is."""
    detected: bool = False
    """Not from the table: the block list was found by looking, and verified when the model is opened."""

    @property
    def model_types(self) -> tuple[str, ...]:
        return (self.name, *self.relatives)


def _table(rows: Iterable[Family]) -> tuple[Family, ...]:
    """Freeze the table; a model type described twice is a programming error."""
    table = tuple(rows)
    keys = [t for f in table for t in f.model_types]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"family model type '{key}' is in the table more than once; keep one row")
    return table


FAMILIES: tuple[Family, ...] = _table(
    (
        Family(
            name="bert",
            blocks="encoder.layer",
            segments=True,
            description="Post-norm encoder, masked words and next sentence",
            reference="Devlin et al. 2019, arXiv:1810.04805",
        ),
        Family(
            name="roberta",
            relatives=("xlm-roberta", "camembert"),
            blocks="encoder.layer",
            positions="after-padding",
            description="BERT trained longer, byte-level BPE, no segments",
            reference="Liu et al. 2019, arXiv:1907.11692",
        ),
        Family(
            name="albert",
            blocks="encoder.albert_layer_groups",
            looped=True,
            segments=True,
            description="BERT that applies one shared block again and again",
            reference="Lan et al. 2020, arXiv:1909.11942",
        ),
        Family(
            name="electra",
            blocks="encoder.layer",
            segments=True,
            description="BERT trained to spot replaced words",
            reference="Clark et al. 2020, arXiv:2003.10555",
        ),
        Family(
            name="distilbert",
            blocks="transformer.layer",
            description="BERT distilled to half its blocks, no segments",
            reference="Sanh et al. 2019, arXiv:1910.01108",
        ),
        Family(
            name="mpnet",
            blocks="encoder.layer",
            positions="after-padding",
            description="Masked and permuted words, relative position bias",
            reference="Song et al. 2020, arXiv:2004.09297",
        ),
        Family(
            name="xlnet",
            blocks="layer",
            sequence_first=True,
            cls="last",
            pads_left=True,
            segments=True,
            positions="unbounded",
            description="Permuted words, relative positions, <cls> at the end",
            reference="Yang et al. 2019, arXiv:1906.08237",
        ),
        Family(
            name="deberta",
            blocks="encoder.layer",
            segments=True,
            description="Content and position attend apart",
            reference="He et al. 2021, arXiv:2006.03654",
        ),
        Family(
            name="deberta-v2",
            blocks="encoder.layer",
            segments=True,
            with_first=(("encoder.conv", "conv_kernel_size"),),
            needs_block=True,
            description="DeBERTa v2 and v3, SentencePiece, log-spaced positions",
            reference="He et al. 2023, arXiv:2111.09543",
        ),
        Family(
            name="modernbert",
            blocks="layers",
            final_norm="final_norm",
            per_layer=("layer_types",),
            description="Pre-norm encoder, rotary positions, local and global attention",
            reference="Warner et al. 2024, arXiv:2412.13663",
        ),
        Family(
            name="openai-gpt",
            blocks="h",
            cls="last",
            description="Post-norm decoder, learned positions, lower case",
            reference="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
        ),
        Family(
            name="gpt2",
            blocks="h",
            final_norm="ln_f",
            cls="last",
            down="mlp.c_proj",
            description="Pre-norm decoder, learned positions",
            reference="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
        ),
        Family(
            name="llama",
            blocks="layers",
            final_norm="norm",
            cls="last",
            down="mlp.down_proj",
            description="Pre-norm decoder, rotary positions, gated feed-forward",
            reference="Touvron et al. 2023, arXiv:2302.13971",
        ),
        Family(
            name="qwen2",
            blocks="layers",
            final_norm="norm",
            cls="last",
            per_layer=("layer_types",),
            down="mlp.down_proj",
            description="Llama-like decoder with biased queries and keys",
            reference="Yang et al. 2024, arXiv:2407.10671",
        ),
        Family(
            name="qwen3",
            blocks="layers",
            final_norm="norm",
            cls="last",
            per_layer=("layer_types",),
            down="mlp.down_proj",
            description="Llama-like decoder with normalised queries and keys",
            reference="Yang et al. 2025, arXiv:2505.09388",
        ),
        Family(
            name="gemma2",
            blocks="layers",
            final_norm="norm",
            cls="last",
            per_layer=("layer_types",),
            description="Decoder with norms around each part, capped logits, local and global attention",
            reference="Gemma Team 2024, arXiv:2408.00118",
        ),
    )
)


def known_family(config: Any) -> Family | None:
    """The row for `config.model_type`, or None when the table has none."""
    return next((f for f in FAMILIES if config.model_type in f.model_types), None)


def family_of(model: nn.Module) -> Family:
    """The row for a model, or, for an unknown architecture, one made by `detect` (its `detected` is True)."""
    return known_family(model.config) or detect(model)


def base(model: nn.Module) -> nn.Module:
    """The encoder inside a model with a head; a bare encoder is its own base."""
    inner = getattr(model, "base_model", model)
    return inner if isinstance(inner, nn.Module) else model


def depth(config: Any) -> int:
    """Number of blocks the model applies."""
    return _number(config, "num_hidden_layers")


def width(config: Any) -> int:
    """Features of a hidden state."""
    return _number(config, "hidden_size")


def vocabulary(config: Any) -> int:
    """Number of different tokens."""
    return _number(config, "vocab_size")


def _number(config: Any, name: str) -> int:
    value = getattr(config.get_text_config(), name, None)
    if value is None:
        raise StratoscopeError(
            f"the configuration of architecture '{config.model_type}' has no {name};"
            " see 'stratoscope families' for what is supported"
        )
    return int(value)


def block_list(model: nn.Module, family: Family) -> nn.ModuleList:
    """The container itself, for surgery; ALBERT's holds groups, not one entry per application."""
    listed = base(model).get_submodule(family.blocks)
    if not isinstance(listed, nn.ModuleList):
        raise TypeError(f"{family.blocks} of {family.name}: expected a ModuleList, got {type(listed).__name__}")
    return listed


def blocks(model: nn.Module, family: Family) -> list[nn.Module]:
    """The blocks in order of application, entry k−1 making layer k; a looped family repeats its groups."""
    held = list(block_list(model, family))
    if not family.looped:
        return held
    n = depth(base(model).config)
    return [held[int(k / (n / len(held)))] for k in range(n)]


def final_norm(model: nn.Module, family: Family) -> nn.Module | None:
    """The norm between the last block and layer L, if the family has one."""
    return None if family.final_norm is None else base(model).get_submodule(family.final_norm)


@contextmanager
def watching(model: nn.Module, family: Family) -> Iterator[list[tuple[Tensor, Any]]]:
    """Note of each run of a block what it was given and what it returned, in order of application."""
    runs: list[tuple[Tensor, Any]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        runs.append((kwargs["hidden_states"] if "hidden_states" in kwargs else next(tensors), output))

    with ExitStack() as hooks:
        for block in dict.fromkeys(blocks(model, family)):  # ALBERT applies one module many times
            hooks.enter_context(block.register_forward_hook(note, with_kwargs=True))
        yield runs


@contextmanager
def answering(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module answer `forward` whatever it computes itself; it is put back afterwards."""
    replaced = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward  # the class's own shows again
        if replaced is not None:
            module.forward = replaced


def detect(model: nn.Module) -> Family:
    """Find the block list of an unknown architecture.

    It is the first list of same-class modules as long as the configured depth, else any list that long (blocks of two
    kinds), else the longest of the first. A norm registered beside it (the last one that does not belong to the
    embeddings), or else after it, there or in a module around it, is taken as the final norm.
    """
    inner = base(model)
    config: Any = inner.config
    every = [(name, m) for name, m in inner.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    alike = [(name, m) for name, m in every if len({type(block) for block in m}) == 1]
    number = getattr(config.get_text_config(), "num_hidden_layers", None)
    listed = next((item for item in (*alike, *every) if len(item[1]) == number), None)
    if listed is None and not alike:
        raise StratoscopeError(
            f"architecture '{config.model_type}' is not in the table of families and has no list of like blocks;"
            " see 'stratoscope families' for what is supported"
        )
    path, _ = listed or max(alike, key=lambda item: len(item[1]))
    return Family(
        name=config.model_type,
        blocks=path,
        final_norm=_norm_after(inner, path),
        cls="last" if generates(config) else "first",
        segments=getattr(config, "type_vocab_size", 0) > 1,
        positions="after-padding" if _positions_follow_padding(inner) else "absolute",
        per_layer=tuple(
            name
            for name, value in vars(config.get_text_config()).items()
            if "layer" in name and isinstance(value, list) and len(value) == number
        ),
        description=f"detected: blocks at '{path}'",
        reference="not in the table",
        detected=True,
    )


def _norm_after(inner: nn.Module, path: str) -> str | None:
    """Where the norm between the last block and the last layer seems to be."""
    around, _, name = path.rpartition(".")
    children = dict(inner.get_submodule(around).named_children())
    beside = [n for n in children if _is_norm(children[n]) and "emb" not in n.lower()]
    while not beside:
        children = dict(inner.get_submodule(around).named_children())
        later = list(children)[list(children).index(name) + 1 :]
        beside = [n for n in later if _is_norm(children[n])][:1]
        if beside or not around:
            break
        around, _, name = around.rpartition(".")
    return ".".join(filter(None, (around, beside[-1]))) if beside else None


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def generates(config: Any) -> bool:
    """Whether the architecture is a decoder: transformers knows a causal head for it and no masked one."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return config.model_type in causal and config.model_type not in masked


def _positions_follow_padding(inner: nn.Module) -> bool:
    """Whether positions are counted from the padding index, as in RoBERTa: only then the table keeps a padding row."""
    return any(
        "position" in name and isinstance(m, nn.Embedding) and m.padding_idx is not None
        for name, m in inner.named_modules()
    )
