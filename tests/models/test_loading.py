from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.open import loading
from stratoscope.models.open.loading import ModelSpec, choose_device, load_tokenizer, open_model, survey
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.text.rows import plan_rows


@pytest.fixture
def copy(folder_of: Any, tmp_path: Path) -> Path:
    """A bert checkpoint to spoil."""
    return Path(shutil.copytree(folder_of("bert"), tmp_path / "copy"))


def spec(folder: Path, **options: Any) -> ModelSpec:
    return ModelSpec(str(folder), device="cpu", **options)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", "classification"), ("bert", "masked"), ("gpt2", "causal"), ("xlnet", "classification")],
)
def test_a_head_is_left_out_in_silence(family: str, head: str, tmp_path: Path, capfd: Any, caplog: Any) -> None:
    tiny.checkpoint(family, tmp_path / "m", head=head)
    capfd.readouterr()
    caplog.clear()
    model = open_model(spec(tmp_path / "m"))
    assert "".join(capfd.readouterr()) == ""
    assert not caplog.records
    stored = load_file(tmp_path / "m" / "model.safetensors")
    prefix = f"{model.module.base_model_prefix}."
    for name, p in model.module.named_parameters():
        if not name.startswith("pooler"):
            assert torch.equal(p, stored[prefix + name]), name


def test_missing_encoder_weights_are_an_error_but_a_pooler_may_lack(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "pooler" not in k}, copy / "model.safetensors", {"format": "pt"})
    state = torch.get_rng_state()
    open_model(spec(copy))
    assert torch.equal(torch.get_rng_state(), state)
    lacking = {k: v for k, v in weights.items() if "layer.1.output.dense" not in k}
    save_file(lacking, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        StratoscopeError, match=r"lacks 2 of the encoder's weights \(first: encoder.layer.1.output.dense.bias\)"
    ):
        open_model(spec(copy))


def test_weights_of_another_size_are_an_error(copy: Path) -> None:
    edit(copy / "config.json", intermediate_size=48)
    with pytest.raises(StratoscopeError, match="cannot read the weights of"):
        open_model(spec(copy))


def test_damaged_weights_are_an_error(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StratoscopeError, match="cannot read the weights of"):
        open_model(spec(copy))


def test_pickle_needs_consent(tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path / "m", safetensors=False)
    with pytest.raises(StratoscopeError, match=r"as a pickle only \(pytorch_model.bin\).*--allow-pickle"):
        open_model(spec(folder))
    model = open_model(spec(folder, allow_pickle=True))
    same = tiny.checkpoint("bert", tmp_path / "safe")
    assert torch.equal(
        model.module.encoder.layer[1].output.dense.weight,
        open_model(spec(same)).module.encoder.layer[1].output.dense.weight,
    )
    assert open_model(spec(folder, random_init=True)).survey.fingerprint.startswith("random-init")


def test_folder_without_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(
        StratoscopeError, match=r"has no weights \(model.safetensors\); give a checkpoint .* by save_pretrained$"
    ):
        open_model(spec(copy))
    assert open_model(spec(copy, random_init=True)).layers == tiny.LAYERS + 1


def test_folder_without_config(copy: Path) -> None:
    (copy / "config.json").unlink()
    with pytest.raises(StratoscopeError, match=r"has no config.json"):
        open_model(spec(copy))


def test_damaged_config(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(StratoscopeError, match="cannot read the configuration of"):
        open_model(spec(copy))


def test_folder_without_tokenizer_is_not_given_an_empty_one(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    with pytest.raises(StratoscopeError, match=r"has no tokenizer files|cannot read the tokenizer"):
        open_model(spec(copy))


def test_slow_tokenizer_is_refused(folder_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    class Slow:
        is_fast = False

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *a, **k: Slow())
    with pytest.raises(StratoscopeError, match=r"has no fast tokenizer.*tokenizer.json"):
        load_tokenizer(spec(folder_of("bert")))


@pytest.mark.parametrize("source", ["./nowhere", "/no/where", "a/b/c", "gone.gguf", " "])
def test_paths_that_do_not_exist(source: str) -> None:
    with pytest.raises(StratoscopeError, match=r"no model at .*expected a checkpoint folder, a .gguf file or a hub id"):
        open_model(ModelSpec(source))


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("x")
    with pytest.raises(StratoscopeError, match="is a file; expected a checkpoint folder"):
        open_model(spec(tmp_path / "m.txt"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_hub_out_of_reach_is_one_sentence(capfd: Any) -> None:
    with pytest.raises(StratoscopeError, match="expected a local folder or a hub id that can be reached") as e:
        open_model(ModelSpec("nobody/nothing-at-all"))
    assert "\n" not in str(e.value)
    assert "".join(capfd.readouterr()) == ""


MAIN, OLD = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def cached(offline: None, folder_of: Any, tmp_path: Path) -> dict[str, Path]:
    """The folders behind two commits of acme/tiny, which is in the hub's cache only."""
    commits = {MAIN: folder_of("bert"), OLD: tiny.checkpoint("bert", tmp_path / "old", seed=7)}
    tiny.hub_cache(tmp_path, "acme/tiny", commits, {"main": MAIN, "v1": OLD})
    loading._reachable.cache_clear()
    loading._commit.cache_clear()
    return commits


@pytest.mark.parametrize(("revision", "commit"), [(None, MAIN), ("main", MAIN), ("v1", OLD), (OLD, OLD), (MAIN, MAIN)])
def test_a_hub_model_is_the_commit_it_was_loaded_from(
    revision: str | None, commit: str, cached: dict[str, Path], capfd: Any
) -> None:
    asked = ModelSpec("acme/tiny", revision=revision, device="cpu")
    assert survey(asked).fingerprint == commit
    found, folder = open_model(asked), open_model(spec(cached[commit]))
    assert (found.survey.fingerprint, found.name, found.layers) == (commit, "tiny", folder.layers)
    whole = folder.module.state_dict()
    assert all(torch.equal(v, whole[k]) for k, v in found.module.state_dict().items())
    assert found.encoder.tokenizer.get_vocab() == folder.encoder.tokenizer.get_vocab()
    assert "".join(capfd.readouterr()) == ""


def test_a_branch_that_moves_after_the_survey_does_not_change_what_is_loaded(
    cached: dict[str, Path], tmp_path: Path
) -> None:
    asked = ModelSpec("acme/tiny", device="cpu")
    seen = survey(asked)
    (tmp_path / "models--acme--tiny" / "refs" / "main").write_text(OLD)
    found, whole = open_model(asked, surveyed=seen), open_model(spec(cached[MAIN])).module.state_dict()
    assert found.survey.fingerprint == MAIN
    assert all(torch.equal(v, whole[k]) for k, v in found.module.state_dict().items())


def test_fresh_weights_of_a_hub_model_are_those_of_its_folder(cached: dict[str, Path]) -> None:
    asked = ModelSpec("acme/tiny", random_init=True, device="cpu")
    assert survey(asked).fingerprint == survey(spec(cached[MAIN], random_init=True)).fingerprint


@pytest.mark.usefixtures("cached")
def test_a_revision_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StratoscopeError, match=r"cannot get 'acme/tiny': expected .*that can be reached") as e:
        survey(ModelSpec("acme/tiny", revision="nosuch"))
    assert "\n" not in str(e.value)


def test_pickle_only_hub_model_names_the_option() -> None:
    from stratoscope.models.open.guard import guarded

    with (
        pytest.raises(StratoscopeError, match=r"'a/b' on the hub has no safetensors weights.*--allow-pickle"),
        guarded("a/b", "weights", local=False),
    ):
        raise OSError("a/b does not appear to have a file named model.safetensors and thus cannot be loaded")


def test_own_code_needs_consent(copy: Path) -> None:
    edit(copy / "config.json", model_type="mine", auto_map={"AutoConfig": "c.C", "AutoModel": "m.M"})
    with pytest.raises(StratoscopeError, match=r"brings its own code.*--trust-remote-code"):
        open_model(spec(copy))


def test_encoder_decoders_are_not_supported_yet(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(num_layers=1, d_model=8).save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(StratoscopeError, match=r"is an encoder-decoder \(t5\); only encoder-only and decoder-only"):
        open_model(spec(tmp_path))


def test_gguf_needs_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(StratoscopeError, match=r"reading '.*m.gguf' needs the package gguf, .* 'stratoscope\[gguf\]'"):
        open_model(spec(tmp_path / "m.gguf"))


def gguf_llama(path: Path) -> Path:
    """A one-block Llama with a byte-pair tokenizer, as llama.cpp writes them."""
    import gguf

    tokens = json.loads(tiny.tokenizer("gpt2").backend_tokenizer.to_str())["model"]
    vocabulary = sorted(tokens["vocab"], key=tokens["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    writer.add_token_merges([" ".join(pair) for pair in tokens["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    draw = np.random.default_rng(0)
    block = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {"token_embd": (len(vocabulary), 16), **{f"blk.0.{name}": (16, 16) for name in block}}
    shapes |= {"blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,), "output_norm": (16,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_read_in_silence(tmp_path: Path, capfd: Any) -> None:
    path = gguf_llama(tmp_path / "m.gguf")
    capfd.readouterr()
    assert open_model(spec(path)).layers == 2
    assert "".join(capfd.readouterr()) == ""


def test_the_bar_of_gguf_files_is_hidden_and_put_back(capfd: Any) -> None:
    from transformers import modeling_gguf_pytorch_utils as reader

    from stratoscope.models.open.guard import quiet

    bar = reader.tqdm
    with quiet():
        assert list(reader.tqdm([1, 2], desc="Converting")) == [1, 2]
    assert "".join(capfd.readouterr()) == ""
    assert reader.tqdm is bar


def test_unknown_dtype_and_device() -> None:
    with pytest.raises(StratoscopeError, match="unknown dtype 'float23'; did you mean 'float32'"):
        open_model(ModelSpec("x", dtype="float23", device="cpu"))
    with pytest.raises(StratoscopeError, match="unknown device 'gpu'"):
        open_model(ModelSpec("x", device="gpu"))


def test_device_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, chosen in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=cuda: here)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda here=mps: here)
        assert choose_device("auto").type == chosen
    with pytest.raises(StratoscopeError, match="device 'cuda:1' is not available here"):
        choose_device("cuda:1")


def test_dtype_auto_keeps_what_is_stored(copy: Path) -> None:
    weights = {k: v.to(torch.bfloat16) for k, v in load_file(copy / "model.safetensors").items()}
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    edit(copy / "config.json", dtype="bfloat16")
    assert open_model(spec(copy, dtype="auto")).survey.dtype == survey(spec(copy, dtype="auto")).dtype == "bfloat16"
    assert open_model(spec(copy)).survey.dtype == "float32"


def test_fingerprint_follows_weights_config_and_tokenizer_but_not_the_place(folder_of: Any, tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        return Path(shutil.copytree(folder_of("bert"), tmp_path / name))

    kept = survey(spec(fresh("kept"))).fingerprint
    other = tiny.checkpoint("bert", tmp_path / "other", seed=5)
    config, tokens = fresh("config"), fresh("tokens")
    edit(config / "config.json", layer_norm_eps=1e-3)
    edit(tokens / "tokenizer_config.json", model_max_length=10)
    assert kept == survey(spec(folder_of("bert"))).fingerprint
    assert kept.startswith("sha256:")
    assert len({kept, *(survey(spec(f)).fingerprint for f in (other, config, tokens))}) == 4


def test_sharded_weights(copy: Path, corpus: Any) -> None:
    whole = open_model(spec(copy)).module.state_dict()
    weights = load_file(copy / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, keys in parts.items():
        save_file({k: weights[k] for k in keys}, copy / part, {"format": "pt"})
    (copy / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {k: part for part, keys in parts.items() for k in keys}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    model = open_model(spec(copy))
    assert all(torch.equal(v, whole[k]) for k, v in model.module.state_dict().items())
    before = model.survey.fingerprint
    weights["embeddings.LayerNorm.bias"] += 1
    for part, keys in parts.items():
        save_file({k: weights[k] for k in keys}, copy / part, {"format": "pt"})
    assert survey(spec(copy)).fingerprint != before
    (copy / "b.safetensors").unlink()
    with pytest.raises(StratoscopeError, match=r"lacks the weight file b.safetensors its index names"):
        open_model(spec(copy))
    (copy / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(StratoscopeError, match=r"index.json is damaged"):
        open_model(spec(copy))


def test_unknown_architecture_works_and_is_told(tmp_path: Path, corpus: Any) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXModel

    tokens = tiny.tokenizer("gpt2")
    config = GPTNeoXConfig(
        vocab_size=len(tokens), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    GPTNeoXModel(config).save_pretrained(tmp_path)
    tokens.save_pretrained(tmp_path)
    told: list[str] = []

    class Listen:
        def step(self, label: str, total: int) -> Any: ...

        def note(self, message: str) -> None:
            told.append(message)

    model = open_model(spec(tmp_path, name="neo"), progress=Listen())
    assert "gpt_neox" in told[0]
    assert "'layers'" in told[0]
    assert "final_layer_norm" in told[0]
    assert "verified" in told[1]
    assert not model.alone
    assert model.family.detected
    assert model.family.cls == "last"
    rows = plan_rows(corpus, [model.encoder], "word")
    assert len(read_rows(model, corpus, rows)[0]) == len(rows)


def test_labels() -> None:
    assert ModelSpec("a/b").label == "b"
    assert ModelSpec("a/b/").label == "b"
    assert ModelSpec("a/b", name="n").label == "n"
    assert ModelSpec("a/b", random_init=True).label == "b-random"
    assert ModelSpec(".").label == Path.cwd().name


def test_loading_leaves_logging_and_environment_alone(folder_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import logging as hf

    monkeypatch.delenv("DISABLE_SAFETENSORS_CONVERSION", raising=False)
    before, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_info()
    hf.enable_progress_bar()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    try:
        survey(spec(folder_of("bert")))
        assert hf.get_verbosity() == logging.INFO
        assert hf.is_progress_bar_enabled()
        assert hub.level == level
        assert "DISABLE_SAFETENSORS_CONVERSION" not in os.environ
        monkeypatch.setenv("DISABLE_SAFETENSORS_CONVERSION", "0")
        survey(spec(folder_of("bert")))
        assert os.environ["DISABLE_SAFETENSORS_CONVERSION"] == "0"
    finally:
        hf.set_verbosity(before)
        if not bars:
            hf.disable_progress_bar()
