"""Two models to the answer: with a task, with text alone, with decoders, the same model twice, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from toys import KilledError, classification, killing, plain

import stratoscope as ss
import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Value
from stratoscope.report.sections.diff import droppable, sections
from stratoscope.report.write import write_report

QUICK = {"bootstrap": 20, "limit": 30}


def test_a_task_is_judged_and_flips_are_those_of_the_heads(calm: Path, tuned: Path, tmp_path: Path) -> None:
    task = classification(40, seed=1)
    found = ss.diff(calm, tuned, data=task, out=tmp_path, draw=write_report, **QUICK)
    depth = found.study.depth
    assert depth is not None
    assert found.weights is not None
    assert depth.predicted is not None
    score = np.mean(depth.predicted[-1] == task.targets("validation"))
    assert score == pytest.approx(depth.full.value), "the last row is the whole model"
    tuned_curve = depth.curve("tuned").values
    np.testing.assert_allclose([np.mean(p == task.targets("validation")) for p in depth.predicted[:-1]], tuned_curve)
    for e in found.examples:
        *cut, whole = depth.predicted[:, e.row]
        assert e.flips == tuple(k for k, p in enumerate(cut) if p != whole)
        assert task.labels is not None
        assert e.predicted == task.labels[int(whole)]
        assert e.text.startswith(task.validation[e.row].texts[0][0][:50])
    drift = 1 - found.study["cls"]["ckasim"].between(*[m.name for m in found.study.models[:2]]).values.diagonal()
    assert found.layer == int(np.nanargmax(drift))
    assert [e.moved for e in found.examples] == sorted((e.moved for e in found.examples), reverse=True)
    table = pd.read_csv(tmp_path / "examples.csv")
    assert table["Row"].tolist() == [e.row for e in found.examples]
    shown = sections(found)
    assert shown.lines[0].endswith(f"(30 rows; heads tuned on {len(task.train)} others)")
    [droppable] = [line for line in shown.lines if line.startswith("droppable")]
    assert "none of" in droppable, "40 rows are too few to be sure, whatever the resamples say"
    assert "takes 299 rows" in droppable
    assert f"without block {tiny.LAYERS} " in droppable


def test_without_examples_no_text_is_in_the_folder(checkpoints: Path, text: str, tmp_path: Path) -> None:
    models = checkpoints / "base", checkpoints / "tuned"
    kept = ss.diff(*models, data=text, out=tmp_path / "a", draw=write_report, **QUICK)
    assert kept.examples
    ss.diff(*models, data=text, out=tmp_path / "b", examples=False, draw=write_report, **QUICK)
    words = {s for s in tiny.SENTENCES if len(s) > 10}

    def holding(folder: Path) -> set[str]:
        files = [p for p in folder.rglob("*") if p.suffix in (".html", ".csv", ".json", ".yaml", ".md")]
        return {p.name for p in files if any(w in p.read_text(encoding="utf-8") for w in words)}

    assert {"examples.csv", "diff.json", "report.html"} <= holding(tmp_path / "a")
    assert holding(tmp_path / "b") == set()
    assert not (tmp_path / "b/examples.csv").exists()


def test_text_alone_says_why_nothing_is_judged(checkpoints: Path, text: str) -> None:
    rows = pd.DataFrame({"text": [f"{s} {k}" for k in range(4) for s in tiny.SENTENCES]})
    rows["label"] = ["a", "b"] * (len(rows) // 2)
    models = checkpoints / "base", checkpoints / "tuned"
    for data, reason in ((text, "no labels"), (list(tiny.SENTENCES), "no labels"), (rows, "no task head")):
        found = ss.diff(*models, data=data, **QUICK)
        assert reason in found.unjudged
        assert found.study.depth is None
        assert any(reason in line for line in sections(found).lines)


def test_the_same_model_twice_is_unchanged_and_not_judged_as_tuned(checkpoints: Path, text: str) -> None:
    base = checkpoints / "base"
    found = ss.diff(base, base, data=text, **QUICK)
    assert any("practically unchanged" in line for line in sections(found).lines)
    assert not found.statements
    assert max(abs(e.moved) for e in found.examples) < 1e-9
    compared = ss.compare([base, base], data=text, unit="mean")
    assert not [s for s in compared.statements if "tuned" in s.about]


def test_other_architectures_are_refused(checkpoints: Path, text: str) -> None:
    with pytest.raises(StratoscopeError, match=r"different architectures.*compare"):
        ss.diff(checkpoints / "base", checkpoints / "other", data=text)


def test_decoders_are_judged_by_perplexity(tmp_path: Path) -> None:
    folders = [tiny.checkpoint("gpt2", tmp_path / f"m{k}", head="causal", seed=k) for k in range(2)]
    texts = list(tiny.SENTENCES)
    found = ss.diff(*folders, data=texts, **QUICK)
    assert found.language is not None
    assert found.unjudged == ""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[1]).eval()
    sums, tokens = [], []
    for t in texts:
        ids = tokenizer(t, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = float(model(input_ids=ids, labels=ids).loss)
        sums.append(loss * (ids.shape[1] - 1))
        tokens.append(ids.shape[1] - 1)
    assert found.language.after.value == pytest.approx(math.exp(sum(sums) / sum(tokens)), rel=1e-4)
    for e in found.examples:
        assert e.loss_after == pytest.approx(sums[e.row] / tokens[e.row], rel=1e-4)
    assert {(s.first, s.last) for s in found.language.spans} >= {(1, 1), (1, 2), (1, tiny.LAYERS)}
    free = replace(found.language, spans=tuple(replace(s, ratio=Value(0.9)) for s in found.language.spans))
    assert droppable(replace(found, language=free)) == tiny.LAYERS - 1, "a block stays"
    whole = ss.perplexity(folders[1], texts)
    one, other = ({(s.first, s.last): s.ratio.value for s in spans} for spans in (found.language.spans, whole.spans))
    assert one == pytest.approx(other, rel=1e-4)


def test_a_killed_diff_resumes_to_the_same_result(checkpoints: Path, text: str, tmp_path: Path) -> None:
    models = checkpoints / "base", checkpoints / "tuned"
    once = ss.diff(*models, data=text, out=tmp_path / "once", **QUICK)
    with pytest.raises(KilledError):
        ss.diff(*models, data=text, out=tmp_path / "twice", progress=killing("bootstrap", 10), **QUICK)
    again = ss.diff(*models, data=text, out=tmp_path / "twice", **QUICK)
    assert plain(again) == plain(once)


def test_models_in_memory_and_rows_in_memory(checkpoints: Path) -> None:
    base = checkpoints / "base"
    pair = (transformers.AutoModel.from_pretrained(base), transformers.AutoTokenizer.from_pretrained(base))
    compared = ss.compare([pair, str(checkpoints / "tuned")], data=list(tiny.SENTENCES), unit="mean")
    assert len(compared.models) == 2
    rows = pd.DataFrame({"text": [f"{s} {k}" for k in range(3) for s in tiny.SENTENCES]})
    rows["label"] = ["a", "b"] * (len(rows) // 2)
    task = ss.read_task(rows)
    assert task.labels == ("a", "b")
    assert len(task.train) + len(task.validation) == len(rows)
