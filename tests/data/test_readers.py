"""The extension chooses the reader; every format gives the same corpus; options that do not apply are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data import readers
from stratoscope.data.corpus import Sentence
from stratoscope.data.formats.tables import Table
from stratoscope.data.readers import corpus_of, read_corpus

TEXTS = ["First sentence.", 'A "quoted", one.', "Größe: 5 m²"]
LABELS = ["1", "0", "1"]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_plain_text_skips_blank_lines(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path / "a.txt", "one \n\n  \ntwo\r\nthree"))
    assert corpus.sentences == (Sentence("one "), Sentence("two"), Sentence("three"))
    assert (corpus.name, corpus.positions, corpus.skipped) == ("a.txt", (0, 1, 2), 0)


def test_every_format_gives_one_fingerprint(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = list(zip(TEXTS, LABELS, strict=True))
    lines = "".join(json.dumps({"text": t, "label": int(y)}) + "\n" for t, y in rows)
    sources = [write(tmp_path / f"a.{suffix}", lines) for suffix in ("jsonl", "ndjson", "json-lines", "JSONL")]
    sources.append(write(tmp_path / "b.tsv", "label\ttext\n" + "".join(f"{y}\t{t}\n" for t, y in rows)))
    quoted = "".join('"{}",{}\n'.format(t.replace('"', '""'), y) for t, y in rows)
    sources.append(write(tmp_path / "c.csv", "\ufefftext,label\n" + quoted))
    parquet.write_table(pyarrow.table({"text": TEXTS, "label": [int(y) for y in LABELS]}), tmp_path / "d.parquet")
    sources.append(str(tmp_path / "d.parquet"))
    (tmp_path / "deep").mkdir()
    sources.append(write(tmp_path / "deep" / "e.jsonl", lines))
    assert len({read_corpus(s).fingerprint for s in sources}) == 1
    changed = write(tmp_path / "f.jsonl", lines.replace("First", "first"))
    assert read_corpus(changed).fingerprint != read_corpus(sources[0]).fingerprint


def test_plain_text_and_an_unlabelled_table_are_the_same(tmp_path: Path) -> None:
    plain = read_corpus(write(tmp_path / "a.txt", "\n\n".join(TEXTS)))
    table = read_corpus(write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": t}) for t in TEXTS)))
    assert plain.fingerprint == table.fingerprint


def test_columns_turn_text_into_words(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "He PRP\nleft VBD\n")
    assert read_corpus(source).sentences[0].text == "He PRP"
    assert read_corpus(source, columns="word pos").sentences[0].words == ("He", "left")
    for suffix in (".conll", ".cols"):
        assert read_corpus(write(tmp_path / f"b{suffix}", "He PRP\n"), columns="word pos").sentences[0].words == ("He",)


def test_named_columns_reach_the_table(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "a,b,c\nx,y,z\n")
    (s,) = read_corpus(source, text="b", pair="c", label="a").sentences
    assert (s.text, s.pair, s.label) == ("y", "z", "x")
    (s,) = read_corpus(write(tmp_path / "b.tsv", "x\ty\n"), columns="label text").sentences
    assert (s.text, s.label) == ("y", "x")


def test_conllu(tmp_path: Path) -> None:
    source = write(tmp_path / "a.conllu", "1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n")
    assert read_corpus(source).sentences[0].tags == {"upos": ("INTJ",), "xpos": ("UH",)}


def test_an_existing_path_is_local_and_other_names_go_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def table(source: str, *, split: str | None, revision: str | None) -> Table:
        asked.append(source)
        return Table(source, ("text",), lambda wanted: [{"text": "x"}])

    monkeypatch.setattr(readers, "hub_table", table)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imdb").mkdir()
    with pytest.raises(StratoscopeError, match="--data imdb: expected a file, got a folder; name one file in it"):
        read_corpus("imdb")
    for name in ("sst2", "org/name", "glue:sst2", "org/set.v2"):
        read_corpus(name)
    assert asked == ["sst2", "org/name", "glue:sst2", "org/set.v2"]


@pytest.mark.parametrize("source", ["gone.jsonl", "data/gone.CSV", "./gone", "/no/such/gone", "a/b/c", "~/gone", ":x"])
def test_a_missing_file_never_asks_the_hub(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(readers, "hub_table")
    with pytest.raises(
        StratoscopeError, match=f"--data {source}: expected a file, but it does not exist; check the path"
    ):
        read_corpus(source)


@pytest.mark.parametrize(("name", "got"), [("a.docx", "'.docx'"), ("a", "'a'")])
def test_an_unknown_extension_lists_the_known(tmp_path: Path, name: str, got: str) -> None:
    with pytest.raises(
        StratoscopeError,
        match=rf"expected a file ending in \.txt, \.jsonl, .*\.conllu, .*, got {got}; rename or convert",
    ):
        read_corpus(write(tmp_path / name, "text"))


def test_a_column_file_needs_columns(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"a\.conll: expected --columns for a \.conll file, got none; name its"):
        read_corpus(write(tmp_path / "a.conll", "a b\n"))


def test_empty_plain_text(tmp_path: Path) -> None:
    with pytest.raises(
        StratoscopeError, match=r"a\.txt: expected one sentence a line, got no text; give a file with data"
    ):
        read_corpus(write(tmp_path / "a.txt", "\n \n"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.txt", {"text": "x"}, r"is not a table .*: --text 'x' does not apply; leave it out"),
        ("a.conllu", {"label": "x"}, "is not a table .*: --label 'x' does not apply"),
        ("a.conllu", {"columns": "word"}, "is CoNLL-U, whose columns are fixed: --columns 'word' does not apply"),
        ("a.jsonl", {"columns": "word"}, "is a table, whose columns have names: --columns 'word' does not apply"),
        ("a.jsonl", {"split": "train"}, "is a file, not a hub data set: --split 'train' does not apply"),
        ("a.jsonl", {"revision": "r"}, "is a file, not a hub data set: --revision 'r' does not apply"),
        (None, {"columns": "word"}, "is a hub data set, whose columns have names: --columns 'word' does not apply"),
    ],
)
def test_options_that_do_not_apply(tmp_path: Path, name: str | None, options: dict[str, str], words: str) -> None:
    source = "org/set" if name is None else write(tmp_path / name, '{"text": "a"}\n')
    with pytest.raises(StratoscopeError, match=words):
        read_corpus(source, **options)


def test_texts_and_tables_in_memory_are_what_their_files_are(tmp_path: Path) -> None:
    plain = read_corpus(write(tmp_path / "a.txt", "\n".join(TEXTS)))
    for texts in (TEXTS, tuple(TEXTS), pd.Series(TEXTS), np.array(TEXTS), iter(TEXTS)):
        assert corpus_of(texts).fingerprint == plain.fingerprint
    assert corpus_of(["a", " ", "b"]).positions == (0, 2)
    rows = [{"text": t, "label": int(k), "other": None} for t, k in zip(TEXTS, LABELS, strict=True)]
    stored = read_corpus(write(tmp_path / "a.jsonl", "\n".join(json.dumps(r) for r in rows)))
    frame = pd.DataFrame(rows)
    for table in (rows, frame, frame.convert_dtypes(), frame.set_index("other")):
        assert corpus_of(table).fingerprint == stored.fingerprint
    assert corpus_of(frame).columns == {"text": "text", "label": "label"}
    renamed = frame.rename(columns={"text": "what was said", "label": "verdict"})
    assert corpus_of(renamed, text="what was said", label="verdict").fingerprint == stored.fingerprint
    assert corpus_of(str(tmp_path / "a.txt")).fingerprint == corpus_of(tmp_path / "a.txt").fingerprint


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        ([], {}, "expected texts, got none"),
        (["a", 7], {}, r"got int \(7\) at position 1"),
        ([" "], {}, "expected texts, got none"),
        (7, {}, "a list of texts or a data frame, got int"),
        (b"text", {}, "got bytes"),
        ({"text": ["a"]}, {}, "got dict"),
        (["a"], {"text": "t"}, "text='t' says how to read a file"),
        (pd.DataFrame({"x": ["a"], "y": ["b"]}), {}, "name the text with --text"),
        (pd.DataFrame({"text": ["a"]}), {"split": "dev"}, "data is in memory"),
        (pd.DataFrame({"text": ["a", None]}), {}, "row 2, column 'text': expected text"),
    ],
)
def test_what_in_memory_is_no_text(data: Any, how: dict[str, str], words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        corpus_of(data, **how)
