"""Changes of weights: closed forms, factors against their product, checkpoints against plain torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model_sources import CASES, lora

import stratoscope as ss
import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.weights.change import Factors, effective_rank, energies, square_sum
from stratoscope.results.weights import Weights


def by_name(result: Weights) -> dict[str, Any]:
    return {p.name: p for p in result.parameters}


def slow_rank(change: torch.Tensor) -> float:
    p = np.linalg.svd(change.double().numpy(), compute_uv=False) ** 2
    p = p[p > 0] / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def test_effective_rank_in_closed_form() -> None:
    q, _ = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert effective_rank(torch.outer(torch.arange(1.0, 6.0), torch.ones(7))) == pytest.approx(1.0, abs=1e-6)
    assert effective_rank(q[:, :4] @ q[:4]) == pytest.approx(4.0)
    p = np.array([0.5, 0.25, 0.125, 0.125])  # entropy 1.75 bits
    assert effective_rank(torch.diag(torch.from_numpy(p).sqrt()) @ q[:4]) == pytest.approx(2**1.75)
    assert effective_rank(3.0 * q) == pytest.approx(9.0)
    assert math.isnan(effective_rank(torch.zeros(3, 4)))


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_factors_give_what_their_product_gives(shape: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(1)
    change = Factors(torch.randn(shape[0], 3, generator=g), torch.randn(3, shape[1], generator=g))
    whole = change.whole()
    assert square_sum(change) == pytest.approx(square_sum(whole), rel=1e-6)
    assert square_sum(whole) == pytest.approx(float(np.square(whole.double().numpy()).sum()))
    assert effective_rank(change) == pytest.approx(slow_rank(whole), rel=1e-5)
    assert effective_rank(whole) == pytest.approx(slow_rank(whole), rel=1e-5)
    assert len(energies(change)) == 3
    assert effective_rank(change) <= 3


@pytest.mark.parametrize("family", list(tiny.TOKENIZERS))
def test_every_family_against_plain_tensors(family: str, tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "tuned")):
        tiny.checkpoint(family, tmp_path / name, seed=seed)
    result = ss.weights(tmp_path / "base", tmp_path / "tuned")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "tuned"))
    one = {k: v for k, v in one.items() if v.is_floating_point()}
    found = by_name(result)
    assert set(found) == set(one)
    layers = 1 if family == "albert" else tiny.LAYERS
    assert result.layers.layers == tuple(range(layers + 1))
    for name, p in found.items():
        assert p.relative == pytest.approx(float((two[name] - one[name]).norm() / one[name].norm()), rel=1e-5), name
        if len(p.shape) == 2 and (two[name] - one[name]).any():
            assert p.rank == pytest.approx(slow_rank(two[name].double() - one[name].double()), rel=1e-6), name
    for k in range(1, layers + 1):
        own = [n for n, p in found.items() if p.layer == k]
        assert own
        assert len({".".join(n.split(".")[: n.split(".").index(str(k - 1)) + 1]) for n in own}) == 1, "of one block"
        change = sum(float((two[n] - one[n]).square().sum()) for n in own)
        assert result.layers.values[k] == pytest.approx(
            math.sqrt(change / sum(float(one[n].square().sum()) for n in own)), rel=1e-5
        )
    assert not any(p.layer is None and "emb" in n for n, p in found.items())
    assert np.nanmax(result.norms.values) > 0


def test_a_planted_change_is_found_where_it_is(tmp_path: Path) -> None:
    base = tiny.checkpoint("bert", tmp_path / "base")
    tiny.checkpoint("bert", tmp_path / "tuned")
    weights = load_file(base / "model.safetensors")
    name = "encoder.layer.1.attention.self.value.weight"
    weights[name] = weights[name] + torch.outer(torch.arange(32.0), torch.ones(32)) / 100
    weights["embeddings.word_embeddings.weight"][7] *= 1.5
    save_file(weights, tmp_path / "tuned" / "model.safetensors", {"format": "pt"})
    result = ss.weights(base, tmp_path / "tuned")
    moved = {n: p for n, p in by_name(result).items() if p.change > 0}
    assert set(moved) == {name, "embeddings.word_embeddings.weight"}
    assert (moved[name].layer, moved[name].module) == (2, "attention.self.value")
    assert moved[name].rank == pytest.approx(1.0, abs=1e-3)
    assert result.moved_tokens == 1
    assert (result.tokens[0].id, result.tokens[0].relative) == (7, pytest.approx(0.5))
    assert result.tokens[0].token == next(t for t, k in tiny.tokenizer("bert").get_vocab().items() if k == 7)
    grid = result.grid(lambda some: sum(p.change for p in some))
    row, column = np.argwhere(grid > 0)[0]
    assert (row, result.modules[column]) == (1, "attention.self.value")


def test_heads_and_old_names_do_not_hide_what_is_shared(tmp_path: Path) -> None:
    base = tiny.checkpoint("bert", tmp_path / "base", head="masked")
    bare = tiny.checkpoint("bert", tmp_path / "bare")
    weights = {k.replace("bert.", "", 1): v for k, v in load_file(base / "model.safetensors").items()}
    old = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
           for k, v in weights.items() if not k.startswith("cls")}  # fmt: skip
    save_file({**old, "classifier.weight": torch.ones(2, 32)}, bare / "model.safetensors")
    result = ss.weights(base, bare)
    assert all(p.change == 0 for p in result.parameters)
    assert {p.name for p in result.parameters} == {k for k in weights if not k.startswith("cls")}
    assert result.missing["bare"] == ("classifier.weight",)
    assert all(n.startswith("cls.") for n in result.missing["base"])


def test_an_unknown_family_is_read_by_its_block_list(tmp_path: Path) -> None:
    import transformers

    for seed, name in enumerate(("base", "tuned")):
        torch.manual_seed(seed)
        config = transformers.GPTNeoXConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=5, num_attention_heads=2, intermediate_size=24
        )
        cls = transformers.GPTNeoXForCausalLM if seed else transformers.GPTNeoXModel
        cls(config).save_pretrained(tmp_path / name)
    result = ss.weights(tmp_path / "base", tmp_path / "tuned")
    assert result.layers.layers == (0, 1, 2, 3, 4, 5)
    assert "attention.query_key_value" in result.modules
    assert any("embed_out" in n for n in result.missing["tuned"])


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_by_its_factors_is_its_merged_checkpoint(case: str, tmp_path: Path) -> None:
    family, auto, config = CASES[case]
    head = "causal" if auto.endswith("CausalLM") else None
    base = tiny.checkpoint(family, tmp_path / "base", head=head)
    lora(base, tmp_path, auto, **config)
    found, whole = (by_name(ss.weights(base, tmp_path / name)) for name in ("adapter", "merged"))
    assert set(whole) <= set(found)
    assert any(p.change > 0 for p in found.values())
    for name, p in whole.items():
        assert found[name].change == pytest.approx(p.change, rel=1e-4, abs=1e-5), name
        if p.change > 1e-3 and len(p.shape) == 2:
            assert found[name].rank == pytest.approx(p.rank, rel=1e-3), name
            assert found[name].rank <= 4.001 or "magnitudes" in case
    alone = ss.weights(tmp_path / "adapter")
    assert by_name(alone)[name].change == found[name].change
    assert (alone.models[0].name, alone.adapter["r"]) == ("base", 4)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    base = tiny.checkpoint("bert", tmp_path / "base")
    other = tiny.checkpoint("bert", tmp_path / "other", hidden=48)
    with pytest.raises(StratoscopeError, match="not two versions of one model"):
        ss.weights(base, other)
    with pytest.raises(StratoscopeError, match="alone, which is no adapter"):
        ss.weights(base)
    adapter = lora(base, tmp_path, task_type="SEQ_CLS", target_modules=["query"])
    with pytest.raises(StratoscopeError, match="does not fit its base"):
        ss.weights(other, adapter)
    pickle = tiny.checkpoint("bert", tmp_path / "pickle", safetensors=False)
    with pytest.raises(StratoscopeError, match="pickle"):
        ss.weights(base, pickle)
    data = (base / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(StratoscopeError, match="cannot read the weights"):
        ss.weights(base, other)


def test_rounding_to_another_dtype_is_said(tmp_path: Path) -> None:
    base = tiny.checkpoint("bert", tmp_path / "base")
    tiny.checkpoint("bert", tmp_path / "half")
    weights = {k: v.bfloat16() for k, v in load_file(base / "model.safetensors").items()}
    save_file(weights, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    result = ss.weights(base, tmp_path / "half")
    assert "bf16" in result.warnings[0]
    assert 0 < np.nanmax(result.layers.values) < 0.004


def test_workers_do_not_change_a_number_and_a_run_is_recognised(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "tuned")):
        tiny.checkpoint("bert", tmp_path / name, seed=seed)
    sides = tmp_path / "base", tmp_path / "tuned"
    one, two = (ss.weights(*sides, workers=n, out=tmp_path / f"run-{n}") for n in (1, 2))
    assert one.to_frame().equals(two.to_frame())
    assert ss.load(tmp_path / "run-1").to_frame().equals(one.to_frame())
    quick = ss.weights(*sides, rank=False)
    assert all(math.isnan(p.rank) for p in quick.parameters)
    assert [p.change for p in quick.parameters] == [p.change for p in one.parameters]
