from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.read.hidden import BATCH_BYTES, batches, default_batch_tokens, extract
from stratoscope.models.text.rows import plan_rows


def test_batches_are_longest_first_within_budget_and_complete() -> None:
    lengths = np.array([3, 9, 1, 9, 4, 30, 2])
    got = list(batches(lengths, 18))
    assert sorted(np.concatenate(got).tolist()) == list(range(7))
    sizes = [(len(b), int(lengths[b].max())) for b in got]
    assert all(n * longest <= 18 or n == 1 for n, longest in sizes)
    assert [longest for _, longest in sizes] == sorted((longest for _, longest in sizes), reverse=True)
    assert got[0].tolist() == [5]


def test_default_budget_shrinks_with_depth_and_width(model_of: Any) -> None:
    model = model_of("bert")
    assert default_batch_tokens(model) == 1024
    wide = replace(model, width=10**6)
    assert default_batch_tokens(wide) == BATCH_BYTES // (model.layers * 10**6 * 4)
    assert default_batch_tokens(replace(model, width=10**12)) == 1


@pytest.mark.parametrize("unit", ["word", "mean"])
def test_what_is_yielded_can_be_trained_on(unit: str, model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    _, layers = next(extract(model, corpus, plan_rows(corpus, [model.encoder], unit), unit=unit))
    assert not torch.is_inference_mode_enabled()
    weight = torch.zeros(model.width, requires_grad=True)
    (layers[0] @ weight).sum().backward()
    assert weight.grad is not None


def test_progress_counts_every_token(model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    seen: list[int] = []

    class Watch:
        @contextmanager
        def step(self, label: str, total: int) -> Iterator[Any]:
            seen.append(-total)
            yield seen.append

        def note(self, message: str) -> None: ...

    rows = plan_rows(corpus, [model.encoder], "cls")
    list(extract(model, corpus, rows, unit="cls", batch_tokens=60, progress=Watch()))
    assert len(seen) > 2
    assert sum(seen) == 0


def test_rows_of_another_corpus_or_unit_are_refused(model_of: Any, corpus: Corpus, texts: Any) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "cls")
    for other, unit in ((texts("Yes."), "cls"), (corpus, "mean")):
        with pytest.raises(
            StratoscopeError, match=r"the rows were planned for unit 'cls' of corpus .*; plan the rows again"
        ):
            next(extract(model, other, rows, unit=unit))


def test_rows_planned_without_this_model_are_refused(model_of: Any) -> None:
    corpus = Corpus("c", (Sentence("It \u200b rains", ("It", "\u200b", "rains")),), (0,))
    bert, gpt2 = model_of("bert"), model_of("gpt2")
    rows = plan_rows(corpus, [gpt2.encoder], "word")
    with pytest.raises(
        StratoscopeError, match=r"'bert' has no word 1 in sentence 0 .*with every model that is compared"
    ):
        next(extract(bert, corpus, rows, unit="word"))


def test_a_sentence_over_the_window_is_refused_here_too(model_of: Any, texts: Any) -> None:
    long = texts("a " * 300)
    bert = model_of("bert")
    rows = plan_rows(long, [model_of("xlnet").encoder], "cls")
    with pytest.raises(StratoscopeError, match=r"sentence 0 has 302 tokens, 'bert' reads 128"):
        next(extract(bert, long, rows, unit="cls"))


def test_unknown_subword_names_the_nearest(model_of: Any, corpus: Corpus) -> None:
    model = model_of("bert")
    rows = plan_rows(corpus, [model.encoder], "word")
    with pytest.raises(StratoscopeError, match="unknown subword 'frist'; did you mean 'first'"):
        next(extract(model, corpus, rows, unit="word", subword="frist"))


@pytest.mark.parametrize(
    ("unit", "where"),
    [("word", r"sentence 7, word 2 \('birds'\)"), ("cls", "sentence 7, unit cls"), ("token", "sentence 7, token")],
)
def test_values_that_are_not_finite_name_model_layer_and_row(unit: str, where: str, model_of: Any) -> None:
    model = model_of("bert")
    corpus = Corpus("c", (Sentence("Yes"), Sentence("so warm birds")), (3, 7))
    rows = plan_rows(corpus, [model.encoder], unit)
    last = model.encoder.encode(corpus, unit).lengths[1] - 1

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        if unit == "cls":
            output[0, 0, 5] = torch.inf
        else:
            output[0, last - 1, 5] = torch.nan
        return output

    hook = model.module.encoder.layer[1].output.register_forward_hook(spoil)
    try:
        with pytest.raises(StratoscopeError, match=f"'bert' gives a value that is not finite at layer 2, {where}"):
            list(extract(model, corpus, rows, unit=unit))
    finally:
        hook.remove()


def test_a_model_with_other_layers_than_configured_is_told(model_of: Any, corpus: Corpus) -> None:
    model = replace(model_of("bert"), layers=9)
    rows = plan_rows(corpus, [model.encoder], "cls")
    with pytest.raises(StratoscopeError, match="'bert' returned 4 layers, expected 9 from its configuration"):
        next(extract(model, corpus, rows, unit="cls"))
