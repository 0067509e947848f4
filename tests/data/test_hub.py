"""Hub data sets, with a stand-in for the network, and the real library when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.formats import hub
from stratoscope.data.readers import read_corpus

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Answer every data set with three rows and remember how it was asked for."""
    seen: list[dict[str, Any]] = []
    features = datasets.Features(
        {
            "idx": datasets.Value("int32"),
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["negative", "positive"]),
        }
    )
    rows = {"idx": [0, 1, 2], "sentence": ["good", " ", "bad"], "label": [1, 0, -1]}

    def load_dataset(name: str, config: str | None, **options: Any) -> Any:
        seen.append({"name": name, "config": config, "offline": datasets.config.HF_HUB_OFFLINE, **options})
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "hub_answers", lambda name, revision: True)
    return seen


def test_rows_labels_and_options(calls: list[dict[str, Any]]) -> None:
    corpus = read_corpus("org/glue:sst2", split="train", revision="abc")
    assert [(s.text, s.label) for s in corpus.sentences] == [("good", "positive"), ("bad", None)]
    assert (corpus.name, corpus.positions, corpus.skipped) == ("org/glue:sst2/train", (0, 2), 1)
    assert calls == [{"name": "org/glue", "config": "sst2", "offline": False, "split": "train", "revision": "abc"}]


def test_defaults(calls: list[dict[str, Any]]) -> None:
    assert read_corpus("imdb").name == "imdb/validation"
    assert calls == [{"name": "imdb", "config": None, "offline": False, "split": "validation", "revision": None}]


def test_a_class_where_text_was_expected(calls: list[dict[str, Any]]) -> None:
    with pytest.raises(
        StratoscopeError, match="hub data set imdb: row 1, column 'label': expected text, got the label 'po"
    ):
        read_corpus("imdb", text="label")


def test_without_an_answer_only_the_cache_is_tried(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "hub_answers", lambda name, revision: False)
    assert len(read_corpus("imdb")) == 2
    assert calls[0]["offline"] is True
    assert datasets.config.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    ("online", "error", "words"),
    [
        (
            False,
            ConnectionError("x"),
            "expected a file or a reachable hub data set, got no such file and no answer from",
        ),
        (
            True,
            FileNotFoundError("Dataset 'nope' doesn't exist.\nMore"),
            r"got neither \(Dataset 'nope' doesn't exist\); chec",
        ),
        (
            True,
            ValueError('Unknown split "validation".'),
            "could not be read with split 'validation' .Unknown split .*--split",
        ),
        (
            True,
            RuntimeError(),
            r"could not be read with split 'validation' \(RuntimeError\); choose another with --split",
        ),
    ],
)
def test_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch, online: bool, error: Exception, words: str) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(hub, "hub_answers", lambda name, revision: online)
    with pytest.raises(StratoscopeError, match=words) as caught:
        read_corpus("nope")
    assert str(caught.value).startswith("--data 'nope': ")
    assert "\n" not in str(caught.value)
    assert datasets.config.HF_HUB_OFFLINE is False


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_a_dead_network_fails_fast(environment: dict[str, str], tmp_path: Path) -> None:
    """Offline mode, and a hub that refuses connections: the library alone would retry for 23 seconds and more."""
    code = (
        "import time, datasets, huggingface_hub\n"
        "from stratoscope.core.errors import StratoscopeError\n"
        "from stratoscope.data.readers import read_corpus\n"
        "start = time.monotonic()\n"
        "try:\n    read_corpus('some/set')\n"
        "except StratoscopeError as e:\n    print(time.monotonic() - start, e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    seconds, sentence = done.stdout.split(" ", 1)
    assert float(seconds) < 10
    assert "--data 'some/set': expected a file or a reachable hub data set, got no such file and no answer" in sentence


def test_a_hub_that_answers_with_an_error_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    def answer(error: Exception | None) -> None:
        def dataset_info(self: Any, name: str, **options: Any) -> None:
            assert options == {"revision": "r", "timeout": hub.TIMEOUT}
            if error is not None:
                raise error

        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)

    no_such = HfHubHTTPError.__new__(HfHubHTTPError)
    for error, reachable in ((None, True), (no_such, True), (OSError("no route"), False), (ValueError("id"), False)):
        answer(error)
        assert hub.hub_answers("x", "r") is reachable


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        StratoscopeError,
        match=r"--data 'imdb' is no file, and a hub data set needs the package datasets, which is not installed; "
        r"run: pip install 'stratoscope\[hub\]'",
    ):
        read_corpus("imdb")
