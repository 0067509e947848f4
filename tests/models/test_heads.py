"""A model's own head read as a function of the vector it reads, for every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import FAMILIES, Family
from stratoscope.models.heads.reading import head_parameters, reading


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_the_head_gives_the_models_own_logits(family: Family, tmp_path: Path) -> None:
    folder = tiny.checkpoint(family.name, tmp_path, head="classification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = [tokenizer(s, return_tensors="pt") for s in tiny.SENTENCES[:4]]
    padding, forward = model.config.pad_token_id, type(model.base_model).forward
    with torch.no_grad():
        outputs = [model(**i, output_hidden_states=True) for i in inputs]
        position = 0 if family.cls == "first" else -1
        vectors = torch.stack([o.hidden_states[-1][0, position] for o in outputs])
        with reading(model) as head:
            got = head(vectors)
        again = model(**inputs[0]).logits
    torch.testing.assert_close(got, torch.cat([o.logits for o in outputs]), atol=1e-6, rtol=0)
    assert torch.equal(again, outputs[0].logits)
    assert (model.config.pad_token_id, model.base_model.forward.__func__) == (padding, forward)


def test_head_parameters_are_the_pooler_and_what_is_outside_the_encoder(tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path, head="classification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    names = [name for name, _ in head_parameters(model)]
    assert names == ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]


def test_the_model_is_whole_again_after_an_error(tmp_path: Path) -> None:
    folder = tiny.checkpoint("bert", tmp_path, head="classification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with pytest.raises(RuntimeError, match="stop"), reading(model):
        raise RuntimeError("stop")
    assert "forward" not in vars(model.base_model)


def test_a_bare_encoder_has_no_head(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(tiny.checkpoint("bert", tmp_path))
    refused = pytest.raises(StratoscopeError, match="has no task head; expected a sequence-classification checkpoint")
    with refused, reading(model):
        pass
