from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models import families
from stratoscope.models.families import FAMILIES, blocks, depth, detect, family_of, final_norm, width


def test_table_has_the_sixteen_families_and_tests_build_each() -> None:
    assert len(FAMILIES) == 16
    assert {f.name for f in FAMILIES} == set(tiny.TOKENIZERS)
    assert all(f.description and f.reference for f in FAMILIES)


def test_duplicate_names_and_model_types_are_refused() -> None:
    bert = FAMILIES[0]
    for other in (replace(bert, relatives=("other",)), replace(bert, name="other", relatives=("bert",))):
        with pytest.raises(ValueError, match="family model type 'bert' is in the table more than once"):
            families._table((bert, other))


@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.looped], ids=lambda f: f.name)
def test_detection_finds_what_the_table_says(family: Any, model_of: Any) -> None:
    model = model_of(family.name)
    found = detect(model.module)
    assert found.detected
    assert found.blocks == family.blocks
    # What looking cannot tell, and the table must: DeBERTa-v2 keeps the norm of its relative positions beside the
    # blocks, XLNet has no positions and ends in <cls>.
    if family.name != "deberta-v2":
        assert found.final_norm == family.final_norm
    if family.name != "xlnet":
        assert (found.positions, found.cls) == (family.positions, family.cls)


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_relatives_share_a_row(kind: str) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    family = family_of(model)
    assert family.name == "roberta"
    assert len(blocks(model, family)) == 2


def test_albert_groups_repeat_in_order() -> None:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=20, embedding_size=8, hidden_size=8, num_hidden_layers=4, num_hidden_groups=2,
        num_attention_heads=2, intermediate_size=8,
    )  # fmt: skip
    model = AlbertModel(config)
    a, b = model.encoder.albert_layer_groups
    assert blocks(model, family_of(model)) == [a, a, b, b]


class Odd(nn.Module):
    """An architecture nobody knows."""

    def __init__(self, *, listed: bool) -> None:
        super().__init__()

        class Config:
            model_type = "odd"
            num_hidden_layers = 2
            type_vocab_size = 2

            def get_text_config(self) -> Any:
                return self

        self.config = Config()
        self.embed = nn.Embedding(4, 4)
        if listed:
            self.many = nn.ModuleList(nn.Dropout() for _ in range(5))
            self.trunk = nn.Module()
            self.trunk.embed_norm = nn.LayerNorm(4)
            self.trunk.out_norm = nn.LayerNorm(4)
            self.trunk.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.mixed = nn.ModuleList([nn.Linear(4, 4), nn.Dropout()])


def test_unknown_architecture_is_detected_by_depth() -> None:
    model = Odd(listed=True)
    family = family_of(model)
    assert family.detected
    assert family.blocks == "trunk.steps"
    assert final_norm(model, family) is model.trunk.out_norm
    assert family.segments
    model.config.num_hidden_layers = 99
    assert family_of(model).blocks == "many"


def test_architecture_without_blocks_is_an_error() -> None:
    with pytest.raises(StratoscopeError, match="'odd' is not in the table of families and has no list of like blocks"):
        family_of(Odd(listed=False))


def test_a_wrong_path_is_told() -> None:
    model = Odd(listed=True)
    with pytest.raises(TypeError, match="expected a ModuleList, got Embedding"):
        blocks(model, replace(family_of(model), blocks="embed"))


def test_a_configuration_without_depth_or_width_is_told() -> None:
    config: Any = Odd(listed=False).config
    assert depth(config) == 2
    with pytest.raises(StratoscopeError, match="configuration of architecture 'odd' has no hidden_size"):
        width(config)
