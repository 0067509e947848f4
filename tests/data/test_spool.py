"""A large source stays on disk: the same sentences, whatever its format, in little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from stratoscope.data import corpus as module
from stratoscope.data.corpus import Corpus, Sentence, Spool, gather
from stratoscope.data.readers import read_corpus

N = 50


def text(path: Path) -> None:
    path.write_text("".join(f"line {k} é\n\n" for k in range(N)))


def rows(path: Path) -> None:
    table = [{"text": " " if k % 7 == 3 else f"a, b {k}", "label": k % 2, "pair": f"p{k}"} for k in range(N)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in table))
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    else:
        quote, tab = ('"', ",") if path.suffix == ".csv" else ("", "\t")
        lines = [tab.join(f"{quote}{v}{quote}" for v in r.values()) for r in table]
        path.write_text("\n".join([tab.join(table[0]), *lines]) + "\n")


def words(path: Path) -> None:
    path.write_text("".join(f"{k}\tX\nword\tY\n\n" for k in range(N)))


FORMATS: dict[str, tuple[Callable[[Path], None], dict[str, str]]] = {
    "a.txt": (text, {}),
    "a.jsonl": (rows, {"text": "text", "pair": "pair"}),
    "a.csv": (rows, {"text": "text", "pair": "pair"}),
    "a.tsv": (rows, {"text": "text", "pair": "pair"}),
    "a.parquet": (rows, {"text": "text", "pair": "pair"}),
    "a.conll": (words, {"columns": "word pos"}),
}


@pytest.fixture(params=FORMATS)
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Corpus, Corpus]:
    """A file of each format, read into memory and spooled."""
    write, options = FORMATS[request.param]
    write(tmp_path / request.param)
    small = read_corpus(str(tmp_path / request.param), **options)
    monkeypatch.setattr(module, "IN_MEMORY", 3)
    monkeypatch.setattr(module, "READ_AHEAD", 4)
    large = read_corpus(str(tmp_path / request.param), **options)
    assert isinstance(small.sentences, tuple)
    assert isinstance(large.sentences, Spool)
    return small, large


def test_a_spooled_corpus_is_the_same_corpus(both: tuple[Corpus, Corpus]) -> None:
    small, large = both
    assert (large.fingerprint, len(large), large.skipped) == (small.fingerprint, len(small), small.skipped)
    assert tuple(large.sentences) == small.sentences
    assert tuple(large.positions) == small.positions
    assert [large.sentences[k] for k in (0, -1, 7)] == [small.sentences[k] for k in (0, -1, 7)]
    assert large.columns == small.columns


def test_slices_and_samples_of_a_spooled_corpus(both: tuple[Corpus, Corpus]) -> None:
    small, large = both
    for limit in (2, 20):
        one, other = small.sample(limit, seed=4), large.sample(limit, seed=4)
        assert tuple(other.sentences) == one.sentences
        assert other.fingerprint == one.fingerprint
    one, other = small.slice(5, 30), large.slice(5, 30)
    assert isinstance(other.sentences, Spool)
    assert (other.fingerprint, len(other)) == (one.fingerprint, 25)


def test_every_field_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 1)
    odd = (
        Sentence("half \ud83d a pair"),
        Sentence("", pair="", label=""),
        Sentence("a b", ("a", "b"), pair="p", label="l", tags={"upos": ("X", "Y"), "xpos": ("1", "2")}),
        Sentence("", (), tags={}),
        Sentence("x", label="l"),
    )
    found, positions = gather(zip((0, 2, 3, 7, 9), odd, strict=True))
    assert tuple(found) == odd
    assert list(positions) == [0, 2, 3, 7, 9]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(n: int) -> int:
        path = tmp_path / f"{n}.jsonl"
        with path.open("w") as f:
            f.writelines(json.dumps({"text": f"{'a sentence ' * 10}{k}", "label": k % 2}) + "\n" for k in range(n))
        tracemalloc.start()
        try:
            corpus = read_corpus(str(path))
            assert len(corpus) == n
            assert len(corpus.fingerprint) == 64
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(10_000), peak(40_000)
    assert large - small < 30_000 * 40, "a few numbers a row stay in memory, not its text"
