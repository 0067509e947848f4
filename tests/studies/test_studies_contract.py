"""What every analysis promises of its folder, for all of them alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import KilledError, Reads, Told, classification, distinct, killing, plain

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.data.tasks.data import TaskData
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.kinds import kind_in
from stratoscope.studies.align.inject import inject
from stratoscope.studies.align.options import AlignOptions, InjectOptions, RecoveryOptions
from stratoscope.studies.align.recovery import recovery
from stratoscope.studies.align.study import align
from stratoscope.studies.attention import plan as attention_plan
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.attention.study import attention
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.study import compare
from stratoscope.studies.cut import files as cut_files
from stratoscope.studies.cut.study import CutOptions, cut
from stratoscope.studies.decoder.options import CutDecoderOptions
from stratoscope.studies.decoder.study import cut_decoder
from stratoscope.studies.depth import judge
from stratoscope.studies.depth.study import DepthOptions, depth
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetune.study import finetune
from stratoscope.studies.finetuned.study import StudyOptions, study_finetuned
from stratoscope.studies.perplexity import study as perplexity_study
from stratoscope.studies.perplexity.options import PerplexityOptions
from stratoscope.studies.perplexity.study import perplexity
from stratoscope.studies.prune import prune

BRIEF: dict[str, Any] = {"recipe": "wu2020", "lr": 1e-3, "max_steps": 6, "batch": 8, "checkpoint_steps": 2}
TEXTS = Corpus("texts", tuple(map(Sentence, tiny.SENTENCES)), tuple(range(len(tiny.SENTENCES))))


@dataclass(frozen=True)
class Case:
    """One analysis, small."""

    call: Callable[..., Any]
    """From the folder, options and progress to the result."""
    options: Any
    other: dict[str, Any]
    """Options that ask for something else."""
    says: dict[str, Any]
    """What `run.yaml` says besides the version."""
    late: tuple[str, int]
    """A step near the end, by how its label begins, and how far into it the run is killed."""
    inside: str = ""
    """Folder of the result inside the run's."""
    alone: bool = False
    """Writes files of many names, so it wants a folder of its own."""
    varies: tuple[str, ...] = ()
    """Fields that differ from run to run: times, and paths below the folder."""

    def run(self, out: Path, progress: Told | None = None, **changes: Any) -> Any:
        return self.call(out, replace(self.options, **changes), progress or Told())


def first(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, options, progress: call(out, options, progress)[0]


@dataclass(frozen=True)
class Material:
    """Models and tasks that the cases share."""

    checkpoints: Path
    text: str
    calm: Path
    tuned: Path
    lazy: Path
    lazy_task: TaskData
    decoder: Path


def compared(m: Material) -> Case:
    models = [m.checkpoints / "base", m.checkpoints / "tuned"]
    options = CompareOptions(unit="mean", measures=("ckasim", "svsim"), bootstrap=20)
    return Case(
        lambda out, options, progress: compare(models, data=m.text, out=out, options=options, progress=progress),
        options,
        {"seed": 7},
        {"command": "compare", "models": list(map(str, models)), "data": m.text, "unit": "mean",
         "measures": ["ckasim", "svsim"], "bootstrap": 20},
        ("bootstrap", 15),
    )  # fmt: skip


def attended(m: Material) -> Case:
    models = [m.checkpoints / "base", m.checkpoints / "other"]
    return Case(
        lambda out, options, progress: attention(models, data=m.text, out=out, options=options, progress=progress),
        AttentionOptions(measures=("all",), bootstrap=20),
        {"seed": 7},
        {"command": "attention", "models": list(map(str, models)), "data": m.text, "measures": ["all"],
         "bootstrap": 20},
        ("comparing", 3),
    )  # fmt: skip


def aligned(m: Material) -> Case:
    models, data = [m.checkpoints / "base", m.checkpoints / "tuned"], m.checkpoints / "many.txt"
    data.write_text("\n".join(f"{a[:-1]} {b}" for a in tiny.SENTENCES for b in tiny.SENTENCES), encoding="utf-8")
    return Case(
        lambda out, options, progress: align(*models, data=data, out=out, options=options, progress=progress),
        AlignOptions(method=("ridge",), train=60, test=30, workers=1),
        {"seed": 7},
        {"command": "align", "models": list(map(str, models)), "data": str(data), "method": ["ridge"], "train": 60,
         "test": 30, "workers": 1},
        ("nuclear norms", 5),
    )  # fmt: skip


def injected(m: Material) -> Case:
    task = replace(classification(), source={"task": "toy", "data": "rows.jsonl", "validation": None})
    return Case(
        lambda out, options, progress: inject(m.tuned, m.tuned, task, out=out, options=options, progress=progress),
        InjectOptions(method=("ridge", "procrustes"), length=16),
        {"seed": 7},
        {"command": "inject", "first": str(m.tuned), "second": str(m.tuned), "task": "toy", "data": "rows.jsonl",
         "method": ["ridge", "procrustes"], "length": 16},
        ("injecting", 2),
    )  # fmt: skip


def recovered(m: Material) -> Case:
    return Case(
        lambda out, options, progress: recovery(out=out, options=options, progress=progress),
        RecoveryOptions(dim=(3, 4), method=("ridge",), train=60, test=30, workers=1),
        {"seed": 7},
        {"command": "study recovery", "dim": [3, 4], "method": ["ridge"], "train": 60, "test": 30, "workers": 1},
        ("recovering", 1),
    )


def deep(m: Material) -> Case:
    task = replace(classification(), source={"task": "toy", "data": "rows.jsonl", "validation": None})
    return Case(
        lambda out, options, progress: depth(
            m.tuned, task, base=m.calm, out=out, options=options, progress=progress
        ),
        DepthOptions(length=16),
        {"seed": 7},
        {"command": "depth", "tuned": str(m.tuned), "base": str(m.calm), "task": "toy", "data": "rows.jsonl",
         "length": 16},
        ("skipping", 9),
    )  # fmt: skip


def smaller(m: Material) -> Case:
    return Case(
        lambda out, options, progress: cut(
            m.lazy, m.lazy_task, budget=0.05, out=out, options=options, progress=progress
        ),
        CutOptions(confidence=0.9),
        {"confidence": 0.8},
        {"command": "cut", "tuned": str(m.lazy), "budget": 0.05, "confidence": 0.9},
        ("", 0),  # see `late_in_cut`
        alone=True,
        varies=("latency",),
    )  # fmt: skip


def trained(m: Material) -> Case:
    return Case(
        first(lambda out, options, progress: finetune(
            m.calm, classification(), out=out, options=options, progress=progress
        )),
        FinetuneOptions(**BRIEF, freeze="bottom:1"),
        {"freeze": "bottom:2"},
        {"command": "finetune", "base": str(m.calm), "lr": 1e-3, "batch": 8, "max_steps": 6,
         "freeze": "bottom:1"},
        ("scoring", 1),
        inside="seed-0",
        alone=True,
        varies=("seconds",),
    )  # fmt: skip


def pruned(m: Material) -> Case:
    return Case(
        first(lambda out, options, progress: prune(
            m.calm, classification(), drop="top:1", out=out, options=options, progress=progress
        )),
        TrainingOptions(**BRIEF),
        {"lr": 2e-3},
        {"command": "prune", "base": str(m.calm), "drop": "top:1", "lr": 1e-3, "batch": 8, "max_steps": 6},
        ("scoring", 1),
        inside="seed-0",
        alone=True,
        varies=("seconds", "base"),
    )  # fmt: skip


def surprised(m: Material) -> Case:
    return Case(
        lambda out, options, progress: perplexity(m.decoder, m.text, out=out, options=options, progress=progress),
        PerplexityOptions(length=40),
        {"length": 20},
        {"command": "perplexity", "model": str(m.decoder), "data": m.text, "length": 40},
        ("perplexity", 8),
    )


def shortened(m: Material) -> Case:
    return Case(
        lambda out, options, progress: cut_decoder(
            m.decoder, m.text, max_ppl=1000, out=out, options=options, progress=progress
        ),
        CutDecoderOptions(length=40),
        {"length": 20},
        {"command": "cut", "tuned": str(m.decoder), "max_ppl": "1000x", "data": m.text, "length": 40},
        ("confirming", 4),
        alone=True,
        varies=("latency",),
    )


def studied(m: Material) -> Case:
    task = distinct(16, 16)
    return Case(
        lambda out, options, progress: study_finetuned(
            m.calm, [m.tuned], task, out=out, options=options, progress=progress
        ),
        StudyOptions(units=("cls", "mean"), bootstrap=20, localization=True),
        {"bootstrap": 21},
        {"command": "study finetuned", "base": str(m.calm), "tuned": [str(m.tuned)], "bootstrap": 20,
         "localization": True},
        ("skipping", 9),
    )  # fmt: skip


CASES = {
    f.__name__: f
    for f in (
        compared,
        attended,
        aligned,
        injected,
        recovered,
        deep,
        smaller,
        trained,
        pruned,
        surprised,
        shortened,
        studied,
    )
}


@pytest.fixture(scope="module")
def material(
    checkpoints: Path,
    text: str,
    calm: Path,
    tuned: Path,
    lazy: Path,
    lazy_task: TaskData,
    tmp_path_factory: pytest.TempPathFactory,
) -> Material:
    decoder = tiny.checkpoint("gpt2", tmp_path_factory.mktemp("decoder") / "model", head="causal")
    return Material(checkpoints, text, calm, tuned, lazy, lazy_task, decoder)


@pytest.fixture(scope="module", autouse=True)
def short_parts() -> Any:
    """Parts of few texts, so that a run killed in the middle has some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_plan, "SHARD_WORK", 2e4)
        patch.setattr(judge, "SPAN_ROWS", 8)
        patch.setattr(perplexity_study, "TEXTS", 4)
        yield


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, material: Material) -> Case:
    return CASES[request.param](material)


@pytest.fixture(scope="module")
def done(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The run undisturbed: its folder and its result."""
    out = tmp_path_factory.mktemp("done") / "run"
    return out, case.run(out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def lasting(case: Case, folder: Path) -> dict[str, Any]:
    """What two runs of one request leave alike: every file, of a record that has times in it all but those."""
    found: dict[str, Any] = files(folder)
    kind = kind_in(folder)
    assert kind is not None
    if case.varies:
        del found[kind.file], found["run.yaml"]
        found.pop("README.md", None)
        record = json.loads((folder / kind.file).read_text())
        found["record"] = {k: v for k, v in record.items() if k not in (*case.varies, "sha256")}
    return found


def late(case: Case, patch: pytest.MonkeyPatch) -> Told:
    """Progress that ends the run near its end; a cut is ended when its checkpoint is written but not verified."""
    if not case.late[0]:
        patch.setattr(cut_files, "check_reload", lambda *given, **how: (_ for _ in ()).throw(KilledError))
        return Told()
    return killing(*case.late)


def test_a_run_killed_late_resumes_without_redoing_its_parts_and_ends_the_same(
    case: Case, done: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / case.inside
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        case.run(tmp_path / "run", late(case, patch))
    assert kind_in(folder) is None
    kept = {str(p.relative_to(folder / "parts")) for p in (folder / "parts").rglob("*") if p.is_file()}
    assert kept
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    told = Told()
    case.run(tmp_path / "run", told)
    assert not kept & set(saved)
    if case.inside:
        assert any("from step 4 of 6" in note for note in told.notes)
    assert lasting(case, folder) == lasting(case, done[0] / case.inside)
    assert not (folder / "parts").exists()


def test_a_finished_run_is_recognised(case: Case, done: tuple[Path, Any], reads: Reads) -> None:
    before, told = files(done[0]), Told()
    again = case.run(done[0], told)
    assert plain(again) == plain(done[1])
    assert files(done[0]) == before
    assert not len(reads)
    assert any(str(done[0] / case.inside) in note and "nothing to do" in note for note in told.notes)


def test_another_request_is_refused_with_what_differs_and_granted_when_asked(
    case: Case, done: tuple[Path, Any], reads: Reads, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(done[0], copy)
    (copy / case.inside / "notes.txt").write_text("mine")
    (copy / case.inside / "mine").mkdir()
    (copy / case.inside / "mine" / "result.json").write_text("mine")
    before = files(copy)
    with pytest.raises(StratoscopeError) as refusal:
        case.run(copy, **case.other)
    ((option, now),) = case.other.items()
    assert f"{option} ({getattr(case.options, option)}, now {now})" in str(refusal.value)
    assert "--overwrite" in str(refusal.value)
    assert files(copy) == before
    assert not len(reads)
    made = case.run(copy, **case.other, overwrite=True)
    assert plain(type(made).load(copy / case.inside)) == plain(made) != plain(done[1])
    assert (copy / case.inside / "notes.txt").read_text() == "mine"
    assert (copy / case.inside / "mine" / "result.json").read_text() == "mine"


def test_files_of_the_user_survive_or_are_never_met(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "run" / case.inside
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("mine")
    if case.alone:
        with pytest.raises(StratoscopeError, match="no run of stratoscope made"):
            case.run(tmp_path / "run")
    else:
        with pytest.raises(KilledError):
            case.run(tmp_path / "run", killing("", 1))
    assert (folder / "config.json").read_text() == "mine"


def test_the_folder_says_how_to_repeat_the_run(case: Case, done: tuple[Path, Any]) -> None:
    said = yaml.safe_load((done[0] / case.inside / "run.yaml").read_text())
    assert said.pop("stratoscope")
    assert said == case.says


def test_the_result_is_whole_in_the_folder(case: Case, done: tuple[Path, Any]) -> None:
    folder, result = done[0] / case.inside, done[1]
    loaded = type(result).load(folder)
    assert plain(loaded) == plain(result)
    assert isinstance(result.statements, tuple)
    assert isinstance(result.warnings, tuple)
    assert {"request", "digest", "code", "versions"} <= set(result.provenance)
    assert not [p for p in folder.rglob("*") if p.name.endswith(".tmp") or p.name == "parts"]
