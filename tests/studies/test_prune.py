from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from toys import KilledError, Told, classification, killing, plain

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.models.open.loading import ModelSpec
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.folder import RunFolder
from stratoscope.studies import prune as prune_study
from stratoscope.studies.finetune.options import FinetuneOptions
from stratoscope.studies.prune import prune

BRIEF = FinetuneOptions(recipe="quick", lr=1e-3, max_steps=6, batch=8, checkpoint_steps=2)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint("bert", tmp_path_factory.mktemp("base") / "deep", layers=4)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    return prune(base, classification(), drop="top:2", out=tmp_path_factory.mktemp("whole"), options=BRIEF)[0]


def blocks(folder: Path) -> list[torch.Tensor]:
    model = transformers.AutoModel.from_pretrained(folder)
    return [layer.output.dense.weight for layer in model.encoder.layer]


@pytest.mark.parametrize(("drop", "kept"), [("top:1", [1, 2, 3]), ("bottom:3", [4])])
def test_the_rest_is_fine_tuned_and_the_record_says_what_went(
    base: Path, tmp_path: Path, drop: str, kept: list[int]
) -> None:
    made = prune(base, classification(), drop=drop, out=tmp_path, options=replace(BRIEF, seeds=2, max_steps=2))
    stored = blocks(base)
    for k, weight in zip(kept, blocks(tmp_path / "base"), strict=True):
        assert torch.equal(weight, stored[k - 1])
    embeddings = [
        transformers.AutoModel.from_pretrained(f).embeddings.word_embeddings.weight for f in (base, tmp_path / "base")
    ]
    assert torch.equal(*embeddings)
    assert [t.folder.name for t in made] == ["seed-0", "seed-1"]
    for one in made:
        pruned = Finetuned.load(one.folder).pruned
        assert pruned is not None
        assert (pruned["drop"], pruned["kept"], pruned["blocks"], pruned["source"]) == (drop, kept, 4, str(base))
        assert len(blocks(one.folder)) == len(kept)
        assert not torch.equal(blocks(one.folder)[0], stored[kept[0] - 1])
    heads = [transformers.AutoModelForSequenceClassification.from_pretrained(t.folder).classifier.weight for t in made]
    assert (heads[0] - heads[1]).abs().max() > 0.01  # each seed drew its own


def test_a_run_killed_in_training_resumes_and_ends_the_same(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        prune(base, classification(), drop="top:2", out=tmp_path, options=BRIEF, progress=killing("fine-tuning", 5))
    stamp, told = (tmp_path / "base" / "model.safetensors").stat().st_mtime_ns, Told()
    again = prune(base, classification(), drop="top:2", out=tmp_path, options=BRIEF, progress=told)[0]
    assert any("from step 4 of 6" in note for note in told.notes)
    assert (tmp_path / "base" / "model.safetensors").stat().st_mtime_ns == stamp, "the base was whole"
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert again.pruned == whole.pruned


def test_a_run_killed_while_the_base_is_written_resumes(
    base: Path, whole: Finetuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(folder: RunFolder) -> str:
        assert (folder.part("checkpoint") / "model.safetensors").is_file()
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(prune_study, "put_in_place", end)
        with pytest.raises(KilledError):
            prune(base, classification(), drop="top:2", out=tmp_path, options=BRIEF)
    assert not (tmp_path / "base" / "prune.json").exists()
    again = prune(base, classification(), drop="top:2", out=tmp_path, options=BRIEF)[0]
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert not (tmp_path / "base" / "parts").exists()


def test_a_finished_run_is_kept(base: Path, whole: Finetuned) -> None:
    out, told = whole.folder.parent, Told()
    before = (whole.folder / "finetune.json").read_bytes()
    again = prune(base, classification(), drop=" top:2", out=out, options=BRIEF, progress=told)[0]
    assert plain(again) == plain(whole)
    assert any("nothing to do" in note for note in told.notes)
    assert (whole.folder / "finetune.json").read_bytes() == before


def test_a_damaged_base_is_made_again(base: Path, tmp_path: Path) -> None:
    brief = replace(BRIEF, max_steps=2)
    first = prune(base, classification(), drop="top:2", out=tmp_path, options=brief)[0]
    good = (tmp_path / "base" / "model.safetensors").read_bytes()
    (tmp_path / "base" / "model.safetensors").write_bytes(good[:-8])
    again = prune(base, classification(), drop="top:2", out=tmp_path, options=brief)[0]
    assert plain(again) == plain(first)
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == good


def test_a_head_for_the_task_goes_along(tmp_path: Path) -> None:
    tuned = tiny.checkpoint("roberta", tmp_path / "tuned", head="classification", layers=4)
    found = prune(tuned, classification(), drop="top:2", out=tmp_path / "out", options=replace(BRIEF, max_steps=2))[0]
    assert found.head == "kept"


def test_a_bare_base_of_a_family_whose_heads_have_no_pooler_is_pruned(tmp_path: Path) -> None:
    bare = tiny.checkpoint("roberta", tmp_path / "bare", layers=4)
    found = prune(bare, classification(), drop="top:2", out=tmp_path / "out", options=replace(BRIEF, max_steps=2))[0]
    assert found.head == "fresh"


def test_a_random_base_stays_the_one_asked_for(base: Path, tmp_path: Path) -> None:
    spec = ModelSpec(str(base), random_init=True, seed=3)
    found = prune(spec, classification(), drop="top:2", out=tmp_path, options=replace(BRIEF, max_steps=2))[0]
    assert found.pruned is not None
    assert found.pruned["fingerprint"].startswith("random-init seed 3")
    assert not torch.equal(blocks(tmp_path / "base")[0], blocks(base)[0])


def test_bad_input_is_one_sentence(base: Path, whole: Finetuned, tmp_path: Path) -> None:
    task, out = classification(), tmp_path / "out"
    with pytest.raises(StratoscopeError, match="cannot drop 5 blocks of a model that has 4"):
        prune(base, task, drop="top:5", out=out)
    with pytest.raises(StratoscopeError, match="dropping all 4 blocks of 'deep' leaves nothing to fine-tune"):
        prune(base, task, drop="bottom:4", out=out)
    with pytest.raises(StratoscopeError, match="written top:k or bottom:k"):
        prune(base, task, drop="middle", out=out)
    with pytest.raises(StratoscopeError, match="--lr above 0, got -1"):
        prune(base, task, drop="top:1", out=out, options=FinetuneOptions(lr=-1))
    assert not out.exists()
    with pytest.raises(StratoscopeError, match="--out, got an empty name"):
        prune(base, task, drop="top:1", out=" ")
    with pytest.raises(StratoscopeError, match=r"holds another result: drop \(top:2, now top:1\)"):
        prune(base, task, drop="top:1", out=whole.folder.parent, options=BRIEF)


def test_a_base_folder_of_the_user_is_not_written_to(base: Path, tmp_path: Path) -> None:
    mine = tmp_path / "base"
    mine.mkdir()
    (mine / "model.safetensors").write_text("mine")
    with pytest.raises(StratoscopeError, match=r"base .*no run of stratoscope made"):
        prune(base, classification(), drop="top:1", out=tmp_path, options=replace(BRIEF, overwrite=True))
    assert (mine / "model.safetensors").read_text() == "mine"


def test_another_drop_takes_its_place_when_asked(base: Path, tmp_path: Path) -> None:
    brief = replace(BRIEF, max_steps=2)
    prune(base, classification(), drop="top:2", out=tmp_path, options=brief)
    found = prune(base, classification(), drop="top:1", out=tmp_path, options=replace(brief, overwrite=True))[0]
    assert found.pruned is not None
    assert found.pruned["kept"] == [1, 2, 3]
    assert json.loads((tmp_path / "base" / "config.json").read_text())["num_hidden_layers"] == 3
