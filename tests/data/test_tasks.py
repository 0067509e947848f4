"""Every published task from its folder, and users' own files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.read import FORMATS, TASKS, read_task, task_named

Row = dict[str, Any]


def tsv(columns: str, *values: str) -> str:
    """A header and one row per label; every other cell names its column and row."""
    names = columns.split("|")
    lines = ["\t".join(names)]
    for k, value in enumerate(values):
        cells = {n: f"{n} {k}" for n in names} | {names[-1] if "Quality" not in names else "Quality": value}
        lines.append("\t".join(cells[n] for n in names))
    return "\n".join(lines) + "\n"


def comma(rows: list[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


def jsonl(*rows: Row) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


MNLI = "index|promptID|genre|sentence1|sentence2|label1|gold_label"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score"
COSMOS = ["id", "context", "question", "answer0", "answer1", "answer2", "answer3", "label"]

Content = Callable[[str, str], str]


def boolq(*answers: str) -> str:
    rows = (
        {"question": f"question {k}", "passage": f"passage {k}", "answer": a == "true"} for k, a in enumerate(answers)
    )
    return jsonl(*rows)


def hellaswag(*labels: str) -> str:
    endings = [[f"e{i} {k}" for i in range(4)] for k in range(2)]
    return jsonl(*({"ctx_a": "x", "ctx": f"ctx {k}", "endings": endings[k], "label": int(labels[k])} for k in range(2)))


def cosmosqa(*labels: str) -> str:
    answers = [[f"a{i} {k}" for i in range(4)] for k in range(2)]
    return comma([COSMOS, *([k, f"context {k}", f"question {k}", *answers[k], labels[k]] for k in range(2))])


FOLDERS: dict[str, tuple[str, str, Content]] = {
    # The two files of each task as published, and their content for two rows with these labels.
    "cola": ("train.tsv", "dev.tsv", lambda a, b: f'gj04\t{a}\t*\t"sentence 0\ngj04\t{b}\t\tsentence 1\n'),
    "mnli": ("train.tsv", "dev_matched.tsv", lambda a, b: tsv(MNLI, a, b)),
    "mrpc": ("train.tsv", "dev.tsv", lambda a, b: "\ufeff" + tsv("Quality|#1 ID|#2 ID|#1 String|#2 String", a, b)),
    "qnli": ("train.tsv", "dev.tsv", lambda a, b: tsv("index|question|sentence|label", a, b)),
    "qqp": ("train.tsv", "dev.tsv", lambda a, b: tsv("id|qid1|qid2|question1|question2|is_duplicate", a, b)),
    "rte": ("train.tsv", "dev.tsv", lambda a, b: tsv("index|sentence1|sentence2|label", a, b)),
    "sst2": ("train.tsv", "dev.tsv", lambda a, b: tsv("sentence|label", a, b)),
    "stsb": ("train.tsv", "dev.tsv", lambda a, b: tsv(STSB, a, b)),
    "boolq": ("train.jsonl", "dev.jsonl", boolq),
    "yelp": ("train.csv", "test.csv", lambda a, b: comma([[a, 'text "0"'], [b, "text 1"]])),
    "hellaswag": ("hellaswag_train.jsonl", "hellaswag_val.jsonl", hellaswag),
    "cosmosqa": ("train.csv", "valid.csv", cosmosqa),
}

WRITTEN = {
    # How the published files write the labels of indices 0 and 1.
    "mnli": ("entailment", "neutral"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "stsb": ("0.500", "4.000"),
    "boolq": ("false", "true"),
    "yelp": ("1", "2"),
}

TEXTS = {
    # The texts of row 1 from those files.
    "cola": (("sentence 1", None),),
    "mnli": (("sentence1 1", "sentence2 1"),),
    "mrpc": (("#1 String 1", "#2 String 1"),),
    "qnli": (("question 1", "sentence 1"),),
    "qqp": (("question1 1", "question2 1"),),
    "rte": (("sentence1 1", "sentence2 1"),),
    "sst2": (("sentence 1", None),),
    "stsb": (("sentence1 1", "sentence2 1"),),
    "boolq": (("question 1", "passage 1"),),
    "yelp": (("text 1", None),),
    "hellaswag": tuple(("ctx 1", f"e{i} 1") for i in range(4)),
    "cosmosqa": tuple(("context 1 question 1", f"a{i} 1") for i in range(4)),
}


def write_folder(name: str, folder: Path) -> Path:
    """The published files of a task: labels 0 then 1 to train on, 1 then 0 to judge on."""
    a, b = WRITTEN.get(name, ("0", "1"))
    train, validation, content = FOLDERS[name]
    (folder / train).write_text(content(a, b), encoding="utf-8")
    (folder / validation).write_text(content(b, a), encoding="utf-8")
    return folder


def test_the_table_has_the_twelve_tasks() -> None:
    names = "cola mnli mrpc qnli qqp rte sst2 stsb boolq yelp hellaswag cosmosqa"
    assert " ".join(t.name for t in TASKS) == names
    for task in TASKS:
        metric = metric_named(task.metric)
        assert metric.regression == task.regression
        assert task.format in FORMATS
        assert (task.format == "choice") == bool(task.columns.choices)
        assert (task.format == "pair") == (task.columns.pair is not None)
        assert task.labels is None or metric.classes in (None, len(task.labels))
        assert "test" not in task.folder.train + task.folder.validation


@pytest.mark.parametrize("name", FOLDERS)
def test_every_task_from_its_folder(name: str, tmp_path: Path) -> None:
    task, data = task_named(name), read_task(name, folder=str(write_folder(name, tmp_path)))
    a, b = (0.5, 4.0) if task.regression else (0, 1)
    assert [e.label for e in data.train] == [a, b]
    assert [e.label for e in data.validation] == [b, a]
    assert data.train[1].texts == data.validation[1].texts == TEXTS[name]
    assert (data.name, data.labels, data.format, data.metric) == (name, task.labels, task.format, task.metric)
    assert data.note == task.note


def test_test_files_of_glue_are_never_read(tmp_path: Path) -> None:
    write_folder("sst2", tmp_path)
    (tmp_path / "test.tsv").write_bytes(b"\xff not even text")
    assert len(read_task("sst2", folder=str(tmp_path)).validation) == 2


def test_a_folder_with_only_a_dev_file_is_split(tmp_path: Path) -> None:
    rows = ["entailment", "not_entailment"] * 10
    (tmp_path / "dev.tsv").write_text(tsv("index|question|sentence|label", *rows))
    data = read_task("qnli", folder=str(tmp_path), seed=2)
    assert (len(data.train), len(data.validation)) == (16, 4)
    assert "only one labelled file (dev.tsv): split 80/20 by example with seed 2, 16 rows to train on" in data.note


def test_the_fingerprint_does_not_know_the_path_or_the_source(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        write_folder("sst2", folder)
    own = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    for path, names in zip(own, (("negative", "positive"), ("positive", "negative")), strict=True):
        path.write_text(jsonl(*({"text": f"sentence {k}", "label": n} for k, n in enumerate(names))))
    prints = {
        read_task("sst2", folder=str(here)).fingerprint,
        read_task("sst2", folder=str(there)).fingerprint,
        read_task("sst2", data=str(own[0]), validation=str(own[1])).fingerprint,
    }
    assert len(prints) == 1


def own(folder: Path, name: str, *rows: Row) -> str:
    path = folder / name
    path.write_text(jsonl(*rows))
    return str(path)


def test_own_files_with_inferred_labels(tmp_path: Path) -> None:
    train = own(tmp_path, "a.jsonl", *({"text": f"t{k}", "label": "hot" if k % 3 else "cold"} for k in range(9)))
    judge = tmp_path / "b.csv"
    judge.write_text('review,rating\n"one, two",hot\nthree,cold\n')
    data = read_task("weather", data=train, validation=str(judge))
    assert (data.name, data.labels, data.format, data.metric) == ("weather", ("cold", "hot"), "single", "accuracy")
    assert [e.label for e in data.train[:3]] == [0, 1, 1]
    assert [(e.texts, e.label) for e in data.validation] == [((("one, two", None),), 1), ((("three", None),), 0)]
    alone = read_task("weather", data=own(tmp_path, "c.jsonl", *({"text": f"t{k}", "label": k % 2} for k in range(60))))
    assert (len(alone.train), len(alone.validation), alone.labels) == (48, 12, ("0", "1"))
    assert "labels inferred: 2 classes; only one labelled file (c.jsonl): split 80/20" in alone.note


def test_the_columns_of_own_files_are_noted(tmp_path: Path) -> None:
    one = own(tmp_path, "a.jsonl", *({"review": f"t{k}", "stars": k % 2} for k in range(9)))
    other = own(tmp_path, "b.jsonl", *({"body": f"t{k}", "stars": k % 2} for k in range(9)))
    said = "read from columns: text 'review', label 'stars'"
    own_rows = "judged on its own training rows: the scores say nothing of other text"
    assert read_task("mine", data=one, validation=one).note == f"{said}; {own_rows}; labels inferred: 2 classes"
    assert own_rows not in read_task("mine", data=one, validation=other).note
    assert read_task("mine", data=one, validation=other).note.startswith(f"{said}; {said.replace('review', 'body')}; ")


def test_own_parquet_with_named_columns(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"q": f"q{k}", "d": f"d{k}", "gain": k / 4, "label": "x"} for k in range(20)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    data = read_task("gains", data=str(tmp_path / "a.parquet"), text="q", pair="d", label="gain")
    assert (data.labels, data.format, data.metric) == (None, "pair", "correlation")
    assert sorted(e.label for e in data.train + data.validation) == [k / 4 for k in range(20)]
    assert all(e.texts == ((f"q{e.label * 4:g}", f"d{e.label * 4:g}"),) for e in data.train)


def test_own_rows_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"id{k}\t{k % 2}\tt{k}\n" for k in range(20)))
    data = read_task("mine", data=str(path), columns="_ label text")
    assert data.note.startswith("read from columns: text 'text', label 'label'; ")
    found = {e.texts[0][0]: e.label for e in data.train + data.validation}
    assert found == {f"t{k}": k % 2 for k in range(20)}, "the first row is one of them"


def test_own_rows_of_a_published_choice_task(tmp_path: Path) -> None:
    rows = [{"ctx": f"c{k}", "endings": ["x", "y", "z"], "label": k % 3} for k in range(30)]
    data = read_task("hellaswag", data=own(tmp_path, "a.jsonl", *rows))
    assert (data.labels, data.format, len(data.train[0].texts)) == (("0", "1", "2"), "choice", 3)


def test_refusals(tmp_path: Path) -> None:
    pairs = own(tmp_path, "p.jsonl", *({"sentence1": "a", "sentence2": "b", "label": k % 2} for k in range(20)))
    bare = own(tmp_path, "n.jsonl", *({"text": f"t{k}"} for k in range(20)))
    same = own(tmp_path, "s.jsonl", *({"text": f"t{k}", "label": "a"} for k in range(20)))
    few = own(tmp_path, "f.jsonl", *({"text": f"t{k}", "label": k % 2} for k in range(8)))
    plain = str(tmp_path / "t.txt")
    Path(plain).write_text("one\ntwo\n" * 10)
    for call, words in (
        ({"name": "stt2"}, "unknown task 'stt2'; did you mean 'sst2'"),
        ({"name": "sst2", "data": pairs}, r"sst2: expected one text a row, got a pair of texts in .*p.jsonl; name the"),
        ({"name": "mine", "data": bare}, "expected a label in every row, got none in 20 of 20 rows"),
        (
            {"name": "mine", "data": same},
            "mine: expected train rows with different labels, got 16 rows all labelled 'a'",
        ),
        ({"name": "mine", "data": few}, "mine: expected at least 10 rows to split 80/20, got 8 in .*f.jsonl"),
        ({"name": "mine", "data": plain}, r"t.txt: expected a file ending in .jsonl, .*, .parquet, got '.txt'; rename"),
        ({"name": "mine", "data": few, "columns": "text"}, "whose columns have names: --columns 'text' does not apply"),
        ({"name": "hellaswag", "data": few, "columns": "ctx"}, "columns 'ctx' applies only to single and pair tasks"),
        ({"name": "sst2", "folder": "x", "columns": "y"}, "task sst2: columns 'y' applies only to your own data"),
        ({"name": "mine", "data": "no/such.jsonl"}, "no/such.jsonl: expected a file with the task's rows, but it does"),
        ({"name": "mine", "data": bare, "validation": "nope.csv"}, "nope.csv: expected a file with the task's rows"),
        ({"name": "sst2", "folder": "no/such"}, "no/such: expected a folder with the files of SST-2, got nothing"),
        (
            {"name": "sst2", "validation": bare},
            "task sst2: validation '.*' applies only to your own data; leave it out",
        ),
        ({"name": "sst2", "folder": "x", "label": "y"}, "task sst2: label 'y' applies only to your own data"),
        ({"name": "sst2", "folder": "x", "revision": "y"}, "revision 'y' applies only to the hub, not to a folder"),
        (
            {"name": "sst2", "folder": "x", "data": few},
            "folder 'x' applies only to the published task, not to your own",
        ),
        (
            {"name": "hellaswag", "data": few, "text": "t"},
            "task hellaswag: text 't' applies only to single and pair task",
        ),
    ):
        with pytest.raises(StratoscopeError, match=words) as caught:
            read_task(**call)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
