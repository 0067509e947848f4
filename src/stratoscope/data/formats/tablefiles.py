"""Table files: JSON lines, CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.extras import optional_module
from stratoscope.data.formats.tables import Literal, Table
from stratoscope.data.formats.textfile import numbered_lines, read_text

IGNORED = "_"
"""Name of a column nobody wants."""
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
    """One JSON object a line; columns are all keys seen, in order."""
    rows: list[dict[str, object]] = []
    for number, line in numbered_lines(path):
        if line.strip():
            try:
                row = json.loads(line, parse_int=Literal, parse_float=Literal, parse_constant=Literal)
            except (json.JSONDecodeError, RecursionError) as e:
                raise StratoscopeError(
                    f"{path}: line {number}: expected one JSON object, got bad JSON ({e}); mend or remove the line"
                ) from e
            if not isinstance(row, dict):
                raise StratoscopeError(
                    f"{path}: line {number}: expected one JSON object, got {line.strip()[:40]}; "
                    'write each row as {"text": ..., "label": ...}'
                )
            rows.append(row)
    if not rows:
        raise _empty(path)
    return Table(str(path), tuple(dict.fromkeys(key for row in rows for key in row)), lambda names: rows)


def csv_table(path: Path, columns: str | None = None) -> Table:
    """Comma-separated with quotes; the first line names the columns unless `columns` does."""
    text = read_text(path)
    header = text.lstrip().partition("\n")[0].rstrip()
    if columns is None and "," not in header and _OTHER_SEPARATOR.search(header):
        got = "tabs" if "\t" in header else "semicolons"
        raise StratoscopeError(
            f"{path}: expected columns separated by commas, got {got} on the first line ({header[:60]!r}); save it with"
            " commas, or with tabs as .tsv"
        )
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
        try:
            for record in reader:
                if record:
                    yield reader.line_num, record
        except csv.Error as e:
            raise StratoscopeError(
                f"{path}: line {reader.line_num}: expected comma-separated values, got a broken record ({e}); "
                "mend the line"
            ) from e

    # A long text is no broken record, but the limit belongs to the whole program: it is put back.
    limit = csv.field_size_limit()
    csv.field_size_limit(max(limit, len(text)))
    try:
        return _delimited(path, records(), columns)
    finally:
        csv.field_size_limit(limit)


def tsv_table(path: Path, columns: str | None = None) -> Table:
    """Tab-separated as GLUE writes it: quotes are ordinary characters and every line is a row."""
    return _delimited(path, ((n, line.split("\t")) for n, line in numbered_lines(path) if line), columns)


def parquet_table(path: Path) -> Table:
    """Parquet; only the columns wanted are read."""
    parquet = optional_module("pyarrow.parquet", extra="parquet", wanted_for=f"{path}: reading Parquet")
    with _parquet_errors(path):
        names = tuple(parquet.read_schema(path).names)

    def rows(wanted: tuple[str, ...]) -> Sequence[Mapping[str, object]]:
        with _parquet_errors(path):
            found: list[Mapping[str, object]] = parquet.read_table(path, columns=list(wanted)).to_pylist()
        return found

    return Table(str(path), names, rows)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """The footer is read first and the pages later; either may be damaged, or of a kind pyarrow does not know."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as e:
        reason = (str(e).strip() or type(e).__name__).splitlines()[0].rstrip(".")
        raise StratoscopeError(
            f"{path}: expected a Parquet file, got something unreadable ({reason}); write it again"
        ) from e


def _delimited(path: Path, records: Iterator[tuple[int, list[str]]], columns: str | None) -> Table:
    if columns is None:
        names = tuple(next(records, (0, ()))[1])
        if not names:
            raise _empty(path)
        named = [n for n in names if n]
        if len(set(named)) < len(named):
            raise StratoscopeError(
                f"{path}: expected different column names on the first line, got {', '.join(named)}; rename one"
            )
    else:
        names = column_names(columns)
    rows: list[dict[str, object]] = []
    for number, record in records:
        if len(record) != len(names):
            raise StratoscopeError(
                f"{path}: line {number}: expected {len(names)} columns ({', '.join(names)}), got {len(record)}",
                "mend the line",
                "name the columns of a file without a header with --columns",
            )
        rows.append(dict(zip(names, record, strict=True)))
    if not rows:
        raise _empty(path)
    used = tuple(dict.fromkeys(n for n in names if n and n != IGNORED))
    ways = ("name the columns with --columns if the file has no header",) if columns is None else ()
    return Table(str(path), used, lambda wanted: rows, ways)


def _empty(path: Path) -> StratoscopeError:
    return StratoscopeError(f"{path}: expected rows of text, got no rows; give a file with data")
