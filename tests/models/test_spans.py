"""Every family through the same spans: equal to skipping them one at a time, at half the work, and put back."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, PAIR, SINGLE, Example, TaskData
from stratoscope.models.families import FAMILIES, block_list, family_of
from stratoscope.models.open.loading import ModelSpec, OpenedModel, open_model
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.surgery.spans import STACKED, score_spans
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs, tokenise

torch.set_num_threads(1)

DEPTH = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "albert groups": {"num_hidden_groups": 2},
    "deberta-v2 conv": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "modernbert mean": {"classifier_pooling": "mean", "global_attn_every_n_layers": 3},
    "qwen2 windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
}
"""Checkpoints whose blocks or heads differ, beside the plain ones; the first word is the family."""
CASES = [*(f.name for f in FAMILIES), *SETTINGS]
PICKERS = ["bert", "roberta", "albert", "electra", "distilbert", "mpnet", "xlnet", "deberta-v2", "modernbert"]
"""Families that have a multiple-choice head."""
ROWS = np.array([7, 0, 4, 4, 9, 1])
"""Not in order, one of them twice, long and short."""
Make = Callable[..., tuple[OpenedModel, Inputs]]


def task(form: str) -> TaskData:
    texts = tiny.SENTENCES
    if form == CHOICE:
        pairs = [tuple((text, texts[(k + c) % 10]) for c in range(3)) for k, text in enumerate(texts)]
    else:
        pairs = [((text, texts[-k - 1] if form == PAIR else None),) for k, text in enumerate(texts)]
    rows = tuple(Example(p, float(k % 2)) for k, p in enumerate(pairs))
    return TaskData("toy", rows, rows, ("0", "1", "2"), form, "accuracy")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A model with a head for a toy task, and the task's examples as its inputs."""

    def made(case: str, *, form: str = SINGLE, layers: int = DEPTH) -> tuple[OpenedModel, Inputs]:
        tiny.checkpoint(case.split()[0], tmp_path, layers=layers, **SETTINGS.get(case, {}))
        model = open_model(ModelSpec(str(tmp_path), device="cpu"), task(form), seed=1)
        return model, tokenise(task(form), "validation", model.encoder, length=64)

    return made


def one_by_one(model: OpenedModel, inputs: Inputs, rows: IntArray | None = None) -> dict[tuple[int, int], Floats]:
    module = model.module
    depth = module.config.num_hidden_layers
    found = {}
    for first in range(1, depth + 1):
        for last in range(first, depth + 1):
            with keeping(module, [k for k in range(1, depth + 1) if not first <= k <= last]):
                found[first, last] = predict(model, inputs, rows=rows)
    return found


def check(model: OpenedModel, inputs: Inputs, **options: Any) -> dict[tuple[int, int], Floats]:
    """Every span comes once, with the scores it has alone."""
    expected = one_by_one(model, inputs, options.get("rows"))
    found = score_spans(model, inputs, **options)
    assert found.keys() == expected.keys()
    for span, scores in expected.items():
        np.testing.assert_allclose(found[span], scores, rtol=0, atol=1e-5, err_msg=str(span))
    return found


def snapshot(module: Any) -> dict[str, Any]:
    parts = list(module.named_modules(remove_duplicate=False))
    return {
        "keys": list(module.state_dict()),
        "config": copy.deepcopy(module.config.to_dict()),
        "modules": [(name, id(m)) for name, m in parts],
        "indices": [(name, getattr(m, "layer_idx", None)) for name, m in parts],
        "training": [m.training for _, m in parts],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for _, m in parts],
        "forward": [name for name, m in parts if "forward" in vars(m)],
    }


@pytest.mark.parametrize("case", CASES)
def test_every_span_scores_as_if_skipped_alone(make: Make, case: str) -> None:
    model, inputs = make(case)
    found = check(model, inputs)
    # every span differs from every other, but ALBERT's blocks are all the same: there only lengths do
    distinct = {tuple(np.round(scores, 4).ravel()) for scores in found.values()}
    counts = {"albert": DEPTH, "albert groups": 8}
    assert len(distinct) == counts.get(case, DEPTH * (DEPTH + 1) // 2)


@pytest.mark.parametrize("case", CASES)
def test_everything_is_put_back(make: Make, case: str) -> None:
    model, inputs = make(case)
    module = model.module
    module.train()
    module.base_model.eval()
    score_spans(model, inputs, rows=ROWS[:1])  # transformers leaves recorders of its own at the first cut
    before, whole = snapshot(module), predict(model, inputs)
    score_spans(model, inputs, rows=ROWS)
    assert snapshot(module) == before
    calls = itertools.count(1)

    def fail(*_: Any) -> None:
        if next(calls) == 10:  # in the midst of the spans, inside a cut
            assert {**snapshot(module), "hooks": None} != {**before, "hooks": None}
            raise ZeroDivisionError

    last = block_list(module, family_of(module))[-1]
    hook = next(m for m in last.modules() if list(m.parameters(recurse=False))).register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        score_spans(model, inputs, batch_tokens=8)
    hook.remove()
    assert snapshot(module) == before
    assert np.array_equal(predict(model, inputs), whole)


@pytest.mark.parametrize("family", PICKERS)
def test_choices_stay_with_their_example(make: Make, family: str) -> None:
    model, inputs = make(family, form=CHOICE)
    assert inputs.choices == 3
    found = check(model, inputs, rows=ROWS, batch_tokens=2000)
    assert found[1, 2].shape == (len(ROWS), 3)
    check(model, inputs, rows=ROWS, batch_tokens=200)


@pytest.mark.parametrize("family", ["bert", "xlnet", "gpt2"])
def test_rows_and_budgets_change_nothing(make: Make, family: str) -> None:
    model, inputs = make(family, form=PAIR)
    for budget in (1, 100, 300, 100_000):
        done: list[int] = []
        check(model, inputs, rows=ROWS, batch_tokens=budget, advance=done.append)
        assert sum(done) == len(ROWS)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("case", ["bert", "albert", "deberta-v2 conv", "modernbert mean", "llama"])
def test_shallow_models_have_few_spans(make: Make, case: str, layers: int) -> None:
    assert len(check(*make(case, layers=layers))) == layers * (layers + 1) // 2


@pytest.mark.parametrize("case", ["bert", "deberta-v2 conv"])
def test_spans_of_a_cut_model_number_the_blocks_left(make: Make, case: str) -> None:
    model, inputs = make(case)
    module = model.module
    for kept in [(1, 3, 4), (2, 4), ()]:
        with keeping(module, kept):
            assert len(check(model, inputs)) == len(kept) * (len(kept) + 1) // 2


def test_the_work_beyond_the_whole_model_is_half_of_the_loop_over_spans(make: Make) -> None:
    model, inputs = make("bert", layers=12)
    module = model.module
    runs, rows, widest = Counter[int](), Counter[int](), 0

    def count(k: int) -> Callable[..., None]:
        def note(_: Any, args: Any) -> None:
            nonlocal widest
            runs[k] += 1
            rows[k] += args[0].shape[0]
            widest = max(widest, args[0].shape[0] * args[0].shape[1])

        return note

    for k, block in enumerate(module.base_model.encoder.layer):
        block.attention.self.query.register_forward_pre_hook(count(k))
    one_by_one(model, inputs)
    naive = rows.total()
    assert naive == 572 * len(inputs)
    rows.clear()
    predict(model, inputs)
    whole = rows.total()
    assert whole == 12 * len(inputs)
    rows.clear()
    score_spans(model, inputs)
    assert rows.total() - whole == naive / 2
    assert [rows[k] for k in range(12)] == [(1 + k * (k + 1) // 2) * len(inputs) for k in range(12)]
    # spans with the same end run together: with room for all, a block runs once for each end before it
    runs.clear()
    score_spans(model, inputs, batch_tokens=1_000_000)
    assert runs.total() == 12 + 66
    widest = 0
    longest = int(inputs.lengths.max())
    score_spans(model, inputs, batch_tokens=STACKED * longest)
    assert widest <= STACKED * longest


@pytest.mark.parametrize(
    ("model_type", "more", "tokens"),
    [
        ("gpt_neox", {}, "gpt2"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 2]], "window_size": 4}, "gpt2"),
        ("mistral", {"num_key_value_heads": 1, "sliding_window": 8}, "gpt2"),
        ("roformer", {"embedding_size": 16}, "bert"),
    ],
)
def test_unknown_architectures_too(make: Make, model_type: str, more: dict[str, Any], tokens: str) -> None:
    model, inputs = make(tokens)
    settings = {"vocab_size": 600, "hidden_size": 16, "num_hidden_layers": DEPTH, "num_attention_heads": 2,
                "intermediate_size": 32, "initializer_range": 0.2, "pad_token_id": model.encoder.pad_id}  # fmt: skip
    config = transformers.AutoConfig.for_model(model_type, **{**settings, **more})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    assert family_of(module).detected
    check(replace(model, module=module), inputs, rows=ROWS)


def test_a_model_that_runs_its_blocks_twice_is_refused(make: Make) -> None:
    model, inputs = make("bert")
    module = model.module
    encoder = module.base_model.encoder
    own = encoder.forward

    def twice(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        return own(own(hidden, *args, **kwargs)[0], *args, **kwargs)

    encoder.forward = twice
    with pytest.raises(StratoscopeError, match="architecture 'bert': expected 4 block runs in a forward pass, got 8;"):
        score_spans(model, inputs)


def test_a_forward_of_the_blocks_own_is_kept(make: Make) -> None:
    """Accelerate wraps blocks by giving each a forward of its own."""
    model, inputs = make("bert")
    module = model.module
    own = {}
    for block in module.base_model.encoder.layer:
        block.forward = own[block] = lambda *args, _forward=block.forward, **kwargs: _forward(*args, **kwargs)
    check(model, inputs, rows=ROWS)
    assert all(vars(block)["forward"] is forward for block, forward in own.items())
