"""Tasks as data: one row each, readable from the hub, from the authors' own files, or from files of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import at_home
from stratoscope.data.formats.hub import hub_table
from stratoscope.data.readers import IN_MEMORY, TABLES, corpus_of, read_corpus
from stratoscope.data.tasks.build import CORRELATION, build
from stratoscope.data.tasks.data import CHOICE, FORMATS, SPLITS, Example, TaskData
from stratoscope.data.tasks.files import TaskRows, corpus_rows, file_table, folder_files, no_table, table_rows
from stratoscope.data.tasks.spec import Columns, Folder, Task

__all__ = ["FORMATS", "SPLITS", "TASKS", "Example", "Task", "TaskData", "read_task", "task_named"]

ENTAILMENT = ("entailment", "not_entailment")
FOUR = ("0", "1", "2", "3")
SENTENCES = Columns(("sentence1",), pair="sentence2")
QUESTIONS = Columns(("question1",), pair="question2")
NAMING = ("--text", "--pair", "--label", "--columns")
"""Options that name the columns of the user's own rows."""


TASKS: tuple[Task, ...] = (
    Task(
        "cola",
        "is the sentence acceptable English?",
        Columns(("sentence",)),
        ("unacceptable", "acceptable"),
        Folder("CoLA", header="source label _ sentence"),
        "Warstadt et al. 2019",
        metric="matthews",
    ),
    Task(
        "mnli",
        "does the premise entail, contradict or say nothing of the hypothesis? (matched genres)",
        Columns(("premise",), pair="hypothesis"),
        ("entailment", "neutral", "contradiction"),
        Folder("MNLI", validation=("dev_matched.tsv",), columns=replace(SENTENCES, label="gold_label")),
        "Williams et al. 2018",
        splits=("train", "validation_matched"),
    ),
    Task(
        "mrpc",
        "do two news sentences say the same?",
        SENTENCES,
        ("not_equivalent", "equivalent"),
        Folder("MRPC", columns=Columns(("#1 String",), pair="#2 String", label="Quality")),
        "Dolan and Brockett 2005",
        metric="f1",
    ),
    Task(
        "qnli",
        "does the sentence answer the question?",
        Columns(("question",), pair="sentence"),
        ENTAILMENT,
        Folder("QNLI"),
        "Rajpurkar et al. 2016, Wang et al. 2018",
    ),
    Task(
        "qqp",
        "do two questions ask the same?",
        QUESTIONS,
        ("not_duplicate", "duplicate"),
        Folder("QQP", columns=replace(QUESTIONS, label="is_duplicate")),
        "Iyer et al. 2017",
        metric="f1",
    ),
    Task(
        "rte",
        "does the first text entail the second?",
        SENTENCES,
        ENTAILMENT,
        Folder("RTE"),
        "Dagan et al. 2005, Bentivogli et al. 2009",
    ),
    Task(
        "sst2",
        "is the movie review positive?",
        Columns(("sentence",)),
        ("negative", "positive"),
        Folder("SST-2"),
        "Socher et al. 2013",
    ),
    Task(
        "stsb",
        "how similar in meaning are two sentences, from 0 to 5?",
        SENTENCES,
        None,
        Folder("STS-B", columns=replace(SENTENCES, label="score")),
        "Cer et al. 2017",
        metric=CORRELATION,
    ),
    Task(
        "boolq",
        "is the answer to the question yes, given the passage?",
        Columns(("question",), pair="passage", label="answer"),
        ("false", "true"),
        Folder("BoolQ", ("train.jsonl",), ("dev.jsonl", "val.jsonl")),
        "Clark et al. 2019",
        hub="google/boolq",
    ),
    Task(
        "yelp",
        "is the restaurant review positive? (Yelp Polarity)",
        Columns(("text",)),
        ("negative", "positive"),
        Folder("yelp_review_polarity_csv", ("train.csv",), ("test.csv",), header="label text"),
        "Zhang et al. 2015",
        hub="fancyzhx/yelp_polarity:plain_text",
        splits=("train", "test"),
        codes=("1", "2"),
        note="judged on the published test split, whose labels are public: there is no validation split",
    ),
    Task(
        "hellaswag",
        "which of four endings continues the text?",
        Columns(("ctx",), choices=("endings",)),
        FOUR,
        Folder(
            "HellaSwag",
            ("hellaswag_train.jsonl", "train.jsonl", "train*.txt"),
            ("hellaswag_val.jsonl", "val.jsonl", "hellaswag_val*.txt", "val*.txt"),
        ),
        "Zellers et al. 2019",
        hub="Rowan/hellaswag",
    ),
    Task(
        "cosmosqa",
        "which of four answers fits the question, given the story?",
        Columns(("context", "question"), choices=("answer0", "answer1", "answer2", "answer3")),
        FOUR,
        Folder("CosmosQA", ("train.csv",), ("valid.csv",)),
        "Huang et al. 2019",
        hub="allenai/cosmos_qa",
        revision="refs/convert/parquet",  # its main branch is a loading script, which datasets 4 no longer runs
    ),
)
"""Every published task; a user's own needs no row."""


def task_named(name: str) -> Task:
    """The row of `TASKS` with this name."""
    for task in TASKS:
        if task.name == name:
            return task
    raise unknown_name("task", name, (t.name for t in TASKS))


def read_task(
    name: Any,
    *,
    folder: str | None = None,
    data: Any = None,
    validation: Any = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: str | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> TaskData:
    """Read a task from a folder of its published files, from the user's own files, or else from the hub.

    With `data` (and `validation`, else a seeded 80/20 split) a name of `TASKS` sets format, labels and metric, any
    other name is the user's own task, whose labels are inferred; `text`, `pair` and `label` name their columns, and
    `columns` all those of a CSV or TSV without a header. Both may be in memory (a data frame, a list of rows), `data`
    also in the place of the name.
    """
    if not isinstance(name, str):
        if data is not None:
            raise StratoscopeError(f"expected the name of a task before its data, got {type(name).__name__}")
        name, data = IN_MEMORY, name
    where, naming = f"task {name}", {"text": text, "pair": pair, "label": label, "columns": columns}
    source = {"task": name, "task_folder": folder, "data": data, "validation": validation, **naming}
    if data is None:
        _refuse(where, "your own data", {"validation": validation, **naming})
        task = task_named(name)
        if folder is not None:
            _refuse(where, "the hub, not to a folder", {"revision": revision})
        with _columns_fixed():
            given = _from_hub(task, revision) if folder is None else _from_folder(task, at_home(folder))
            return replace(build(name, task, given, seed=seed, note=task.note), source=source)
    _refuse(where, "the published task, not to your own data", {"folder": folder, "revision": revision})
    known = next((t for t in TASKS if t.name == name), None)
    files = [data] if validation is None else [data, validation]
    rows = [_own_rows(f, known, naming) for f in files]
    read_from = [", ".join(f"{role} '{column}'" for role, column in r.columns.items()) for r in rows if r.columns]
    notes = dict.fromkeys(f"read from columns: {columns}" for columns in read_from)
    paths = isinstance(data, str | Path) and isinstance(validation, str | Path)
    if paths and at_home(validation).samefile(at_home(data)):
        notes["judged on its own training rows: the scores say nothing of other text"] = None
    source = {k: str(v) if isinstance(v, Path) else v for k, v in source.items()}
    said = source if all(v is None or isinstance(v, str) for v in source.values()) else {}
    return replace(build(name, known, rows, seed=seed, note="; ".join(notes)), source=said)


@contextmanager
def _columns_fixed() -> Iterator[None]:
    """Where the task says which columns hold what, no error advises to name others."""
    try:
        yield
    except StratoscopeError as e:
        raise e.where(lambda option: option not in NAMING) from e


def _from_hub(task: Task, revision: str | None) -> list[TaskRows]:
    source = task.hub or f"nyu-mll/glue:{task.name}"
    try:
        tables = [
            hub_table(source, split=split, revision=revision or task.revision, asked_by=f"task {task.name}:")
            for split in task.splits
        ]
    except StratoscopeError as e:
        raise StratoscopeError(e.fact, *e.ways, f"give --task-folder with the files of {task.folder.name}") from e
    return [table_rows(table, task.columns) for table in tables]


def _from_folder(task: Task, folder: Path) -> list[TaskRows]:
    files = folder_files(folder, task.folder)
    return [table_rows(file_table(path, task.folder.header), task.folder.columns or task.columns) for path in files]


def _own_rows(source: Any, task: Task | None, naming: dict[str, str | None]) -> TaskRows:
    if not isinstance(source, str | Path):
        return corpus_rows(IN_MEMORY, [corpus_of(source, **naming)])
    path = at_home(source)
    if not path.is_file():
        what = "it is a folder; give one of its files" if path.is_dir() else "it does not exist; check the path"
        raise StratoscopeError(f"{source}: expected a file with the task's rows, but {what}")
    if task is not None and task.format == CHOICE:
        _refuse(f"task {task.name}", "single and pair tasks", naming)
        with _columns_fixed():
            return table_rows(file_table(path), task.columns)
    if path.suffix.lower() not in TABLES:
        raise no_table(path)
    return corpus_rows(str(source), [read_corpus(str(path), **naming)])


def _refuse(where: str, what: str, options: dict[str, str | None]) -> None:
    """An option that cannot apply is an error, not silently unused."""
    for option, value in options.items():
        if value is not None:
            raise StratoscopeError(f"{where}: {option} '{value}' applies only to {what}; leave it out")
