"""Tiny random checkpoints of every family, with real fast tokenizers, for everyone's tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HIDDEN = 32
LAYERS = 3
POSITIONS = 128

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Nobody expected the unbelievable ending, and yet it didn't disappoint.",
    "Yes.",
    "A warm, funny and altogether wonderful little film about growing old.",
    "I can't recommend this; the acting is wooden and the story goes nowhere at all.",
    "Birds sing.",
    "Where were you when the lights went out in the old theatre on Main Street?",
    "It rains, it pours, and still nobody carries an umbrella.",
    "Unquestionably the finest performance of her career",
    "Two and two make four, three and three make six.",
)
"""Short English sentences of 1 to 16 words; the tokenizers below know their letters and beginnings."""

HEADS = {
    None: "AutoModel",
    "classification": "AutoModelForSequenceClassification",
    "masked": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
}
BYTE_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def checkpoint(
    family: str,
    folder: str | Path,
    *,
    seed: int = 0,
    head: str | None = None,
    layers: int = LAYERS,
    hidden: int = HIDDEN,
    positions: int = POSITIONS,
    max_length: int | None = None,
    safetensors: bool = True,
    **config: Any,
) -> Path:
    """Write a random model of `family` and its tokenizer to `folder`; plain `from_pretrained` loads both.

    `head` is one of `HEADS`; `max_length` sets the tokenizer's `model_max_length` (not set: 1e30); further arguments go
    into the configuration. Weights are drawn wide, so that context visibly moves every hidden state.
    """
    import transformers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = tokenizer(family, max_length=max_length)
    settings = _config(family, tokens, layers=layers, hidden=hidden, positions=positions)
    architecture = transformers.AutoConfig.for_model(**{**settings, **config})
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        model = getattr(transformers, HEADS[head]).from_config(architecture)
        for name, p in model.named_parameters():
            if name.endswith("bias") or p.dim() == 1:
                p.data.add_(torch.randn_like(p), alpha=0.1)
    finally:
        torch.set_rng_state(state)
    if safetensors:
        model.save_pretrained(folder)
    else:
        architecture.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    tokens.save_pretrained(folder)
    return folder


def hub_cache(root: str | Path, repo: str, commits: dict[str, Path], refs: dict[str, str]) -> Path:
    """The hub client's cache under `root` as downloads leave it: checkpoint folders by commit, commits by branch."""
    kept = Path(root) / f"models--{repo.replace('/', '--')}"
    for commit, folder in commits.items():
        shutil.copytree(folder, kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    for ref, commit in refs.items():
        (kept / "refs" / ref).write_text(commit)
    return Path(root)


def tokenizer(family: str, *, max_length: int | None = None) -> Any:
    """A fast tokenizer of the kind the family uses, built from `SENTENCES`."""
    from transformers import PreTrainedTokenizerFast

    backend, names = TOKENIZERS[family]()
    if max_length is not None:
        names = {**names, "model_max_length": max_length}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


BERT_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_NAMES = {
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def _pieces(*, lowercase: bool = False) -> tuple[list[str], list[str]]:
    """Letters, and the first letters of words: short words stay whole, long ones fall apart.

    Written out instead of trained, because the trainers break ties differently from run to run.
    """
    text = " ".join(SENTENCES).lower() if lowercase else " ".join(SENTENCES)
    words = text.translate(str.maketrans(",.;?'", "     ")).split()
    return sorted(set(text) - {" "}), sorted({w[:3] for w in words if len(w) > 1})


def _wordpiece(names: dict[str, str], single: str, pair: str) -> tuple[Tokenizer, dict[str, str]]:
    letters, starts = _pieces(lowercase=True)
    vocab = [*names.values(), *letters, *(f"##{c}" for c in letters), *starts, "##ing", "##ed"]
    t = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocab)}, unk_token=names["unk_token"]))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    return _template(t, single, pair), names


def _merged(blank: str, alphabet: list[str], specials: list[str], **options: Any) -> models.BPE:
    """Byte-pair merges that build each word beginning letter by letter, with and without the blank before it."""
    starts = _pieces()[1]
    merges = {
        (word[:k], word[k]): None for start in starts for word in (start, blank + start) for k in range(1, len(word))
    }
    vocab = dict.fromkeys([*specials, *sorted(alphabet), *(a + b for a, b in merges)])
    return models.BPE({piece: i for i, piece in enumerate(vocab)}, list(merges), **options)


def _bytes(
    names: dict[str, str], single: str | None = None, pair: str | None = None, *, split_first: bool = False
) -> tuple[Tokenizer, dict[str, str]]:
    specials = list(dict.fromkeys(names.values()))
    t = Tokenizer(_merged("Ġ", pre_tokenizers.ByteLevel.alphabet(), specials))
    t.add_special_tokens(specials)
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split_first:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(BYTE_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    t.decoder = decoders.ByteLevel()
    return (t if single is None or pair is None else _template(t, single, pair)), names


def _unigram(names: dict[str, str], single: str, pair: str, **more: str) -> tuple[Tokenizer, dict[str, str]]:
    letters, starts = _pieces()
    vocab = [
        *((n, 0.0) for n in names.values()),
        *((c, -8.0) for c in ["▁", *letters]),
        *((f"▁{s}", -5.0) for s in starts),
    ]
    t = Tokenizer(models.Unigram(vocab, unk_id=[n for n, _ in vocab].index(names["unk_token"])))
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    return _template(t, single, pair), {**names, **more}


def _gemma() -> tuple[Tokenizer, dict[str, str]]:
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    t = Tokenizer(_merged("▁", ["▁", *_pieces()[0]], list(names.values()), unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    t.decoder = decoders.Replace("▁", " ")
    return _template(t, "<bos> $A", "<bos> $A <bos> $B"), {**names, "padding_side": "left"}


def _openai() -> tuple[Tokenizer, dict[str, str]]:
    """Lower-case byte-pair merges in which the last piece of a word has a mark of its own."""
    letters, starts = _pieces(lowercase=True)
    merges = {(w[:k], w[k]): None for start in starts for w in (start,) for k in range(1, len(w))}
    vocab = dict.fromkeys(["<unk>", *letters, *(f"{c}</w>" for c in letters), *(a + b for a, b in merges)])
    model = models.BPE(
        {piece: i for i, piece in enumerate(vocab)}, list(merges), unk_token="<unk>", end_of_word_suffix="</w>"
    )
    t = Tokenizer(model)
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.BPEDecoder(suffix="</w>")
    return t, {"unk_token": "<unk>"}


def _template(t: Tokenizer, single: str, pair: str) -> Tokenizer:
    used = {p.split(":")[0] for p in f"{single} {pair}".split() if not p.startswith("$")}
    t.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, t.token_to_id(name)) for name in sorted(used)]
    )
    return t


def _bert() -> tuple[Tokenizer, dict[str, str]]:
    return _wordpiece(BERT_NAMES, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def _roberta() -> tuple[Tokenizer, dict[str, str]]:
    return _bytes(ROBERTA_NAMES, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


def _qwen() -> tuple[Tokenizer, dict[str, str]]:
    return _bytes({"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}, split_first=True)


TOKENIZERS: dict[str, Callable[[], tuple[Tokenizer, dict[str, str]]]] = {
    "bert": _bert,
    "roberta": _roberta,
    "albert": lambda: _unigram(BERT_NAMES, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "electra": _bert,
    "distilbert": _bert,
    "mpnet": lambda: _wordpiece(ROBERTA_NAMES, "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "xlnet": lambda: _unigram(
        {
            "unk_token": "<unk>",
            "cls_token": "<cls>",
            "sep_token": "<sep>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        "$A:0 <sep>:0 <cls>:2",
        "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        padding_side="left",
    ),
    "deberta": lambda: _bytes(BERT_NAMES, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "deberta-v2": lambda: _unigram(BERT_NAMES, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "modernbert": lambda: _bytes(BERT_NAMES, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", split_first=True),
    "openai-gpt": _openai,
    "gpt2": lambda: _bytes({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}),
    "llama": lambda: _bytes(
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        "<|begin_of_text|> $A",
        "<|begin_of_text|> $A <|begin_of_text|> $B",
        split_first=True,
    ),
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gemma2": _gemma,
}


def _config(family: str, tokens: Any, *, layers: int, hidden: int, positions: int) -> dict[str, Any]:
    """What every configuration gets, and what the family needs besides."""
    shared = {
        "model_type": family,
        "vocab_size": len(tokens),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": positions,
        "initializer_range": 0.2,
        "pad_token_id": tokens.pad_token_id,
        "bos_token_id": tokens.bos_token_id,
        "eos_token_id": tokens.eos_token_id,
    }
    decoder = {"num_key_value_heads": 2, "head_dim": hidden // 4}
    if family == "xlnet":
        del shared["max_position_embeddings"]
    return {
        **shared,
        **{**dict.fromkeys(("llama", "qwen2", "qwen3", "gemma2"), decoder), **_own(hidden)}.get(family, {}),
    }


def _own(hidden: int) -> dict[str, dict[str, Any]]:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1}
    return {
        "roberta": {"type_vocab_size": 1},
        "albert": {"embedding_size": hidden // 2},
        "electra": {"embedding_size": hidden // 2},
        "xlnet": {"d_inner": 2 * hidden, "d_head": hidden // 4},
        "deberta": {**relative, "type_vocab_size": 0, "position_biased_input": False},
        "deberta-v2": {**relative, "type_vocab_size": 0, "position_biased_input": False, "position_buckets": 8,
                       "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
        "gpt2": {"n_inner": 2 * hidden},
        "gemma2": {"num_key_value_heads": 2, "head_dim": hidden // 4, "sliding_window": 8,
                   "query_pre_attn_scalar": hidden // 4},
    }  # fmt: skip
