"""Layers kept in shards: every text read once, only what is missing read again, and the same rows for every model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import CHOICE, Example, TaskData
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, open_model, survey
from stratoscope.models.read import store
from stratoscope.models.read.head import predict
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.read.store import (
    HeadInput,
    Reading,
    Wanted,
    chosen_layers,
    cut_texts,
    store_all,
    store_layers,
    together,
)
from stratoscope.models.text.examples import tokenise
from stratoscope.models.text.rows import plan_rows
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import gather


class Folder:
    """A run that keeps its parts in a folder, by the digest of their keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = 0
        self.steps: list[list[int]] = []
        """Total of every step, and how far it came."""

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self.steps.append([total])
        yield self.steps[-1].append

    def note(self, message: str) -> None: ...

    @property
    def progress(self) -> Progress:
        return self

    def map_files(self, work: Any, items: Any, *, name: str, key: Any, label: str, **how: Any) -> list[Path]:
        def save(folder: RunFolder, part: str, tensors: Any) -> Path:
            self.made += 1
            return saved(folder, part, tensors)

        saved = RunFolder.save
        with pytest.MonkeyPatch.context() as patch, RunFolder.open(self.path) as folder:
            patch.setattr(RunFolder, "save", save)
            return Run(folder, progress=self).map_files(work, items, name=name, key=key, label=label, **how)


class Opening:
    """Opens a model, once for all, and counts how often it is asked to."""

    def __init__(self, folder: Path, head: Any = None, **options: Any) -> None:
        self.spec = ModelSpec(str(folder), device="cpu")
        self.seen: Survey = survey(self.spec)
        self.asked = 0
        self.texts = 0
        self._open = cache(lambda: self._opened(head, options))

    def _opened(self, head: Any, options: dict[str, Any]) -> OpenedModel:
        model = open_model(self.spec, head, surveyed=self.seen, **options)
        model.module.base_model.encoder.layer[0].register_forward_pre_hook(self._count)
        return model

    def _count(self, module: Any, args: Any) -> None:
        self.texts += len(args[0])

    def __call__(self) -> OpenedModel:
        self.asked += 1
        return self._open()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 rows, shards of two chunks of four layers."""
    monkeypatch.setattr(store, "CHUNK", 16)
    monkeypatch.setattr(store, "SHARD_BYTES", 4 * tiny.HIDDEN * 4 * 16 * 2)


def bounds_of(*rows: int, size: int) -> list[int]:
    """Bounds, in rows, for sentences of so many rows."""
    sentence = np.repeat(np.arange(len(rows)), rows)
    found = np.searchsorted(sentence, cut_texts([sentence], len(rows), size=size))
    return list(dict.fromkeys(found.tolist()))


def test_chunks_are_whole_sentences_and_as_full_as_can_be() -> None:
    assert bounds_of(2, 2, 2, 2, size=4) == [0, 4, 8]
    assert bounds_of(3, 3, 3, size=4) == [0, 3, 6, 9]
    assert bounds_of(1, 1, size=10) == [0, 2]
    assert bounds_of(4, size=4) == [0, 4]
    assert bounds_of(0, 3, 0, 3, 0, size=4) == [0, 3, 6]


def test_a_sentence_longer_than_a_chunk_stays_whole() -> None:
    assert bounds_of(1, 9, 1, 2, size=4) == [0, 1, 10, 13]
    assert bounds_of(9, 9, size=4) == [0, 9, 18]


def test_chunks_hold_every_row_once_and_never_cut_a_sentence() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 5, 17):
        kinds = [np.repeat(np.arange(60), generator.integers(0, 12, size=60)) for _ in range(2)]
        bounds = cut_texts(kinds, 60, 3, size)
        assert (bounds[0], bounds[-1]) == (0, 60)
        for a, b in pairwise(bounds):
            assert b > a
            assert a % 3 == b % 3 == 0
            counts = [int(((k >= a) & (k < b)).sum()) for k in kinds]
            assert max(counts) <= size or b - a == 3


def test_a_layer_that_does_not_exist(folder_of: Any) -> None:
    seen = survey(ModelSpec(str(folder_of("bert")), name="base"))
    assert chosen_layers(seen, None) == (0, 1, 2, 3)
    assert chosen_layers(seen, (0, 3)) == (0, 3)
    for layer in (4, -1):
        with pytest.raises(StratoscopeError, match=rf"'base' has no layer {layer}; its layers are 0-3"):
            chosen_layers(seen, (0, layer))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("unit", ["word", "cls"])
@pytest.mark.parametrize("layers", [None, (0, 2)])
def test_shards_hold_the_rows_that_are_read_in_memory(
    unit: str, layers: tuple[int, ...] | None, folder_of: Any, corpus: Corpus, tmp_path: Path
) -> None:
    opening, run = Opening(folder_of("bert")), Folder(tmp_path / "run")
    rows = plan_rows(corpus, [opening.seen.encoder], unit)
    found = store_layers(opening, opening.seen, Reading(corpus, {unit: rows}, layers=layers), run)
    stored, whole = found.rows[unit], read_rows(opening(), corpus, rows, layers=layers)
    assert sum(stored.sizes) == len(rows)
    assert stored.layers == len(whole)
    assert (run.made > 2) == (unit == "word")
    for k, x in enumerate(whole):
        torch.testing.assert_close(gather(stored, k), x, atol=1e-5, rtol=0)
    both = together([stored, stored])
    assert both.layers == 2 * stored.layers
    assert torch.equal(gather(both, stored.layers), gather(stored, 0))


@pytest.mark.parametrize("enough", [5, 8, 9, 10_000])
def test_a_shard_gets_no_more_texts_than_it_takes_to_sort_them(
    enough: int, folder_of: Any, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHUNK", 4)
    monkeypatch.setattr(store, "SHARD_TEXTS", enough)
    opening, run = Opening(folder_of("bert")), Folder(tmp_path / "run")
    rows = plan_rows(corpus, [opening.seen.encoder], "cls")
    found = store_layers(opening, opening.seen, Reading(corpus, {"cls": rows}), run)
    texts = 4 * min(-(-enough // 4), store.SHARD_PIECES)
    assert run.made == -(-len(corpus) // texts)
    assert sum(found.rows["cls"].sizes) == len(rows)


@pytest.mark.usefixtures("small")
def test_only_what_is_missing_is_read_again(folder_of: Any, corpus: Corpus, tmp_path: Path) -> None:
    opening, run = Opening(folder_of("bert")), Folder(tmp_path / "run")
    rows = plan_rows(corpus, [opening.seen.encoder], "word")
    first = store_layers(opening, opening.seen, Reading(corpus, {"word": rows}), run)
    assert opening.texts == len(corpus), "every text once"
    assert [2 * done[0] - sum(done) for done in run.steps] == [0]
    made = run.made
    again = Opening(folder_of("bert"))
    assert store_layers(again, again.seen, Reading(corpus, {"word": rows}), run) == first
    assert again.asked == 0
    before = gather(first.rows["word"], 3)
    Path(first.paths[1]).unlink()
    store_layers(again, again.seen, Reading(corpus, {"word": rows}), run)
    assert (again.asked, run.made) == (1, made + 1)
    assert len(run.steps) == 2, "nothing is shown when nothing is read"
    assert 0 < again.texts < len(corpus)
    assert torch.equal(gather(first.rows["word"], 3), before)


@pytest.mark.usefixtures("small")
def test_several_models_are_read_in_one_map_and_one_is_open_at_a_time(
    folder_of: Any, corpus: Corpus, tmp_path: Path
) -> None:
    folders = [folder_of("bert"), tiny.checkpoint("bert", tmp_path / "other", seed=5)]
    seen = [survey(ModelSpec(str(path))) for path in folders]
    rows = plan_rows(corpus, [seen[0].encoder], "word")
    reading, opened = Reading(corpus, {"word": rows}), list[weakref.ref[Any]]()
    alone = Folder(tmp_path / "alone")
    expected = [store_layers(Opening(path), s, reading, alone) for path, s in zip(folders, seen, strict=True)]

    def opening(path: Path, progress: object) -> OpenedModel:
        assert not any(module() for module in opened), "the model before is let go"
        model = open_model(ModelSpec(str(path)))
        opened.append(weakref.ref(model.module))
        return model

    run = Folder(tmp_path / "run")
    held = [Held(partial(opening, p), s, one_of_many=True) for p, s in zip(folders, seen, strict=True)]
    wanted = [Wanted(h, s, reading) for h, s in zip(held, seen, strict=True)]
    found = store_all([*wanted, wanted[0]], run)
    assert (len(opened), len(run.steps), run.made) == (2, 1, alone.made), "a model that comes twice is read once"
    assert not any(module() for module in opened), "and none stays"
    assert found[2] == found[0]
    for one, other in zip(expected, found, strict=False):
        assert [Path(p).name for p in one.paths] == [Path(p).name for p in other.paths]
        assert torch.equal(gather(one.rows["word"], 3), gather(other.rows["word"], 3))


def test_other_inputs_never_meet_the_same_part(folder_of: Any, corpus: Corpus, tmp_path: Path) -> None:
    run = Folder(tmp_path / "run")
    one, other = Opening(folder_of("bert")), Opening(tiny.checkpoint("bert", tmp_path / "other", seed=5))
    rows = plan_rows(corpus, [one.seen.encoder], "cls")
    cut = plan_rows(corpus, [one.seen.encoder], "cls", truncate=20)
    readings = [
        Reading(corpus, {"cls": rows}),
        Reading(corpus, {"cls": rows}, layers=(1, 2)),
        Reading(corpus, {"cls": rows}, subword="first"),
        Reading(corpus, {"cls": cut}, truncate=20),
        Reading(corpus, {"cls": rows}, head=HeadInput(scored=False)),
        Reading(corpus, {"cls": rows}, head=HeadInput(mean=True, scored=False)),
    ]
    for opening in (one, other):
        for reading in readings:
            store_layers(opening, opening.seen, reading, run)
    assert run.made == 2 * len(readings)


def test_rows_planned_otherwise_are_refused(folder_of: Any, corpus: Corpus, texts: Any) -> None:
    encoder = survey(ModelSpec(str(folder_of("bert")))).encoder
    rows = plan_rows(corpus, [encoder], "cls", truncate=20)
    for given, truncate in ((corpus, None), (corpus, 19), (texts("Yes."), 20)):
        with pytest.raises(StratoscopeError, match=r"the rows 'cls' were planned for corpus .* plan them again"):
            Reading(given, {"cls": rows}, truncate=truncate)


@pytest.mark.usefixtures("small")
def test_units_and_head_input_come_from_one_pass(tmp_path: Path) -> None:
    texts = tiny.SENTENCES
    examples = tuple(Example(((t, texts[k - 1]), (t, texts[k - 2])), float(k % 2)) for k, t in enumerate(texts))
    task = TaskData("toy", examples, examples, ("0", "1"), CHOICE, "accuracy")
    opening, run = Opening(tiny.checkpoint("bert", tmp_path / "m"), task, seed=0), Folder(tmp_path / "run")
    corpus, encoder = task.corpus("validation"), opening.seen.encoder
    sample = corpus.sample(7, seed=0)
    units = {
        unit: plan_rows(sample, [encoder], unit, truncate=24).within(sample, corpus) for unit in ("cls", "mean", "word")
    }
    reading = Reading(corpus, units, head=HeadInput(), choices=2, truncate=24)
    found = store_layers(opening, opening.seen, reading, run)
    assert run.made > 1
    assert opening.texts == len(corpus), "every text once, whatever is wanted of it"
    model = opening()
    for unit, rows in units.items():
        for k, x in enumerate(read_rows(model, corpus, rows)):
            torch.testing.assert_close(gather(found.rows[unit], k), x, atol=1e-5, rtol=0)
    expected = predict(model, tokenise(task, "validation", encoder, length=24))
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert found.head_input(3).shape == (len(corpus), tiny.HIDDEN)


def test_words_of_whole_sentences_are_not_mixed_with_other_units(
    folder_of: Any, corpus: Corpus, tmp_path: Path
) -> None:
    opening = Opening(folder_of("bert"))
    units = {unit: plan_rows(corpus, [opening.seen.encoder], unit) for unit in ("cls", "word")}
    with pytest.raises(ValueError, match="read other units apart, or truncate"):
        store_layers(opening, opening.seen, Reading(corpus, units), Folder(tmp_path / "run"))
