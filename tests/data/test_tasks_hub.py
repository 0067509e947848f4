"""Every published task from the hub: a stand-in with the columns, classes and splits the hub has."""

from __future__ import annotations

from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.formats import hub
from stratoscope.data.tasks.read import TASKS, read_task, task_named

datasets: Any = pytest.importorskip("datasets")

GLUE_TEXTS = {
    "cola": ("sentence",),
    "mnli": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "qqp": ("question1", "question2"),
    "rte": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
    "stsb": ("sentence1", "sentence2"),
}
GLUE_CLASSES = {
    "cola": ["unacceptable", "acceptable"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qnli": ["entailment", "not_entailment"],
    "qqp": ["not_duplicate", "duplicate"],
    "rte": ["entailment", "not_entailment"],
    "sst2": ["negative", "positive"],
}


def hub_rows(name: str, config: str | None) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Two rows with labels of indices 0 and 1, and the features, as the hub has them."""
    text, number = datasets.Value("string"), datasets.Value("int32")
    if name == "nyu-mll/glue" and config is not None:
        columns: dict[str, list[Any]] = {c: [f"{c} 0", f"{c} 1"] for c in GLUE_TEXTS[config]}
        classes = GLUE_CLASSES.get(config)
        label = datasets.Value("float32") if classes is None else datasets.ClassLabel(names=classes)
        columns |= {"label": [0.5, 4.0] if classes is None else [0, 1], "idx": [0, 1]}
        return columns, {**dict.fromkeys(GLUE_TEXTS[config], text), "label": label, "idx": number}
    if (name, config) == ("google/boolq", None):
        columns = {"question": ["question 0", "question 1"], "answer": [False, True], "passage": ["p 0", "passage 1"]}
        return columns, {"question": text, "answer": datasets.Value("bool"), "passage": text}
    if (name, config) == ("fancyzhx/yelp_polarity", "plain_text"):
        return {"text": ["a", "text 1"], "label": [0, 1]}, {
            "text": text,
            "label": datasets.ClassLabel(names=["1", "2"]),
        }
    if (name, config) == ("Rowan/hellaswag", None):
        columns = {
            "ind": [4, 5],
            "activity_label": ["x", "y"],
            "ctx_a": ["ctx", "ctx"],
            "ctx_b": ["0", "1"],
            "ctx": ["ctx 0", "ctx 1"],
            "endings": [[f"e{i} {k}" for i in range(4)] for k in range(2)],
            "label": ["0", "1"],
        }
        kinds = {c: text for c in columns if c not in ("ind", "endings")}
        return columns, {**kinds, "ind": number, "endings": datasets.Sequence(text)}
    assert (name, config) == ("allenai/cosmos_qa", None)
    columns = {c: [f"{c} 0", f"{c} 1"] for c in ("id", "context", "question")}
    columns |= {f"answer{i}": [f"a{i} 0", f"a{i} 1"] for i in range(4)}
    kinds = dict.fromkeys(columns, text)
    return {**columns, "label": [0, 1]}, {**kinds, "label": number}


def expected_texts(name: str) -> tuple[tuple[str, str | None], ...]:
    """The texts of the row with label 1."""
    if name == "hellaswag":
        return tuple(("ctx 1", f"e{i} 1") for i in range(4))
    if name == "cosmosqa":
        return tuple(("context 1 question 1", f"a{i} 1") for i in range(4))
    columns = {"boolq": ("question", "passage"), "yelp": ("text",), **GLUE_TEXTS}[name]
    return ((f"{columns[0]} 1", f"{columns[1]} 1" if len(columns) > 1 else None),)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A hub that holds the published data sets, validation in reverse order, and remembers what it was asked."""
    seen: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, revision: str | None) -> Any:
        seen.append((name, config, split, revision))
        columns, features = hub_rows(name, config)
        if split != "train":
            columns = {c: values[::-1] for c, values in columns.items()}
        return datasets.Dataset.from_dict(columns, features=datasets.Features({c: features[c] for c in columns}))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "hub_answers", lambda name, revision: True)
    return seen


@pytest.mark.parametrize("name", [t.name for t in TASKS])
def test_every_task_from_the_hub(name: str, calls: list[tuple[Any, ...]]) -> None:
    task, data = task_named(name), read_task(name)
    a, b = (0.5, 4.0) if task.regression else (0, 1)
    assert [e.label for e in data.train] == [a, b]
    assert [e.label for e in data.validation] == [b, a]
    assert data.train[1].texts == data.validation[0].texts == expected_texts(name)
    assert (data.labels, data.format, data.metric, data.note) == (task.labels, task.format, task.metric, task.note)
    judged = {"mnli": "validation_matched", "yelp": "test"}.get(name, "validation")
    assert [c[2] for c in calls] == ["train", judged]
    # The main branch of cosmos_qa is a loading script; the others are Parquet.
    assert {c[3] for c in calls} == {"refs/convert/parquet" if name == "cosmosqa" else None}


def test_the_users_revision_wins(calls: list[tuple[Any, ...]]) -> None:
    read_task("cosmosqa", revision="abc")
    assert {c[3] for c in calls} == {"abc"}


def test_a_hub_out_of_reach_points_to_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "hub_answers", lambda name, revision: False)
    with pytest.raises(
        StratoscopeError,
        match=r"task sst2: 'nyu-mll/glue:sst2': .*no answer from the hub; .* or give --task-folder with the files of",
    ):
        read_task("sst2")
