"""JSON lines, CSV, TSV and Parquet: their quirks and their damage."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.formats.tablefiles import column_names, csv_table, jsonl_table, parquet_table, tsv_table
from stratoscope.data.formats.tables import Table, to_corpus


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def rows(table: Table) -> list[dict[str, object]]:
    return [dict(row) for row in table.rows(table.columns)]


def test_jsonl_keeps_numbers_as_written_and_collects_all_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '\ufeff{"text": "a\\nb", "label": 5.000}\r\n\n{"text": "c", "x": null, "label": 10}\n'
    )
    table = jsonl_table(path)
    assert table.columns == ("text", "label", "x")
    corpus = to_corpus(table, "a")
    assert [(s.text, s.label) for s in corpus.sentences] == [("a\nb", "5.000"), ("c", "10")]
    assert corpus.positions == (0, 1)


def test_fields_of_objects_are_named_by_their_path(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        '{"id": 1, "payload": {"text": "a b", "meta": {"y": 3}}, "e": {}}\n'
        '{"payload": {"text": "c d"}, "payload.text": "own"}\n',
    )
    table = jsonl_table(path)
    assert table.columns == ("id", "payload.text", "payload.meta.y", "e")
    corpus = to_corpus(table, "a", text="payload.text", label="payload.meta.y")
    assert [(s.text, s.label) for s in corpus.sentences] == [("a b", "3"), ("own", None)]
    with pytest.raises(StratoscopeError, match=r"'payload'; did you mean 'payload.text'\?"):
        to_corpus(table, "a", text="payload")


@pytest.mark.parametrize("bad", ['{"text": }', '{"text": "a"', "[" * 100_000])
def test_jsonl_bad_json_names_the_line(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + bad + "\n")
    with pytest.raises(StratoscopeError, match=r"a\.jsonl: line 3: expected one JSON object, got bad JSON \(.*; fix"):
        jsonl_table(path)


@pytest.mark.parametrize("bad", ['"text"', "[1, 2]", "3"])
def test_jsonl_line_that_is_no_object(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path / "a.jsonl", bad)
    with pytest.raises(StratoscopeError, match=r'line 1: expected one JSON object, got .*; write each row as \{"text"'):
        jsonl_table(path)


def test_csv_reads_quotes_commas_and_newlines_inside_a_field(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufefftext,label\r\n"one, ""two""\r\nthree",1\r\n\r\nplain,0\r\n')
    assert rows(csv_table(path)) == [
        {"text": 'one, "two"\r\nthree', "label": "1"},
        {"text": "plain", "label": "0"},
    ]


def test_tsv_takes_quotes_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", '\ufeffQuality\t#1 String\t#2 String\n1\t" open\tshut "\n0\tx "y" z\t"\n')
    corpus = to_corpus(tsv_table(path), "a")
    assert [(s.text, s.pair, s.label) for s in corpus.sentences] == [('" open', 'shut "', "1"), ('x "y" z', '"', "0")]


def test_tables_without_a_header(tmp_path: Path) -> None:
    cola = write(tmp_path / "a.tsv", "gj04\t1\t\tThe sailors slept.\ngj04\t0\t*\tSlept sailors the.\n")
    corpus = to_corpus(tsv_table(cola, "_ label _ text"), "a")
    assert [(s.text, s.label) for s in corpus.sentences] == [("The sailors slept.", "1"), ("Slept sailors the.", "0")]
    comma = write(tmp_path / "a.csv", "1,good\n")
    assert rows(csv_table(comma, "label text")) == [{"label": "1", "text": "good"}]


def test_a_forgotten_header_suggests_naming_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "gj04\t1\t\tThe sailors slept.\ngj04\t0\t*\tSlept sailors the.\n")
    with pytest.raises(StratoscopeError, match="--text or name the columns with --columns if the file has no header"):
        to_corpus(tsv_table(path), "a")


def test_unnamed_columns_are_left_alone(tmp_path: Path) -> None:
    assert csv_table(write(tmp_path / "a.csv", ",text,\n0,a,\n")).columns == ("text",)


@pytest.mark.parametrize(("record", "got"), [("a", 1), ("a\tb\tc", 3)])
def test_ragged_rows_name_the_line(tmp_path: Path, record: str, got: int) -> None:
    text = f"text\tlabel\nx\t1\n{record}\n"
    with pytest.raises(
        StratoscopeError, match=rf"a\.tsv: line 3: expected 2 columns \(text, label\), got {got}; fix .*--columns"
    ):
        rows(tsv_table(write(tmp_path / "a.tsv", text)))
    with pytest.raises(StratoscopeError, match=rf"a\.csv: line 3: expected 2 columns \(text, label\), got {got}"):
        rows(csv_table(write(tmp_path / "a.csv", text.replace("\t", ","))))


def test_csv_with_a_quote_that_never_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"a,1\nb,2\n')
    with pytest.raises(
        StratoscopeError, match=r"a\.csv: line \d: expected comma-separated values, got a broken record"
    ):
        csv_table(path)


@pytest.mark.parametrize("quote", ["", '"'])
def test_csv_takes_texts_of_any_length_and_leaves_the_programs_limit_alone(tmp_path: Path, quote: str) -> None:
    limit = csv.field_size_limit()
    long = "word " * 40_000
    assert len(long) > limit
    path = write(tmp_path / "a.csv", f"text,label\n{quote}{long}{quote},1\n")
    assert rows(csv_table(path)) == [{"text": long, "label": "1"}]
    assert csv.field_size_limit() == limit
    with pytest.raises(StratoscopeError, match="broken record"):
        csv_table(write(tmp_path / "b.csv", f'text,label\n"{long},1\n'))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text;label\nfine, really;1\n", r"got semicolons on the first line \('text;label'\)"),
        ('"text";"label"\r\n"fine";"1"\r\n', r"got semicolons on the first line \('\"text\";\"label\"'\)"),
        ("text\tlabel\nfine\t1\n", r"got tabs on the first line \('text\\tlabel'\)"),
    ],
)
def test_csv_with_another_separator(tmp_path: Path, content: str, words: str) -> None:
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(
        StratoscopeError,
        match=rf"a\.csv: expected columns separated by commas, {words}; save it with commas, or with tabs as \.tsv$",
    ):
        csv_table(path)


def test_csv_with_semicolons_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text\na;b\nc\td\n")
    assert rows(csv_table(path)) == [{"text": "a;b"}, {"text": "c\td"}]
    both = write(tmp_path / "b.csv", "text,a;b\nx,y\n")
    assert csv_table(both).columns == ("text", "a;b")
    sentences = write(tmp_path / "c.csv", "I came; I saw\nI left\n")
    assert rows(csv_table(sentences, "text")) == [{"text": "I came; I saw"}, {"text": "I left"}]
    assert csv_table(sentences).columns == ("I came; I saw",)


def test_duplicate_header(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="expected different column names on the first line, got text, text; "):
        csv_table(write(tmp_path / "a.csv", "text,text\na,b\n"))


@pytest.mark.parametrize("text", ["", "\n", "text,label\n"])
def test_empty_tables(tmp_path: Path, text: str) -> None:
    words = "expected rows of text, got no rows; give a file with data"
    with pytest.raises(StratoscopeError, match=words):
        csv_table(write(tmp_path / "a.csv", text))
    with pytest.raises(StratoscopeError, match=words):
        tsv_table(write(tmp_path / "a.tsv", text.replace(",", "\t")))
    with pytest.raises(StratoscopeError, match=words):
        jsonl_table(write(tmp_path / "a.jsonl", ""))


@pytest.mark.parametrize("columns", ["", "  ", "word word", "_ _"])
def test_column_names_must_differ(columns: str) -> None:
    with pytest.raises(StratoscopeError, match="--columns: expected different names separated by blanks, got '"):
        column_names(columns)


def test_column_names_may_ignore_many() -> None:
    assert column_names(" word _  pos _ ") == ("word", "_", "pos", "_")


def test_parquet_reads_only_what_is_wanted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {"text": ["a", "b"], "label": [1, 0], "heavy": [[1.0], [2.0]]}
    parquet.write_table(pyarrow.table(columns), path)
    table = parquet_table(path)
    assert table.columns == ("text", "label", "heavy")
    assert list(table.rows(("text", "label"))) == [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    with pytest.raises(StratoscopeError, match="row 1, column 'heavy': expected text, got a list of 1"):
        to_corpus(table, "a", text="heavy")


def test_parquet_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(
        StratoscopeError, match=r"a\.parquet: expected a Parquet file, got something unreadable \(.*write"
    ):
        parquet_table(write(tmp_path / "a.parquet", "text,label\na,1\n"))


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_parquet_with_a_good_footer_and_damaged_pages(tmp_path: Path, compression: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    texts = pyarrow.table({"text": [f"sentence {k}" for k in range(2000)]})
    pytest.importorskip("pyarrow.parquet").write_table(texts, path, compression=compression)
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 400 + data[404:])
    table = parquet_table(path)
    assert table.columns == ("text",)
    with pytest.raises(
        StratoscopeError, match=r"a\.parquet: expected a Parquet file, got something unreadable \(.*; write it again$"
    ) as e:
        to_corpus(table, "a")
    assert "\n" not in str(e.value)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(
        StratoscopeError,
        match=r"reading Parquet needs the package pyarrow, which is not installed; run: pip install 'stratoscope\[",
    ):
        parquet_table(tmp_path / "a.parquet")
