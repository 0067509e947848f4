"""Every family through the same cuts: built shallower, skipped block by block, exported, and put back."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import FAMILIES, base, block_list, family_of
from stratoscope.models.surgery.blocks import exported, keeping, parse_drop

torch.set_num_threads(1)

DEPTH = 4
ALL = [f.name for f in FAMILIES]
DECODERS = ["gpt2", "llama", "qwen2", "qwen3", "gemma2"]
SETTINGS: dict[str, dict[str, Any]] = {
    "albert groups": {"num_hidden_groups": 2},
    "deberta-v2 conv": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "modernbert mostly local": {"global_attn_every_n_layers": 3},
    "qwen2 windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    "qwen3 windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "gpt2 scaled": {"scale_attn_by_inverse_layer_idx": True},
}
"""Checkpoints whose blocks differ from each other, beside the plain ones; the first word is the family."""
CASES = [*ALL, *SETTINGS]
SUBSETS = [s for n in range(DEPTH + 1) for s in itertools.combinations(range(1, DEPTH + 1), n)]
SAVED = [(1,), (1, 2), (1, 3), (2, 3, 4), (4,), (1, 2, 4), ()]
UNWRITABLE = {
    "modernbert": {(2, 3, 4), (4,), ()},
    "modernbert mostly local": {(2, 3, 4), (4,), ()},
    "deberta-v2": {()},
    "deberta-v2 conv": {()},
    "albert groups": {(2, 3, 4)},
    "gpt2 scaled": {(1, 3), (2, 3, 4), (4,), (1, 2, 4)},
}
"""Cuts of `SAVED` that no configuration describes, written down apart from the code."""
Make = Callable[..., Any]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A classifier of a case, at some depth; every call gives a fresh copy of one saved model."""
    root = tmp_path_factory.mktemp("surgery")

    @cache
    def saved(case: str, layers: int, head: str, **config: Any) -> Path:
        folder = root / f"{case}-{layers}-{head}-{'-'.join(config)}".replace(" ", "-")
        settings = {"pad_token_id": 0, **SETTINGS.get(case, {}), **config}
        return tiny.checkpoint(case.split()[0], folder, head=head, layers=layers, **settings)

    def model(case: str, *, layers: int = DEPTH, head: str = "classification", **config: Any) -> Any:
        auto = getattr(transformers, tiny.HEADS[head])
        return auto.from_pretrained(saved(case, layers, head, **config)).eval()

    return model


def batch(model: Any, length: int = 24) -> dict[str, Tensor]:
    """Three rows longer than every window, two of them padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length - 5 :] = mask[2, 7:] = 0
    ids[mask == 0] = model.config.pad_token_id
    given = {"input_ids": ids, "attention_mask": mask}
    if family_of(model).segments and getattr(model.config, "type_vocab_size", 2) > 1:
        given["token_type_ids"] = torch.randint(0, 2, ids.shape, generator=generator)
    return given


@torch.no_grad()
def logits(model: Any, **more: Any) -> Tensor:
    found: Tensor = model(**batch(model), **more).logits
    return found


def skipped_one_by_one(model: Any, kept: Sequence[int]) -> Tensor:
    """The whole model runs, and each call of a block that is not kept gives back its input."""
    calls = itertools.count(1)
    inner = base(model)

    def hand_on(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if next(calls) in kept:
            return output
        return type(output)((args[0], *output[1:])) if isinstance(output, tuple | list) else args[0]

    hooks = [b.register_forward_hook(hand_on, with_kwargs=True) for b in block_list(model, family_of(model))]
    conv = getattr(getattr(inner, "encoder", None), "conv", None)
    if conv is not None and 1 not in kept:  # DeBERTa-v2 adds it to what block 1 gives
        hooks.append(conv.register_forward_hook(lambda _, args, output: args[1]))
    try:
        return logits(model)
    finally:
        for hook in hooks:
            hook.remove()


def snapshot(model: Any) -> dict[str, Any]:
    """Everything a cut may touch."""
    return {
        "keys": list(model.state_dict()),
        "config": copy.deepcopy(model.config.to_dict()),
        "lists": {k: id(v) for k, v in vars(model.config).items() if isinstance(v, list)},
        "modules": [(name, id(m)) for name, m in model.named_modules(remove_duplicate=False)],
        "indices": [
            getattr(m, name) for m in model.modules() for name in ("layer_idx", "layer_id") if hasattr(m, name)
        ],
        "training": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
    }


def close(a: Tensor, b: Tensor) -> None:
    assert torch.isfinite(a).all()
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_truncated_equals_a_model_built_at_that_depth(make: Make, case: str) -> None:
    model = make(case)
    whole = logits(model)
    for depth in range(1, DEPTH + 1):
        # two groups of two: with one or two blocks only the first group is left
        groups = {"num_hidden_groups": 1 if depth < 3 else 2} if case == "albert groups" else {}
        built = make(case, layers=depth, **groups)
        weights = model.state_dict()
        built.load_state_dict({name: weights[name] for name in built.state_dict()})
        with keeping(model, range(1, depth + 1)) as cut:
            assert cut is model
            close(logits(cut), logits(built))
            if depth < DEPTH:
                assert not torch.allclose(logits(cut), whole, atol=1e-3)
                assert len(cut(**batch(cut), output_hidden_states=True).hidden_states) == depth + 1


@pytest.mark.parametrize("case", CASES)
def test_any_set_of_blocks_equals_skipping_the_others_one_by_one(make: Make, case: str) -> None:
    model = make(case)
    seen = []
    for kept in SUBSETS:
        reference = skipped_one_by_one(model, kept)
        with keeping(model, kept):
            close(logits(model), reference)
        seen.append(reference)
    distinct = {tuple(reference.flatten().tolist()) for reference in seen}
    counts = {"albert": DEPTH + 1, "albert groups": 9}  # loop counts, of one group and of two
    assert len(distinct) == counts.get(case, len(SUBSETS))


@pytest.mark.parametrize("case", CASES)
def test_everything_is_put_back(make: Make, case: str) -> None:
    model = make(case)
    logits(model, output_hidden_states=True)
    before, whole = snapshot(model), logits(model)
    with keeping(model, (2, 3)):
        assert logits(model).ne(whole).any()
        assert model.config.num_hidden_layers == 2
    assert snapshot(model) == before
    with pytest.raises(ZeroDivisionError), keeping(model, range(1, 1)):
        raise ZeroDivisionError
    assert snapshot(model) == before
    assert torch.equal(logits(model), whole)


@pytest.mark.parametrize("case", CASES)
def test_a_cut_inside_a_cut_numbers_the_blocks_left(make: Make, case: str) -> None:
    model = make(case)
    before, whole = snapshot(model), logits(model)
    with keeping(model, (1, 2, 4)):
        outer, outer_logits = snapshot(model), logits(model)
        with keeping(model, (1, 3)):
            inner = logits(model)
            with keeping(model, range(1, 1)):
                bare = logits(model)
                with keeping(model, range(1, 1)):
                    close(logits(model), bare)
        assert snapshot(model)["keys"] == outer["keys"]
        assert torch.equal(logits(model), outer_logits)
    close(inner, skipped_one_by_one(model, (1, 4)))
    close(bare, skipped_one_by_one(model, ()))
    assert {**snapshot(model), "hooks": None} == {**before, "hooks": None}
    assert torch.equal(logits(model), whole)


@pytest.mark.parametrize("family", ALL)
def test_the_first_request_for_hidden_states_may_come_inside_a_cut(make: Make, family: str) -> None:
    """Transformers installs its recorders once; recorders on the kept blocks only would lose layers for ever."""
    model = make(family)
    with keeping(model, range(1, 2)):
        assert len(model(**batch(model), output_hidden_states=True).hidden_states) == 2
    with torch.no_grad():
        assert len(model(**batch(model), output_hidden_states=True).hidden_states) == DEPTH + 1


@pytest.mark.parametrize("family", ALL)
def test_the_head_reads_normed_embeddings_when_no_block_is_left(make: Make, family: str) -> None:
    model = make(family)
    row = family_of(model)
    with torch.no_grad():
        layers = base(model)(**batch(model), output_hidden_states=True).hidden_states
        expected = layers[0] if row.final_norm is None else base(model).get_submodule(row.final_norm)(layers[0])
        with keeping(model, range(1, 1)):
            close(base(model)(**batch(model))[0], expected)


@pytest.mark.parametrize("case", CASES)
def test_exported_reloads_with_plain_transformers(make: Make, case: str, tmp_path: Path) -> None:
    model = make(case)
    before = snapshot(model)
    for kept in SAVED:
        if kept in UNWRITABLE.get(case, ()):
            with pytest.raises(StratoscopeError, match=r"^no (standard checkpoint|configuration) of"):
                exported(model, kept)
            continue
        cut = exported(model, kept)
        folder = tmp_path / f"kept{len(kept)}-{sum(kept)}"
        cut.save_pretrained(folder)
        again, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        with keeping(model, kept):
            expected = logits(model)
        close(logits(cut), expected)
        close(logits(again.eval()), expected)
        # ALBERT's blocks share their weights: with two groups, weights go when both blocks of a group do
        same = case == "albert" or (case == "albert groups" and min(kept, default=3) < 3 <= max(kept, default=0))
        assert (again.num_parameters() == model.num_parameters()) == (same and kept != ())
        assert again.num_parameters() <= model.num_parameters()
        assert again.config.num_hidden_layers == len(kept)
    assert {**snapshot(model), "hooks": None} == {**before, "hooks": None}


def test_exported_shares_nothing_with_the_model(make: Make) -> None:
    model = make("bert")
    whole = logits(model)
    cut = exported(model, (1, 2))
    with torch.no_grad():
        for p in cut.parameters():
            p.zero_()
    cut.config.num_labels = 7
    assert torch.equal(logits(model), whole)
    assert model.config.num_labels == 2


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("windows", [False, True])
def test_a_cut_decoder_generates_with_its_cache(make: Make, family: str, windows: bool, tmp_path: Path) -> None:
    case = f"{family} windows" if windows and f"{family} windows" in SETTINGS else family
    model = make(case, head="causal").double()
    ids = batch(model)["input_ids"][:1]
    exported(model, (2, 4)).save_pretrained(tmp_path / "cut")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", dtype=torch.float64).eval()

    def check(cut: Any) -> Tensor:
        with torch.no_grad():
            whole: Tensor = cut(ids, use_cache=False).logits
            first = cut(ids[:, :12], use_cache=True)
            second = cut(ids[:, 12:], past_key_values=first.past_key_values, use_cache=True)
            text = [cut.generate(ids, max_new_tokens=6, do_sample=False, use_cache=c) for c in (True, False)]
        assert len(first.past_key_values) == 2
        close(torch.cat([first.logits, second.logits], dim=1), whole)
        assert torch.equal(*text)
        return whole

    with keeping(model, (2, 4)):
        inside = check(model)
    close(check(again), inside)
    assert again.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()


def test_attention_windows_travel_with_their_blocks(make: Make) -> None:
    for case in ("gemma2", "modernbert", "qwen2 windows"):
        model = make(case)
        types = list(model.config.layer_types)
        assert len(set(types)) == 2
        kept = (1, 2, 4) if case != "gemma2" else (2, 4)
        assert exported(model, kept).config.layer_types == [types[k - 1] for k in kept]


def test_a_cut_can_be_trained(make: Make) -> None:
    """The kept blocks are the model's own: gradients reach them, and no other."""
    model = make("bert")
    with keeping(model, (1, 4)):
        model(**batch(model)).logits.sum().backward()
    reached = [any(p.grad is not None for p in b.parameters()) for b in model.bert.encoder.layer]
    assert reached == [True, False, False, True]


def test_multiple_choice_and_bare_models_are_cut_too(make: Make, tmp_path: Path) -> None:
    bert = make("bert")
    choice = transformers.AutoModelForMultipleChoice.from_config(bert.config).eval()
    with torch.no_grad(), keeping(choice, range(1, 3)):
        ids = batch(bert)["input_ids"][None]
        assert choice(input_ids=ids).logits.shape == (1, 3)
        bare = base(choice)(ids[0]).last_hidden_state
    cut = exported(base(choice), (1, 2))
    cut.save_pretrained(tmp_path)
    with torch.no_grad():
        close(transformers.AutoModel.from_pretrained(tmp_path).eval()(ids[0]).last_hidden_state, bare)


def unknown(model_type: str, **more: Any) -> Any:
    """A tiny model of an architecture that is not in the table, with a classification head."""
    settings = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": DEPTH, "num_attention_heads": 2,
                "intermediate_size": 32, "initializer_range": 0.2, "pad_token_id": 0}  # fmt: skip
    config = transformers.AutoConfig.for_model(model_type, **{**settings, **more})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return AutoModelForSequenceClassification.from_config(config).eval()


MIXED = ["sliding_attention", "full_attention"] * 2


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("mistral", {"num_key_value_heads": 1, "sliding_window": 8}),
        ("gemma3_text", {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8, "layer_types": MIXED}),
        ("gpt_neo", {"attention_types": [[["global", "local"], 2]], "window_size": 4}),
        ("gpt_neox", {}),
        ("roformer", {"embedding_size": 16}),
    ],
)  # fmt: skip
def test_unknown_architectures_are_cut_alike(model_type: str, more: dict[str, Any], tmp_path: Path) -> None:
    model = unknown(model_type, **more)
    assert family_of(model).detected
    before = snapshot(model)
    for kept in [(1, 2), (2, 4), (3,)]:
        reference = skipped_one_by_one(model, kept)
        with keeping(model, kept):
            close(logits(model), reference)
        exported(model, kept).save_pretrained(tmp_path / str(len(kept)))
        again, info = AutoModelForSequenceClassification.from_pretrained(
            tmp_path / str(len(kept)), output_loading_info=True
        )
        assert not any(info.values()), info
        close(logits(again.eval()), reference)
    assert {**snapshot(model), "hooks": None} == {**before, "hooks": None}


def test_an_unknown_architecture_whose_first_block_serves_the_others_is_refused() -> None:
    model = unknown("t5", d_model=16, d_kv=8, d_ff=32, num_layers=DEPTH, num_heads=2)
    with keeping(model, range(1, 3)):
        pass
    before = snapshot(model)
    with pytest.raises(StratoscopeError, match="computes something else than with these blocks skipped"):
        keeping(model, (2, 3)).__enter__()
    assert {**snapshot(model), "hooks": None} == {**before, "hooks": None}


def test_an_unknown_architecture_that_does_not_run_is_refused() -> None:
    model = unknown("gpt_neox")
    model.base_model.layers[1].forward = lambda *_, **__: 1 / 0
    model.train()
    with pytest.raises(StratoscopeError, match=r"'gpt_neox': a trial run failed \(division by zero\)"):
        keeping(model, (1, 2)).__enter__()
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks for m in model.base_model.layers if m._forward_hooks_with_kwargs)


def test_an_unknown_architecture_is_cut_in_training_mode_too() -> None:
    model = unknown("gpt_neox", hidden_dropout=0.5, attention_dropout=0.5).train()
    with keeping(model, (1, 3)):
        assert all(m.training for m in model.modules())


def test_a_replaced_head_is_not_exported(make: Make) -> None:
    model = make("bert")
    model.classifier = nn.Linear(tiny.HIDDEN, 5)
    with pytest.raises(
        StratoscopeError, match=r"weights 'classifier.weight' would have shape \(2, 32\), but have \(5, 32"
    ):
        exported(model, (1,))


def test_the_reason_names_what_differs(make: Make) -> None:
    with pytest.raises(
        StratoscopeError, match="'attn_norm' of block 1 would be built as Identity, but is LayerNorm; keep"
    ):
        exported(make("modernbert"), (2, 3))
    with pytest.raises(
        StratoscopeError, match=r"configuration is refused \(Validation .*'rope_parameters'\); keep other"
    ):
        exported(make("modernbert"), ())
    with pytest.raises(StratoscopeError, match=r"'attn' of block 1 would have scaling 0.35\d+, but has 0.17\d+"):
        exported(make("gpt2 scaled"), (2, 3))
    with pytest.raises(StratoscopeError, match="'deberta-v2' holds this cut: a model with 0 blocks does not run"):
        exported(make("deberta-v2"), ())
    with pytest.raises(StratoscopeError, match="applies its shared blocks in the order 1, 2, 2; keep a number"):
        exported(make("albert groups"), (2, 3, 4))


def test_a_list_of_another_length_than_configured_is_refused(make: Make) -> None:
    model = make("bert")
    model.config.num_hidden_layers = 9
    with pytest.raises(StratoscopeError, match=r"counts 9 blocks, the list at 'encoder\.layer' holds 4"):
        keeping(model, (1,)).__enter__()


def test_a_heterogeneous_configuration_is_refused() -> None:
    model = unknown("mistral", num_key_value_heads=1)
    model.config.per_layer_config = {0: {"intermediate_size": 8}}
    with pytest.raises(StratoscopeError, match="sets blocks apart by number"):
        keeping(model, (1,)).__enter__()


@pytest.mark.parametrize("kept", [(2, 1), (1, 1), (0, 1), (1, 5), (-1,)])
def test_blocks_must_exist_and_increase(make: Make, kept: tuple[int, ...]) -> None:
    with pytest.raises(StratoscopeError, match=r"blocks to keep must be increasing numbers from 1 to 4, got -?\d"):
        keeping(make("bert"), kept).__enter__()


def test_parse_drop() -> None:
    assert parse_drop("top:4", 6) == (1, 2)
    assert parse_drop("bottom:4", 6) == (5, 6)
    assert parse_drop("top:6", 6) == ()
    for text in ("top", "top:", "middle:2", "top:-1", "top:0", "top:1.5", "4", "bottom: 2"):
        with pytest.raises(StratoscopeError, match=f"written top:k or bottom:k with k at least 1, got '{text}'"):
            parse_drop(text, 6)
    with pytest.raises(StratoscopeError, match=r"cannot drop 7 blocks of a model that has 6; drop at most 6 \(top:7\)"):
        parse_drop("top:7", 6)
