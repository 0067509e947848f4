"""What is not in the table is verified before it is believed; weights and configuration must agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import SINGLE, Example, TaskData
from stratoscope.models.open.checkpoints import Checkpoint, fingerprint
from stratoscope.models.open.loading import CAUSAL, ModelSpec, open_model, survey
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.text.rows import plan_rows


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def step(self, label: str, total: int) -> Any: ...

    def note(self, message: str) -> None:
        self.notes.append(message)


def checkpoint(model_type: str, folder: Path, tokens: str = "bert", **config: Any) -> ModelSpec:
    """A tiny model of an architecture that is not in the table."""
    tokenizer = tiny.tokenizer(tokens)
    settings = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    architecture = transformers.AutoConfig.for_model(model_type, **{**settings, **config})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModel.from_config(architecture).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSpec(str(folder), name=model_type, device="cpu")


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("mamba", {"state_size": 8}),
        ("mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2}),
        ("rwkv", {"attention_hidden_size": 32}),
    ],
)
def test_states_that_do_not_begin_with_the_embeddings_are_refused(
    model_type: str, config: dict[str, Any], tmp_path: Path
) -> None:
    spec = checkpoint(model_type, tmp_path, "gpt2", **config)
    with pytest.raises(StratoscopeError, match=rf"'{model_type}'.*hidden state 0 is not the input of block 1"):
        open_model(spec)


@pytest.mark.parametrize(
    ("model_type", "tokens", "config"),
    [
        ("gpt_neox", "gpt2", {}),
        ("mistral", "gpt2", {"num_key_value_heads": 2, "head_dim": 8}),
        ("roformer", "bert", {"embedding_size": 32}),
        ("jamba", "gpt2", {"num_key_value_heads": 2, "num_experts": 2, "mamba_d_state": 4}),  # blocks of two kinds
        ("stablelm", "gpt2", {"num_key_value_heads": 2}),
        ("esm", "bert", {"emb_layer_norm_before": False}),  # its last norm is called one of the embeddings
        ("roberta-prelayernorm", "bert", {}),  # its last norm is not beside the blocks
        ("longformer", "bert", {"attention_window": 8}),  # pads what its blocks are given
    ],
)
def test_what_was_verified_is_reported(model_type: str, tokens: str, config: dict[str, Any], tmp_path: Path) -> None:
    heard = Notes()
    model = open_model(checkpoint(model_type, tmp_path, tokens, **config), progress=heard)
    assert "verified" in heard.notes[-1]
    assert not model.alone


@pytest.mark.parametrize(
    ("model_type", "config", "reason"),
    [
        (
            "xlm",
            {"emb_dim": 32, "n_heads": 4, "n_layers": 3},
            "not the output of block 3",
        ),  # lists of parts, not of blocks
        ("squeezebert", {"embedding_size": 32}, "0 block runs for 3 blocks"),
        ("canine", {"local_transformer_stride": 16, "vocab_size": None}, "has no vocab_size"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_the_reason(
    model_type: str, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(StratoscopeError, match=reason):
        open_model(checkpoint(model_type, tmp_path, **config))


@pytest.mark.parametrize(
    ("model_type", "config"),
    [("convbert", {"embedding_size": 32}), ("fnet", {}), ("nystromformer", {}), ("yoso", {"use_expectation": True})],
)
def test_where_padding_changes_the_states_texts_are_read_alone(
    model_type: str, config: dict[str, Any], tmp_path: Path, corpus: Corpus
) -> None:
    heard = Notes()
    model = open_model(checkpoint(model_type, tmp_path, **config), progress=heard)
    assert model.alone
    assert "each text is read alone" in heard.notes[-1]
    rows = plan_rows(corpus, [model.encoder], "mean")
    together = read_rows(model, corpus, rows, batch_tokens=10_000)
    for k in range(len(corpus)):
        part, own = rows.slice(corpus, k, k + 1)
        for a, b in zip(read_rows(model, part, own), together, strict=True):
            torch.testing.assert_close(a[0], b[k])


@pytest.mark.parametrize(("family", "head"), [("bert", None), ("gpt2", "causal"), ("albert", None), ("bert", "task")])
def test_fewer_blocks_than_the_weights_have_are_refused(family: str, head: str | None, tmp_path: Path) -> None:
    config = {"num_hidden_groups": 3} if family == "albert" else {}
    tiny.checkpoint(family, tmp_path, head="causal" if head == "causal" else None, **config)
    field = "num_hidden_groups" if family == "albert" else "n_layer" if family == "gpt2" else "num_hidden_layers"
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: 2}))
    rows = tuple(Example((("a", None),), float(k)) for k in range(2))
    task = TaskData("toy", rows, rows, ("no", "yes"), SINGLE, "accuracy")
    with pytest.raises(StratoscopeError, match=r"weights of .* have 3 blocks, its configuration counts 2"):
        open_model(ModelSpec(str(tmp_path)), {"causal": CAUSAL, "task": task}.get(head or ""), seed=0)


def test_a_fine_tuned_checkpoint_that_changed_is_refused(folder_of: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("bert"), tmp_path / "tuned"))
    record = folder / "finetune.json"
    record.write_text(json.dumps({"weights": fingerprint(Checkpoint(str(folder), local=True))}))
    spec = ModelSpec(str(folder), device="cpu")
    assert survey(spec).fingerprint == json.loads(record.read_text())["weights"]
    open_model(spec)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-3] ^= 0xFF
    (folder / "model.safetensors").write_bytes(weights)
    for opened in (survey, open_model):
        with pytest.raises(StratoscopeError, match=r"tuned is damaged or was changed.*finetune.json"):
            opened(spec)
    assert open_model(ModelSpec(str(folder), device="cpu", random_init=True)).layers == tiny.LAYERS + 1
    for unreadable in ("{", "[]", "{}"):
        record.write_text(unreadable)
        survey(spec)
