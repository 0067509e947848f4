from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import base, blocks, family_of
from stratoscope.models.train.freezing import freeze_, parse_freeze


def model(family: str, folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForSequenceClassification

    path = tiny.checkpoint(family, folder / family, head="classification")
    loaded: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(path)
    return loaded


# Families whose blocks share a table of positions outside them, and one of each other kind.
@pytest.mark.parametrize(
    "family", ["bert", "distilbert", "mpnet", "deberta", "deberta-v2", "xlnet", "modernbert", "llama"]
)
def test_nothing_below_the_freeze_takes_part_in_the_backward_pass(family: str, tmp_path: Path) -> None:
    loaded = model(family, tmp_path)
    row = family_of(loaded)
    freeze_(loaded, "bottom:2")
    needs: list[bool] = []
    for block in blocks(loaded, row):
        block.register_forward_hook(
            lambda m, i, o: needs.append((o[0] if isinstance(o, tuple | list) else o).requires_grad)
        )
    tokens = torch.tensor([[5, 6, 7, 8]])
    loaded.train()(input_ids=tokens, labels=torch.tensor([1])).loss.backward()
    assert needs == [False, False, True]
    below = {id(p) for block in blocks(loaded, row)[:2] for p in block.parameters()}
    assert all(p.grad is None for p in loaded.parameters() if id(p) in below)
    above = [p for p in blocks(loaded, row)[2].parameters() if p.requires_grad]
    assert above
    assert any(p.grad is not None and bool(p.grad.any()) for p in above)


def test_top_freezes_blocks_and_nothing_else(tmp_path: Path) -> None:
    loaded = model("bert", tmp_path)
    count = freeze_(loaded, "top:2")
    held = {id(p) for block in blocks(loaded, family_of(loaded))[1:] for p in block.parameters()}
    assert all(p.requires_grad == (id(p) not in held) for p in loaded.parameters())
    assert count.frozen == sum(p.numel() for p in loaded.parameters() if id(p) in held)
    assert count.frozen + count.trained == sum(p.numel() for p in loaded.parameters())


def test_bottom_zero_is_the_embeddings_and_none_is_nothing(tmp_path: Path) -> None:
    loaded = model("bert", tmp_path)
    freeze_(loaded, "bottom:0")
    frozen = {name for name, p in base(loaded).named_parameters() if not p.requires_grad}
    assert frozen
    assert all(name.startswith("embeddings.") for name in frozen)
    assert freeze_(loaded, None).frozen == 0


def test_a_shared_block_is_frozen_whole_or_not_at_all(tmp_path: Path) -> None:
    loaded = model("albert", tmp_path)
    with pytest.raises(
        StratoscopeError, match="applies the same block again and again, so 2 of its 3 cannot be frozen"
    ):
        freeze_(loaded, "bottom:2")
    freeze_(loaded, "bottom:3")
    assert not any(p.requires_grad for n, p in base(loaded).named_parameters() if not n.startswith("pooler."))


@pytest.mark.parametrize("text", ["4", "bottom", "bottom:", "middle:3", "top:-1", "top:0", "bottom:1.5", ""])
def test_what_is_not_of_the_form_is_refused(text: str) -> None:
    with pytest.raises(StratoscopeError, match=r"are written top:k or bottom:k with k a whole number, got"):
        parse_freeze(text, 12)


def test_more_blocks_than_there_are_cannot_be_frozen() -> None:
    assert parse_freeze("bottom:12", 12) == ("bottom", 12)
    with pytest.raises(
        StratoscopeError, match=r"cannot freeze 13 blocks of a model that has 12; freeze at most 12 \(top"
    ):
        parse_freeze("top:13", 12)
