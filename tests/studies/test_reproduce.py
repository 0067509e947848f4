"""Protocols of papers: all of them are sound, and those that can run do so on tiny models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toys import verdicts

import stratoscope as ss
import tiny
from stratoscope.aligners import training
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.statement import VERDICTS
from stratoscope.probes.objective import Penalties
from stratoscope.report.outline import sections_of
from stratoscope.report.write import write_report
from stratoscope.results.reproduction import Reproduction
from stratoscope.studies.reproduce.cost import FORWARD, TOKENS_PER_WORD, _text, estimate, shown
from stratoscope.studies.reproduce.jobs import jobs_of
from stratoscope.studies.reproduce.options import ReproduceOptions
from stratoscope.studies.reproduce.protocol import ANALYSES, parse_protocol, protocols, read_protocol

ALL = [f"{paper} {item}" for paper, item in protocols()]
SMALL = ("limit=10", "bootstrap=20", "max_steps=2", "warmup=0", "length=24", "freeze=top:1,bottom:1",
         "drop=top:1,bottom:1", "property=size", "workers=1")  # fmt: skip
"""What makes a protocol run in seconds on a tiny model."""
FEW = ("train=40", "test=20", "layers=1,2", "dim=4")
"""The same for maps; other protocols keep all of their layers."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Labelled rows: short sentences whose last word gives the class away."""
    path = tmp_path_factory.mktemp("rows") / "toy.jsonl"
    lines = [json.dumps({"text": e.texts[0][0], "label": ["bad", "good"][int(e.label)]}) for e in verdicts(40, 0)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts enough to fit maps on: every two of the short sentences."""
    path = tmp_path_factory.mktemp("many") / "many.txt"
    path.write_text("".join(f"{a} {b}\n" for a in tiny.SENTENCES for b in tiny.SENTENCES if a != b))
    return str(path)


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint("bert", tmp_path_factory.mktemp("third") / "third", seed=3)


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """Probes on a grid of four pairs instead of 64."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Penalties.grid.__func__, "__defaults__", ((0.0, 1e-3),))  # type: ignore[attr-defined]
    yield
    patch.undo()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Words tagged by their length."""
    path = tmp_path_factory.mktemp("words") / "words.jsonl"
    lines = [s.lower().split() for s in tiny.SENTENCES if len(s.split()) > 2] * 3
    rows = [{"words": line, "size": ["long" if len(w) > 3 else "short" for w in line]} for line in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def small(item: str) -> tuple[str, ...]:
    """Those of `SMALL` that the protocol has an option for."""
    protocol = read_protocol(*item.split())
    known = {f for a in protocol.analyses() for f in a.options_class().__dataclass_fields__} - {"freeze"}
    known |= set(protocol.vary)
    return tuple(word for word in SMALL + FEW * (protocol.paper == "ren2023") if word.partition("=")[0] in known)


@pytest.mark.parametrize("item", ALL)
def test_every_protocol_runs_on_tiny_models(
    item: str,
    checkpoints: Path,
    text: str,
    rows: str,
    words: str,
    many: str,
    third: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brief = partial(training.Schedule, steps=3)
    monkeypatch.setattr(training, "Schedule", brief)
    monkeypatch.setattr(training, "NARROW_SCHEDULE", brief())
    paper, name = item.split()
    protocol = read_protocol(paper, name)
    on = {a.on for a in protocol.analyses()}
    models = [str(checkpoints / m) for m in ("base", "other")]
    if any(a.function == "align" for a in protocol.analyses()):  # boxes are over pairs, bijections of one width
        models, text = [*models[:1], str(checkpoints / "tuned"), str(third)], many
    elif any(a.on == "rows" for a in protocol.analyses()):
        text = many
    given: dict[str, Any] = {
        "models": models,
        "rows": rows if protocol.tasks else None,
        "data": words if "tags" in on else text if on != {"task"} else None,
    }
    result = ss.reproduce(paper, name, out=tmp_path / "out", set=small(item), **given)
    folders = [tmp_path / "out" / d.folder for d in result.done]
    assert len(folders) == len(set(folders)) >= len(protocol.steps)
    for folder in folders:
        assert ss.load(folder)
    judged = {s.id.partition(":")[0] for s in result.statements}
    assert judged <= set(protocol.claims)
    assert {s.verdict for s in result.statements} <= set(VERDICTS)
    page = sections_of(result)
    pictures = {p.id for p in page.pictures} | {t.id for s in page.sections for t in s.tables}
    for wanted in protocol.pictures:
        assert any(p.endswith(wanted) for p in pictures), "what the protocol names is on the page"
    assert isinstance(ss.load(tmp_path / "out"), Reproduction)


def test_every_figure_and_table_has_a_protocol() -> None:
    found = {paper: [i for p, i in protocols() if p == paper] for paper, _ in protocols()}
    assert found["wu2020"] == [*(f"fig{k}" for k in range(1, 11)), "table1"]
    assert found["phang2021"] == [f"fig{k}" for k in range(1, 8)]
    assert found["ren2023"] == [*(f"fig{k}" for k in range(2, 9)), *(f"table{k}" for k in range(2, 6))]
    assert found["durrani2021"] == [*(f"fig{k}" for k in range(1, 5)), *(f"table{k}" for k in (1, 2, 4, 5, 6, 7, 8))]


def test_a_protocol_runs_its_models_measures_and_claims(
    checkpoints: Path, text: str, rows: str, tmp_path: Path
) -> None:
    """Fig. 5: every base is tuned on every task, then compared with what was made of it."""
    out = tmp_path / "out"
    options = {"models": [str(checkpoints / "base")], "data": text, "rows": rows, "set": [*SMALL[:5], "seeds=2"]}
    result = ss.reproduce("wu2020", "fig5", out=out, draw=write_report, **options)
    assert [d.folder for d in result.done] == ["tune/base/toy/seed-0", "tune/base/toy/seed-1", "compare/base"]
    assert [d.metric for d in result.done] == ["accuracy", "accuracy", ""]
    comparison = ss.load(out / "compare" / "base")
    assert [m.source for m in comparison.models] == [
        str(checkpoints / "base"), str(out / "tune/base/toy/seed-0"), str(out / "tune/base/toy/seed-1")
    ]  # fmt: skip
    assert list(comparison) == ["ckasim"]
    assert {s.about["analysis"] for s in result.statements} == {"compare/base"}
    assert {s.about["tuned"] for s in result.statements if s.about["base"] == "base"} == {"seed-0", "seed-1"}
    assert (out / "report.html").is_file()
    assert (out / "compare/base/report.html").is_file()
    assert yaml.safe_load((out / "run.yaml").read_text())["command"] == "reproduce"
    before = (out / "tune/base/toy/seed-0/finetune.json").stat().st_mtime_ns
    ss.reproduce("wu2020", "fig5", out=out, **options)
    assert (out / "tune/base/toy/seed-0/finetune.json").stat().st_mtime_ns == before, "what is finished is kept"


def test_models_that_a_step_would_make_can_be_given(checkpoints: Path, text: str, tmp_path: Path) -> None:
    """Fine-tuned models of the user's own: nothing is trained."""
    models = [str(checkpoints / "base"), f"tune={checkpoints / 'tuned'}"]
    result = ss.reproduce("wu2020", "fig5", out=tmp_path / "o", models=models, data=text, set=["bootstrap=0"])
    assert [d.folder for d in result.done] == ["compare/base"]
    assert [m.name for m in ss.load(tmp_path / "o/compare/base").models] == ["base", "tuned"]


def test_frozen_runs_are_judged_against_each_other(checkpoints: Path, rows: str, tmp_path: Path) -> None:
    given = {"models": [str(checkpoints / "base")], "data": rows}
    result = ss.reproduce("wu2020", "table1", out=tmp_path, set=["max_steps=1", "freeze=null,top:1,bottom:1"], **given)
    assert [d.folder for d in result.done] == [f"tune/base/toy/{how}/seed-0" for how in ("none", "top-1", "bottom-1")]
    assert [ss.load(tmp_path / d.folder).freeze for d in result.done] == [None, "top:1", "bottom:1"]
    (claim,) = result.statements
    assert claim.id == "wu2020-freezing-bottom-cheaper:base:toy:top%3A1"
    scores = {d.folder.split("/")[3]: d.score.value for d in result.done}
    assert claim.value.value == pytest.approx(scores["bottom-1"] - scores["top-1"])


def test_random_models_and_restarts_are_part_of_what_runs(tmp_path: Path) -> None:
    jobs = jobs_of(read_protocol("wu2020", "fig2"), ReproduceOptions(models=("a", "b"), data="t"), tmp_path)
    assert [(m.source, m.random) for m in jobs[0].models] == [("a", False), ("b", False), ("a", True), ("b", True)]
    jobs = jobs_of(read_protocol("phang2021", "fig6"), ReproduceOptions(models=("a",), tasks=("rte",)), tmp_path)
    assert [m.source for m in jobs[1].models] == ["a", *(str(tmp_path / f"tune/a/rte/seed-{k}") for k in (0, 1))]


def test_models_across_are_those_of_other_bases_on_the_same_task(tmp_path: Path) -> None:
    given = ReproduceOptions(models=("a", "b", "c"), tasks=("rte", "sst2"))
    jobs = {j.name: j for j in jobs_of(read_protocol("phang2021", "fig7"), given, tmp_path)}
    assert len(jobs) == 12
    job = jobs["study/b/sst2"]
    assert [m.source for m in job.models] == ["b", str(tmp_path / "tune/b/sst2/seed-0")]
    assert [m.source for m in job.across] == [str(tmp_path / f"tune/{m}/sst2/seed-0") for m in "ac"]


def test_the_papers_models_and_tasks_are_the_defaults(tmp_path: Path) -> None:
    jobs = jobs_of(read_protocol("wu2020", "table1"), ReproduceOptions(), tmp_path)
    assert len(jobs) == 2 * 4 * 5
    assert {j.models[0].source for j in jobs} == {"google-bert/bert-base-cased", "xlnet/xlnet-base-cased"}
    assert {j.options["freeze"] for j in jobs} == {None, "top:4", "bottom:4", "top:6", "bottom:6"}
    assert jobs[0].chosen().recipe == "wu2020"
    assert "stratoscope finetune google-bert/bert-base-cased --task sst2" in jobs[0].command(tmp_path)


@pytest.mark.parametrize("rate", ["5e-5", "5E-05", "0.00005", "5.0e-5"])
def test_options_are_set_as_their_flags_say_them(rate: str, tmp_path: Path) -> None:
    given = ReproduceOptions(models=("a",), tasks=("rte",), set=(f"lr={rate}", "max-steps=7"))
    job = jobs_of(read_protocol("wu2020", "table1"), given, tmp_path)[0]
    assert (job.chosen().lr, job.chosen().max_steps) == (5e-5, 7)


def test_a_sample_of_the_rows_is_that_of_every_step(tmp_path: Path) -> None:
    given = ReproduceOptions(models=("a",), tasks=("rte",), train_rows=40, validation_rows=30)
    jobs = jobs_of(read_protocol("durrani2021", "table2"), given, tmp_path)
    assert {j.name.split("/")[0] for j in jobs} == {"tune", "prune"}
    for job in jobs:
        assert job.task is not None
        assert (job.task.train_rows, job.task.validation_rows) == (40, 30)
        assert "--train-rows 40 --validation-rows 30" in job.command(tmp_path)


def test_a_known_bijection_needs_neither_models_nor_text(tmp_path: Path) -> None:
    few = ["dim=3,4", "train=60", "test=20", "method=ridge", "workers=1"]
    result = ss.reproduce("ren2023", "table3", out=tmp_path / "out", set=few)
    assert [d.folder for d in result.done] == ["recovery"]
    recovery = ss.load(tmp_path / "out/recovery")
    assert recovery.data["rows"] == "normal rows"
    assert {r.features for r in recovery.recovered} == {3, 4}
    assert "stratoscope study recovery --dim 3,4" in result.done[0].command
    with pytest.raises(StratoscopeError, match="give yours with --data"):
        jobs_of(read_protocol("ren2023", "table3"), ReproduceOptions(models=("a",)), tmp_path)
    (job,) = jobs_of(read_protocol("ren2023", "table3"), ReproduceOptions(models=("a",), data="t"), tmp_path)
    assert (job.name, [m.source for m in job.models], job.data) == ("recovery/a", ["a"], "t")


def test_states_are_injected_between_every_pair_and_tuned_models_aligned_beside_their_bases(tmp_path: Path) -> None:
    given = ReproduceOptions(models=("a", "b", "c"), tasks=("sst2",))
    tuned = [str(tmp_path / f"tune/{m}/sst2/seed-0") for m in "abc"]
    jobs = {j.name: j for j in jobs_of(read_protocol("ren2023", "table5"), given, tmp_path)}
    found = {name.removeprefix("inject/sst2/"): j for name, j in jobs.items() if j.step == "inject"}
    assert list(found) == ["1-2", "1-3", "2-3"]
    assert [m.source for m in found["2-3"].models] == tuned[1:]
    with pytest.raises(StratoscopeError, match="pairs of models, got 1"):
        jobs_of(read_protocol("ren2023", "table5"), ReproduceOptions(models=("a",), tasks=("sst2",)), tmp_path)
    *_, job, attention = jobs_of(read_protocol("ren2023", "fig5"), replace(given, data="t"), tmp_path)
    assert (job.chosen().unit, attention.chosen().unit) == ("mean", "attention")
    assert ([m.source for m in job.models], [m.source for m in job.before]) == (tuned, ["a", "b", "c"])
    assert "--before a --before b --before c --data t" in job.command(tmp_path)
    assert "--task" not in job.command(tmp_path)  # its models are of a task, its rows are not


def test_the_cost_of_maps_grows_with_pairs_and_networks(checkpoints: Path, text: str, tmp_path: Path) -> None:
    base = str(checkpoints / "base")

    def cost(item: str, models: Sequence[str], *set: str) -> float:
        given = ReproduceOptions(models=tuple(models), data=text, set=set, tasks=("sst2",))
        job = jobs_of(read_protocol("ren2023", item), given, tmp_path)[-1]
        flop, why = estimate(job, {})
        assert not why
        return flop

    def fitting(number: int, *set: str) -> float:
        one, several = (cost("fig2", [base] * k, "layer=1", *set) for k in (1, number))
        return several - number * one  # one model has no pair

    assert fitting(3) == pytest.approx(3 * fitting(2))
    assert fitting(3, "pairs=2") == pytest.approx(2 * fitting(2))
    assert fitting(2) > fitting(2, "method=ridge") > 0
    one, two, three = (cost("table3", [base], f"dim={','.join(['8'] * k)}") for k in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    tuned = [f"tune={base}"] * 2
    attention = [cost("fig5", [*tuned, *[f"base={base}"] * k]) for k in (1, 2, 3)]  # no pair before, one, three
    one, three = np.diff(attention)
    assert three == pytest.approx(2 * one, rel=0.01)  # a network's steps, beside which little is read
    assert cost("fig2", [base] * 2, "paper=true", "layer=1") != cost("fig2", [base] * 2, "layer=1")


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "item", "given", "words"),
    [
        ("wu2021", "fig1", {}, "unknown paper 'wu2021'; did you mean 'wu2020'"),
        ("wu2020", "fig11", {}, "unknown item of wu2020 'fig11'; did you mean 'fig1"),
        ("wu2020", "fig1", {}, "compares models on text .Penn Treebank.* give yours with --data"),
        ("wu2020", "fig1", {"data": "t", "models": ("bas=x",)}, "unknown role in fig1 of wu2020 'bas'"),
        ("wu2020", "fig1", {"data": "t", "set": ("limits=3",)}, "unknown option .* 'limits'; did you mean 'limit'"),
        ("wu2020", "fig1", {"data": "t", "set": ("limit=1,2",)}, "expected one value for limit, got '1,2'"),
        ("wu2020", "fig1", {"data": "t", "set": ("limit",)}, "expected --set OPTION=VALUE, got 'limit'"),
        ("wu2020", "fig5", {"data": "t", "models": ("a/x", "b/x")}, "two models would share the folder tune/x/mnli"),
        (
            "wu2020",
            "fig5",
            {"data": "t", "rows": "r.jsonl", "tasks": ("a", "b")},
            "expected one task for your own rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(paper: str, item: str, given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=words):
        ss.reproduce(paper, item, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_blocks_to_drop_are_looked_at_before_anything_is_trained(checkpoints: Path, rows: str, tmp_path: Path) -> None:
    models, blocks = (str(checkpoints / "base"),), tiny.LAYERS
    for drop, words in ((f"top:{blocks}", f"dropping all {blocks} blocks"), ("middle:1", "written top:k or bottom:k")):
        with pytest.raises(StratoscopeError, match=words):
            ss.reproduce("durrani2021", "table2", models=models, rows=rows, set=(f"drop=top:1,{drop}",), out=tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == [".lock"]


PLAIN = {
    "paper": "p", "item": "i", "title": "t", "data": "d", "models": {"base": ["x"]}, "pictures": [],
    "claims": ["wu2020-top-changes-more"], "steps": [{"name": "a", "run": "compare", "models": ["base"]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"titel": "t"}, "unknown key in p/i.yaml 'titel'; did you mean 'title'"),
        ({"item": "j"}, "says that it is j of p"),
        ({"claims": ["wu2020-top-changes"]}, "unknown claim in p/i.yaml 'wu2020-top-changes'"),
        ({"steps": [{"name": "a", "runs": "compare"}]}, "unknown key in a step of p/i.yaml 'runs'; did you mean 'run'"),
        ({"steps": [{"name": "a", "run": "compar"}]}, "unknown analysis in p/i.yaml 'compar'; did you mean 'compare'"),
        ({"steps": [{"name": "a", "run": "compare", "options": {"limits": 1}}]}, "unknown option 'limits'"),
        ({"steps": [{"name": "a", "run": "depth", "each": ["bass"]}]}, "unknown 'each' of p/i.yaml 'bass'"),
        ({"steps": [{"name": "a", "run": "compare", "models": ["b"]}]}, "unknown models of a step of p/i.yaml 'b'"),
    ],
)
def test_unknown_keys_of_a_protocol_are_errors(change: dict[str, Any], words: str) -> None:
    assert parse_protocol(PLAIN, "p/i.yaml").steps[0].run == "compare"
    with pytest.raises(StratoscopeError, match=words):
        parse_protocol({**PLAIN, **change}, "p/i.yaml")


def test_every_analysis_is_a_public_function() -> None:
    for analysis in ANALYSES.values():
        assert analysis.function in ss.__all__


# --- cost -----------------------------------------------------------------------------------------------------------


def test_the_cost_of_reading_grows_with_words_blocks_and_squared_width(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c d\n" * 50)
    given = {"data": str(tmp_path / "t.txt"), "set": ("bootstrap=0",)}

    def cost(*models: str, **more: Any) -> float:
        sources = tuple(str(checkpoints / m) for m in models)
        (job,) = jobs_of(
            read_protocol("wu2020", "fig1"), ReproduceOptions(models=sources, **{**given, **more}), tmp_path
        )
        found, why = estimate(job, {})
        assert not why
        return found

    reading = 200 * TOKENS_PER_WORD * FORWARD * tiny.LAYERS * tiny.HIDDEN**2
    assert cost("base") == pytest.approx(reading + 200 * (4 * 32) ** 2)
    assert cost("base", set=("bootstrap=0", "limit=5")) == pytest.approx(cost("base") / 10)
    assert cost("base", "other") > cost("base") + cost("other")


def test_the_cost_of_attention_grows_with_the_square_of_the_sentence_and_not_with_resamples(
    checkpoints: Path, tmp_path: Path
) -> None:
    def cost(text: str, *set: str) -> float:
        (tmp_path / "t.txt").write_text(text)
        _text.cache_clear()
        given = ReproduceOptions(models=(str(checkpoints / "base"),), data=str(tmp_path / "t.txt"), set=set)
        (job,) = jobs_of(read_protocol("wu2020", "fig4"), given, tmp_path)
        found, why = estimate(job, {})
        assert not why
        return found

    short = cost("a b c d\n" * 50)
    assert cost("a b c d\n" * 100) == pytest.approx(2 * short)
    assert cost("a b c d e f g h\n" * 50) > 2 * short
    assert cost("a b c d\n" * 50, "bootstrap=0") == short


def test_what_is_not_known_is_said(checkpoints: Path, rows: str, text: str, tmp_path: Path) -> None:
    given = ReproduceOptions(models=(str(checkpoints / "base"),), rows=rows, data=text, set=("max_steps=10",))
    shapes: dict[str, tuple[int, int]] = {}
    costs = [estimate(job, shapes) for job in jobs_of(read_protocol("wu2020", "fig5"), given, tmp_path)]
    assert all(flop > 0 and not why for flop, why in costs), "also of a model that is still to be made"
    missing = ReproduceOptions(models=(str(tmp_path / "none"),), data=text)
    (job,) = jobs_of(read_protocol("wu2020", "fig1"), missing, tmp_path)
    flop, why = estimate(job, {})
    assert math.isnan(flop)
    assert "no model at" in shown(flop, why)
    assert [shown(f, "").split(", ")[1] for f in (1e12, 6e13, 6e14)] == [
        "less than a minute of a core", "20 min of a core", "3 h of a core"
    ]  # fmt: skip
