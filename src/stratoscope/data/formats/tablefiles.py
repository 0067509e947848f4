"""Table files: JSON lines, CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.extras import first_line, optional_module
from stratoscope.data.formats.tables import Literal, Table, no_rows
from stratoscope.data.formats.textfile import numbered_lines, text_stream

IGNORED = "_"
"""Name of a column nobody wants."""
LONGEST_FIELD = 2**31 - 1
"""Characters of one field; the csv module stops at 131,072 unless told."""
BATCH_ROWS = 1024
"""Rows of a Parquet file held at once."""
_OTHER_SEPARATOR = re.compile(r"\S[;\t]\S")
"""Between two names; a sentence in the place of a header has a blank after its semicolon."""


def column_names(columns: str) -> tuple[str, ...]:
    """The names in a `--columns` string such as "word pos chunk"; `_` may repeat, other names may not."""
    names = tuple(columns.split())
    used = [n for n in names if n != IGNORED]
    if not used or len(set(used)) < len(used):
        raise StratoscopeError(
            f"--columns: expected different names separated by blanks, got '{columns}'; "
            f'name each column once and those to ignore {IGNORED}, for example "word pos {IGNORED}"'
        )
    return names


def jsonl_table(path: Path) -> Table:
    """One JSON object a line; columns are all keys seen, in order, those of an object inside it as `outer.inner`."""
    columns = tuple(dict.fromkeys(key for row in _json_rows(path) for key in row))
    if not columns and next(_json_rows(path), None) is None:
        raise no_rows(path)
    return Table(str(path), columns, lambda names: _json_rows(path))


def _json_rows(path: Path) -> Iterator[dict[str, object]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_int=Literal, parse_float=Literal, parse_constant=Literal)
        except (json.JSONDecodeError, RecursionError) as e:
            raise StratoscopeError(
                f"{path}: line {number}: expected one JSON object, got bad JSON ({e}); fix or remove the line"
            ) from e
        if not isinstance(row, dict):
            raise StratoscopeError(
                f"{path}: line {number}: expected one JSON object, got {line.strip()[:40]}; "
                'write each row as {"text": ..., "label": ...}'
            )
        yield _flat(row)


def _flat(row: dict[str, object]) -> dict[str, object]:
    """A row whose objects are replaced by their values, each named by its path; a key with dots of its own wins."""
    left, flat = list(row.items())[::-1], dict[str, object]()
    while left:
        name, value = left.pop()
        if isinstance(value, dict) and value:
            left += [(f"{name}.{key}", inner) for key, inner in value.items() if f"{name}.{key}" not in row][::-1]
        else:
            flat[name] = value
    return flat


def csv_table(path: Path, columns: str | None = None) -> Table:
    """Comma-separated with quotes; the first line names the columns unless `columns` does."""
    header = next((line.strip() for _, line in numbered_lines(path) if line.strip()), "")
    if columns is None and "," not in header and _OTHER_SEPARATOR.search(header):
        got = "tabs" if "\t" in header else "semicolons"
        raise StratoscopeError(
            f"{path}: expected columns separated by commas, got {got} on the first line ({header[:60]!r}); save it with"
            " commas, or with tabs as .tsv"
        )
    return _delimited(path, lambda: _csv_records(path), columns)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    with text_stream(path) as text:
        reader = csv.reader(text, strict=True)
        while True:
            # A long text is no broken record, but the limit belongs to the whole program: it is put back.
            limit = csv.field_size_limit()
            csv.field_size_limit(max(limit, LONGEST_FIELD))
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                raise StratoscopeError(
                    f"{path}: line {reader.line_num}: expected comma-separated values, got a broken record ({e}); "
                    "fix the line"
                ) from e
            finally:
                csv.field_size_limit(limit)
            if record:
                yield reader.line_num, record


def tsv_table(path: Path, columns: str | None = None) -> Table:
    """Tab-separated as GLUE writes it: quotes are ordinary characters and every line is a row."""
    return _delimited(path, lambda: ((n, line.split("\t")) for n, line in numbered_lines(path) if line), columns)


def parquet_table(path: Path) -> Table:
    """Parquet; only the columns wanted are read."""
    parquet = optional_module("pyarrow.parquet", extra="parquet", wanted_for=f"{path}: reading Parquet")
    with _parquet_errors(path):
        names = tuple(parquet.read_schema(path).names)

    def rows(wanted: tuple[str, ...]) -> Iterator[Mapping[str, object]]:
        with _parquet_errors(path), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted)):
                yield from batch.to_pylist()

    return Table(str(path), names, rows)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """The footer is read first and the pages later; either may be damaged, or of a kind pyarrow does not know."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as e:
        raise StratoscopeError(
            f"{path}: expected a Parquet file, got something unreadable ({first_line(e)}); write it again"
        ) from e


def _delimited(path: Path, read: Callable[[], Iterator[tuple[int, list[str]]]], columns: str | None) -> Table:
    if columns is None:
        names = tuple(next(read(), (0, ()))[1])
        if not names:
            raise no_rows(path)
        named = [n for n in names if n]
        if len(set(named)) < len(named):
            raise StratoscopeError(
                f"{path}: expected different column names on the first line, got {', '.join(named)}; rename one"
            )
    else:
        names = column_names(columns)

    def rows(wanted: tuple[str, ...]) -> Iterator[dict[str, object]]:
        for number, record in islice(read(), 1 if columns is None else 0, None):
            if len(record) != len(names):
                raise StratoscopeError(
                    f"{path}: line {number}: expected {len(names)} columns ({', '.join(names)}), got {len(record)}",
                    "fix the line",
                    "name the columns of a file without a header with --columns",
                )
            yield dict(zip(names, record, strict=True))

    if next(rows(()), None) is None:
        raise no_rows(path)
    used = tuple(dict.fromkeys(n for n in names if n and n != IGNORED))
    ways = ("name the columns with --columns if the file has no header",) if columns is None else ()
    return Table(str(path), used, rows, ways)
