"""Models as users have them: adapters, folders of a training, sentence-transformers, revisions, models in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.data.tasks.read import read_task
from stratoscope.models.open import loading
from stratoscope.models.open.loading import ModelSpec, load_tokenizer, open_model, resolve, survey
from stratoscope.studies.asked import several, spec_of
from stratoscope.studies.compare.plan import named

peft = pytest.importorskip("peft")


def lora(base: Path, folder: Path, auto: str = "AutoModelForSequenceClassification", **config: Any) -> Path:
    """A LoRA adapter with weights that matter, in `folder`/adapter, and the merged checkpoint in `folder`/merged."""
    torch.manual_seed(3)
    model = getattr(transformers, auto).from_pretrained(base)
    tuned = peft.get_peft_model(model, peft.LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p) * 0.3 + (1.0 if "magnitude" in name else 0.0))
    tuned.save_pretrained(folder / "adapter")
    merged = tuned.merge_and_unload()
    merged.save_pretrained(folder / "merged")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder / "merged")
    return folder / "adapter"


def spec(folder: Path | str, **options: Any) -> ModelSpec:
    return ModelSpec(str(folder), device="cpu", **options)


def states(model: Any) -> torch.Tensor:
    """All hidden states of two texts of the same length."""
    ids = torch.tensor([[5, 9, 12, 7, 20, 11], [8, 30, 6, 14, 9, 22]])
    with torch.inference_mode():
        return torch.stack(model.module(input_ids=ids, output_hidden_states=True).hidden_states)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return tiny.checkpoint("bert", tmp_path / "bert")


@pytest.fixture
def adapter(bert: Path, tmp_path: Path) -> Path:
    return lora(bert, tmp_path, task_type="SEQ_CLS", target_modules=["query", "value", "dense"])


CASES = {
    "encoder": ("bert", "AutoModel", {"task_type": "FEATURE_EXTRACTION", "target_modules": ["query", "dense"]}),
    "no task": ("bert", "AutoModelForSequenceClassification", {"target_modules": ["query"]}),
    "rank-stabilised, by module": (
        "bert",
        "AutoModelForSequenceClassification",
        {
            "task_type": "SEQ_CLS",
            "target_modules": ["query", "value"],
            "use_rslora": True,
            "rank_pattern": {"query": 2},
            "alpha_pattern": {"value": 9},
        },
    ),
    "magnitudes": ("llama", "AutoModelForCausalLM", {"task_type": "CAUSAL_LM", "use_dora": True}),
    "transposed": ("gpt2", "AutoModelForCausalLM", {"task_type": "CAUSAL_LM", "fan_in_fan_out": True}),
    "embeddings": ("llama", "AutoModelForCausalLM", {"task_type": "CAUSAL_LM", "target_modules": ["embed_tokens"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_gives_the_states_of_the_merged_checkpoint(case: str, tmp_path: Path, capfd: Any) -> None:
    family, auto, config = CASES[case]
    head = "causal" if auto.endswith("CausalLM") else None
    folder = lora(tiny.checkpoint(family, tmp_path / "base", head=head), tmp_path, auto, **config)
    capfd.readouterr()
    found, whole, bare = (states(open_model(spec(tmp_path / name))) for name in ("adapter", "merged", "base"))
    assert (found - whole).abs().max() < 1e-6 * whole.abs().max()
    assert (found - bare).abs().max() > 1e-2, "the adapter does something"
    if head:
        found, whole = (open_model(spec(tmp_path / name), "causal") for name in ("adapter", "merged"))
        ids = torch.tensor([[5, 9, 12]])
        assert torch.allclose(found.module(ids).logits, whole.module(ids).logits, atol=1e-5)
    assert "".join(capfd.readouterr()) == "", folder


def test_an_adapter_brings_its_head(adapter: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": f"the {w}", "label": k % 2}) for k, w in enumerate("abcdefgh" * 3)))
    task = read_task("mine", data=str(rows))
    found, whole = open_model(spec(adapter), task), open_model(spec(tmp_path / "merged"), task)
    assert found.head == whole.head == "kept"
    ids = torch.tensor([[5, 9, 12]])
    assert torch.allclose(found.module(ids).logits, whole.module(ids).logits, atol=1e-6)


def test_base_and_adapter_are_both_in_the_fingerprint(adapter: Path, bert: Path, tmp_path: Path) -> None:
    first = survey(spec(adapter)).fingerprint
    assert survey(spec(adapter)).fingerprint == first
    other = tiny.checkpoint("bert", tmp_path / "other", seed=5)
    assert survey(spec(adapter, base=str(other))).fingerprint != first
    assert survey(spec(adapter, base=str(bert))).fingerprint == first
    weights = load_file(adapter / "adapter_model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1}, adapter / "adapter_model.safetensors")
    assert survey(spec(adapter)).fingerprint != first


def test_base_of_an_adapter(adapter: Path, bert: Path, tmp_path: Path) -> None:
    before = states(open_model(spec(adapter)))
    moved = bert.rename(tmp_path / "moved")
    with pytest.raises(StratoscopeError, match=r"was trained on .*bert', which is not there; give --base"):
        survey(spec(adapter))
    assert torch.equal(states(open_model(spec(adapter, base=str(moved)))), before)
    edit(adapter / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(StratoscopeError, match="does not name its base"):
        survey(spec(adapter))
    with pytest.raises(StratoscopeError, match="is an adapter itself"):
        survey(spec(adapter, base=str(adapter)))


def test_an_adapter_that_does_not_fit_is_refused(adapter: Path, tmp_path: Path) -> None:
    """peft passes over tensors without a place, and leaves out those it lacks."""
    small = tiny.checkpoint("bert", tmp_path / "small", layers=2)
    with pytest.raises(StratoscopeError, match=r"does not fit its base: 10 of its tensors .*layer.2"):
        open_model(spec(adapter, base=str(small)))
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.1." not in k}, adapter / "adapter_model.safetensors")
    with pytest.raises(StratoscopeError, match=r"does not fit its base: .*layer.1"):
        open_model(spec(adapter))


def test_missing_weights_of_the_base_are_not_made_up(adapter: Path, bert: Path) -> None:
    weights = load_file(bert / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.1.output.dense" not in k}, bert / "model.safetensors")
    with pytest.raises(StratoscopeError, match=r"lacks 2 of the encoder's weights"):
        open_model(spec(adapter))


def test_unsafe_or_unclear_adapters_are_refused(adapter: Path, bert: Path) -> None:
    stored = adapter / "adapter_model.safetensors"
    torch.save(load_file(stored), adapter / "adapter_model.bin")
    whole = states(open_model(spec(adapter)))
    stored.unlink()
    with pytest.raises(StratoscopeError, match=r"pickle only \(adapter_model.bin\)"):
        survey(spec(adapter))
    assert torch.equal(states(open_model(spec(adapter, allow_pickle=True))), whole)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(StratoscopeError, match=r"has no weights \(adapter_model.safetensors\)"):
        survey(spec(adapter))
    shutil.copy(bert / "config.json", adapter)
    with pytest.raises(StratoscopeError, match=r"an adapter .* and a whole model"):
        survey(spec(adapter))
    (adapter / "config.json").unlink()
    (adapter / "adapter_config.json").write_text("[]")
    with pytest.raises(StratoscopeError, match="names no peft_type"):
        survey(spec(adapter))


def test_an_adapter_that_cannot_be_merged_is_refused(bert: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert)
    prompts = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4)
    peft.get_peft_model(model, prompts).save_pretrained(tmp_path / "prompts")
    with pytest.raises(StratoscopeError, match=r"\(PROMPT_TUNING\) cannot be merged"):
        open_model(spec(tmp_path / "prompts"))


def test_the_adapter_s_own_tokenizer_is_used(adapter: Path, bert: Path) -> None:
    assert load_tokenizer(spec(adapter)).get_vocab() == load_tokenizer(spec(bert)).get_vocab()
    own = transformers.AutoTokenizer.from_pretrained(bert, model_max_length=17)
    own.save_pretrained(adapter)
    assert load_tokenizer(spec(adapter)).model_max_length == 17


def test_an_adapter_on_the_hub(adapter: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    one, two = "1" * 40, "2" * 40
    edit(adapter / "adapter_config.json", base_model_name_or_path="acme/base", revision="v1")
    tiny.hub_cache(tmp_path, "acme/base", {one: bert}, {"v1": one})
    tiny.hub_cache(tmp_path, "acme/lora", {two: adapter}, {"main": two})
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    for kept in (loading._reachable, loading._commit, loading.on_hub):
        kept.cache_clear()
    checkpoint = resolve(spec("acme/lora"))
    assert (checkpoint.source, checkpoint.revision, checkpoint.local) == ("acme/base", "v1", False)
    assert torch.equal(states(open_model(spec("acme/lora"))), states(open_model(spec(adapter, base=str(bert)))))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_revision_after_the_name(tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    one, two = "1" * 40, "2" * 40
    other = tiny.checkpoint("bert", tmp_path / "other", seed=9)
    tiny.hub_cache(tmp_path / "hub", "acme/tiny", {one: bert, two: other}, {"main": one, "step1000": two})
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for kept in (loading._reachable, loading._commit, loading.on_hub):
        kept.cache_clear()
    asked = [spec("acme/tiny@main"), spec("acme/tiny@step1000"), spec("acme/tiny", revision="step1000")]
    assert [survey(s).fingerprint for s in asked] == [one, two, two]
    assert survey(spec("acme/tiny@main", revision="step1000")).fingerprint == one, "its own counts"
    assert [s.name for s in named(asked)] == ["tiny@main", "tiny@step1000", "tiny"]
    assert spec("acme/tiny@refs/pr/1").label == "tiny@refs/pr/1"
    with pytest.raises(StratoscopeError, match="expected a revision after the @"):
        resolve(spec("acme/tiny@"))
    at = Path(shutil.copytree(bert, tmp_path / "a@b"))
    assert (resolve(spec(at)).source, spec(at).label) == (str(at), "a@b"), "a folder that is there"


@pytest.fixture
def training(bert: Path, tmp_path: Path) -> Path:
    """The folder of a training with three checkpoints."""
    for step in (50, 75, 100):
        shutil.copytree(bert, tmp_path / "sentiment-clf" / f"checkpoint-{step}")
    return tmp_path / "sentiment-clf"


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_of_a_training_the_best_checkpoint_is_read_or_the_last(training: Path) -> None:
    notes = Notes()
    survey(spec(training), progress=notes)
    assert resolve(spec(training)).source == str(training / "checkpoint-100")
    assert "checkpoint-100 is read, the last of 3" in notes.said[0]
    state = {"best_model_checkpoint": "elsewhere/sentiment-clf/checkpoint-75"}
    (training / "checkpoint-100" / "trainer_state.json").write_text(json.dumps(state))
    assert resolve(spec(training)).source == str(training / "checkpoint-75")
    (training / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": "checkpoint-50"}))
    assert resolve(spec(training)).source == str(training / "checkpoint-50")
    assert "the best" in resolve(spec(training)).note
    (training / "trainer_state.json").write_text("{")
    assert resolve(spec(training)).source == str(training / "checkpoint-75")
    shutil.copy(training / "checkpoint-50" / "config.json", training)
    assert resolve(spec(training, random_init=True)).source == str(training), "a model of its own"


def test_labels_tell_models_apart(training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = [spec(training / f"checkpoint-{step}") for step in (50, 75)]
    assert at[0].label == spec(training).label == "sentiment-clf"
    assert [s.name for s in named(at)] == ["sentiment-clf/checkpoint-50", "sentiment-clf/checkpoint-75"]
    assert [s.name for s in named([at[0], spec("x/base")])] == ["sentiment-clf", "base"]
    monkeypatch.chdir(training)
    assert spec("checkpoint-75").label == "sentiment-clf"


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_a_folder_of_sentence_transformers(place: str, bert: Path, tmp_path: Path) -> None:
    root = tmp_path / "embedder"
    shutil.copytree(bert, root / place)
    kind = "sentence_transformers.models"
    modules = [{"idx": 0, "name": "0", "path": place, "type": f"{kind}.Transformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}.Pooling"}]
    (root / "modules.json").write_text(json.dumps(modules))
    assert torch.equal(states(open_model(spec(root))), states(open_model(spec(bert))))
    assert spec(root).label == "embedder"


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp", "0_Transformer/..", 3, None])
def test_modules_outside_the_folder_are_not_followed(path: Any, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "elsewhere")
    (tmp_path / "embedder").mkdir()
    (tmp_path / "embedder" / "modules.json").write_text(json.dumps([{"path": path}, 7]))
    with pytest.raises(StratoscopeError, match=r"has no config.json"):
        survey(spec(tmp_path / "embedder"))


@pytest.mark.parametrize(
    "shard",
    ["shard.bin", "../out.safetensors", "/tmp/out.safetensors", "a/b.safetensors", "..", "", 3, None, ["x"]],
)
def test_an_index_names_safetensors_beside_it_only(shard: Any, bert: Path) -> None:
    weights = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    torch.save(weights, bert / "shard.bin")
    save_file(weights, bert.parent / "out.safetensors")
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, shard)}))
    for allowed in (False, True):
        with pytest.raises(StratoscopeError, match=r"names the weight file|is damaged"):
            open_model(spec(bert, allow_pickle=allowed))


def test_an_index_of_safetensors_is_read(bert: Path) -> None:
    before, weights = states(open_model(spec(bert))), load_file(bert / "model.safetensors")
    (bert / "model.safetensors").rename(bert / "model-1.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-1.safetensors")}
    (bert / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(states(open_model(spec(bert))), before)


def test_a_model_in_memory_is_read_as_its_checkpoint_and_not_changed(bert: Path) -> None:
    module = transformers.AutoModelForSequenceClassification.from_pretrained(bert).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    given = spec_of((module, tokenizer))
    opened = open_model(given)
    assert torch.equal(states(opened), states(open_model(spec(bert))))
    opened.module.encoder.layer[0].output.dense.weight.fill_(0.0)
    assert module.bert.encoder.layer[0].output.dense.weight.abs().sum() > 0, "it is a copy"
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 5
    first = survey(given).fingerprint
    assert survey(spec_of((module, tokenizer))).fingerprint == first
    with torch.no_grad():
        module.bert.encoder.layer[0].output.dense.weight[0, 0] += 1
    assert survey(spec_of((module, tokenizer))).fingerprint != first
    assert [s.name for s in named([given, given])] == ["bert-1", "bert-2"]


def test_an_adapter_in_memory(adapter: Path, bert: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert)
    tuned = peft.PeftModel.from_pretrained(model, adapter)
    found = states(open_model(spec_of((tuned, transformers.AutoTokenizer.from_pretrained(bert)))))
    assert torch.allclose(found, states(open_model(spec(adapter))), atol=1e-6)
    assert hasattr(tuned, "merge_and_unload")
    assert any("lora_A" in name for name, _ in tuned.named_parameters()), "it is still an adapter"


@pytest.mark.parametrize("model", [(1, 2), ("a", "b", "c"), 7, None])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(StratoscopeError, match="expected a"):
        spec_of(model)


def test_one_pair_is_one_model(bert: Path) -> None:
    pair = (transformers.AutoModel.from_pretrained(bert), transformers.AutoTokenizer.from_pretrained(bert))
    assert several(pair) == [pair]
    assert list(several(("a", "b"))) == ["a", "b"]
