from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.runs.folder import RunFolder
from stratoscope.data.readers import read_corpus
from stratoscope.models.open.loading import ModelSpec, load, survey
from stratoscope.models.text.rows import plan_rows
from stratoscope.studies.compare import activations
from stratoscope.studies.compare.activations import (
    Reading,
    chosen_layers,
    chunk_starts,
    keep_activations,
    made_by_this_code,
)

WIDTH = 32


def bounds_of(*rows: int, size: int) -> list[int]:
    """Bounds for sentences of so many rows."""
    return chunk_starts(np.repeat(np.arange(len(rows)), rows), size)


def test_chunks_are_whole_sentences_and_as_full_as_can_be() -> None:
    assert bounds_of(2, 2, 2, 2, size=4) == [0, 4, 8]
    assert bounds_of(3, 3, 3, size=4) == [0, 3, 6, 9]
    assert bounds_of(1, 1, size=10) == [0, 2]
    assert bounds_of(4, size=4) == [0, 4]


def test_a_sentence_longer_than_a_chunk_stays_whole() -> None:
    assert bounds_of(1, 9, 1, 2, size=4) == [0, 1, 10, 13]
    assert bounds_of(9, 9, size=4) == [0, 9, 18]


def test_chunks_hold_every_row_once_and_never_cut_a_sentence() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 5, 17):
        rows = generator.integers(1, 12, size=60)
        sentence = np.repeat(np.arange(60), rows)
        bounds = chunk_starts(sentence, size)
        assert bounds[0] == 0
        assert bounds[-1] == len(sentence)
        for a, b in pairwise(bounds):
            assert b > a
            assert a == 0 or sentence[a] != sentence[a - 1]
            assert b - a <= size or len(set(sentence[a:b])) == 1


@cache
def reading(folder: Path, text: str, layers: tuple[int, ...] | None = None) -> tuple[ModelSpec, object, Reading]:
    spec = ModelSpec(str(folder), device="cpu")
    seen = survey(spec)
    corpus = read_corpus(text)
    rows = plan_rows(corpus, [seen.encoder], "word")
    return spec, seen, Reading(corpus, rows, "word", "last", layers, None)


def test_a_layer_that_does_not_exist(checkpoints: Path, text: str) -> None:
    _, seen, _ = reading(checkpoints / "base", text)
    assert chosen_layers(seen, "base", None) == (0, 1, 2, 3)
    assert chosen_layers(seen, "base", (0, 3)) == (0, 3)
    for layer in (4, -1):
        with pytest.raises(StratoscopeError, match=rf"'base' has no layer {layer}; its layers are 0-3 \(0 = emb"):
            chosen_layers(seen, "base", (0, layer))


def rows_of(pieces: list[list[tuple[str, str]]]) -> list[torch.Tensor]:
    return [torch.cat([load_file(path)[name] for path, name in layer]) for layer in pieces]


def test_shards_and_chunks_hold_the_same_rows(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = reading(checkpoints / "tuned", text)
    with RunFolder.open(tmp_path / "one") as folder:
        whole = rows_of(keep_activations(*given, folder, Silent()))
    monkeypatch.setattr(chunk_starts, "__defaults__", (16,))
    monkeypatch.setattr(activations, "CHUNK", 16)
    monkeypatch.setattr(activations, "SHARD_BYTES", 4 * WIDTH * 4 * 16 * 2)
    with RunFolder.open(tmp_path / "many") as folder:
        pieces = keep_activations(*given, folder, Silent())
        assert len({path for path, _ in pieces[0]}) > 2
        for a, b in zip(rows_of(pieces), whole, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_only_what_is_missing_or_damaged_is_read_again(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_starts, "__defaults__", (16,))
    monkeypatch.setattr(activations, "CHUNK", 16)
    monkeypatch.setattr(activations, "SHARD_BYTES", 4 * WIDTH * 4 * 16 * 2)
    calls: list[int] = []
    extract = activations.extract
    monkeypatch.setattr(activations, "extract", lambda m, c, r, **k: (calls.append(len(r)), extract(m, c, r, **k))[1])
    given = reading(checkpoints / "base", text)
    with RunFolder.open(tmp_path) as folder:
        before = rows_of(keep_activations(*given, folder, Silent()))
        shards = len(calls)
        files = sorted((tmp_path / "parts").glob("*.safetensors"))
        assert shards == len(files) > 2
        keep_activations(*given, folder, Silent())
        assert len(calls) == shards, "nothing was missing"
        damaged = bytearray(files[0].read_bytes())
        damaged[-3] ^= 0xFF
        files[0].write_bytes(damaged)
        files[1].unlink()
        stamp = files[2].stat()
        after = rows_of(keep_activations(*given, folder, Silent()))
    assert len(calls) == shards + 2
    assert (files[2].stat().st_ino, files[2].stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


def test_other_inputs_never_meet_the_same_part(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.open(tmp_path) as folder:
        for name, layers in (("base", None), ("tuned", None), ("base", (1, 2))):
            keep_activations(*reading(checkpoints / name, text, layers), folder, Silent())
        assert len(list((tmp_path / "parts").glob("*.safetensors"))) == 3
        monkeypatch.setattr(activations, "choose_device", lambda name: "another device")
        monkeypatch.setattr(activations, "load", lambda spec, seen: load(spec, seen=seen))
        keep_activations(*reading(checkpoints / "base", text), folder, Silent())
        assert len(list((tmp_path / "parts").glob("*.safetensors"))) == 4


def test_activations_that_other_code_made_are_read_again(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = reading(checkpoints / "base", text)
    with RunFolder.open(tmp_path) as folder:
        keep_activations(*given, folder, Silent())
        (old,) = (p.name for p in (tmp_path / "parts").glob("*.safetensors"))
        assert made_by_this_code(old)
        monkeypatch.setattr(activations, "code_key", lambda: "f" * 64)
        assert not made_by_this_code(old)
        keep_activations(*given, folder, Silent())
    (new,) = (p.name for p in (tmp_path / "parts").glob("*.safetensors") if p.name != old)
    assert made_by_this_code(new)
