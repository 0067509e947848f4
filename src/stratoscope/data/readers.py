"""Read a corpus from wherever the user keeps it: the file's extension chooses the reader, a bare name means the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence, gather
from stratoscope.data.formats.conll import read_columns, read_conllu
from stratoscope.data.formats.hub import DEFAULT_SPLIT, hub_table
from stratoscope.data.formats.tablefiles import csv_table, jsonl_table, parquet_table, tsv_table
from stratoscope.data.formats.tables import Table, to_corpus
from stratoscope.data.formats.textfile import numbered_lines

TABLES: dict[str, Callable[[Path], Table]] = {
    ".jsonl": jsonl_table,
    ".ndjson": jsonl_table,
    ".json-lines": jsonl_table,
    ".csv": csv_table,
    ".tsv": tsv_table,
    ".parquet": parquet_table,
}
"""Reader of each table format."""

HEADERLESS: dict[str, Callable[[Path, str], Table]] = {".csv": csv_table, ".tsv": tsv_table}
"""Tables whose columns `--columns` may name when the file has no header."""

COLUMN_FILES = (".conll", ".cols", ".txt")
"""Files with one word a line once `--columns` is given."""

EXTENSIONS = tuple(dict.fromkeys((".txt", *TABLES, ".conllu", *COLUMN_FILES)))


def read_corpus(
    source: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: str | None = None,
    split: str | None = None,
    revision: str | None = None,
) -> Corpus:
    """Read a file, or a hub data set when no such path exists.

    `text`, `pair` and `label` name columns of a table (else inferred); `columns` names those of a file with one word a
    line, or of a CSV/TSV without a header; `split` and `revision` choose within a hub data set.
    """
    path, roles = Path(source).expanduser(), {"text": text, "pair": pair, "label": label}
    suffix = path.suffix.lower()
    if path.is_dir():
        raise StratoscopeError(f"--data {source}: expected a file, got a folder; name one file in it")
    if not path.exists() and _hub_name(source):
        _refuse(source, {"columns": columns}, "a hub data set, whose columns have names")
        table = hub_table(source, split=split, revision=revision)
        return to_corpus(table, f"{source}/{split or DEFAULT_SPLIT}", **roles)
    if not path.exists():
        raise StratoscopeError(f"--data {source}: expected a file, but it does not exist; check the path")
    _refuse(source, {"split": split, "revision": revision}, "a file, not a hub data set")
    if suffix in TABLES:
        if suffix not in HEADERLESS:
            _refuse(source, {"columns": columns}, "a table, whose columns have names")
        table = TABLES[suffix](path) if columns is None else HEADERLESS[suffix](path, columns)
        return to_corpus(table, path.name, **roles)
    _refuse(source, roles, "not a table (.jsonl, .csv, .tsv, .parquet or a hub data set)")
    if suffix == ".conllu":
        _refuse(source, {"columns": columns}, "CoNLL-U, whose columns are fixed")
        return read_conllu(path)
    if suffix in COLUMN_FILES and columns is not None:
        return read_columns(path, columns)
    if suffix == ".txt":
        return read_plain(path)
    if suffix in COLUMN_FILES:
        raise StratoscopeError(
            f"{path}: expected --columns for a {suffix} file, got none; name its columns, "
            'for example --columns "word pos chunk", with _ for those to ignore'
        )
    raise StratoscopeError(
        f"{path}: expected a file ending in {', '.join(EXTENSIONS)}, got '{suffix or path.name}'; rename or convert it"
    )


def read_plain(path: Path) -> Corpus:
    """One sentence a line; blank lines separate and are no rows."""
    lines = (line for _, line in numbered_lines(path) if line.strip())
    sentences, positions = gather((k, Sentence(line)) for k, line in enumerate(lines))
    if not sentences:
        raise StratoscopeError(f"{path}: expected one sentence a line, got no text; give a file with data")
    return Corpus(path.name, sentences, positions)


def _hub_name(source: str) -> bool:
    """Whether a source that is no path could be `name`, `org/name` or `name:config`."""
    name = source.partition(":")[0]
    known_file = Path(source).suffix.lower() in EXTENSIONS
    return bool(name) and not known_file and name[0] not in "./~\\" and name.count("/") <= 1


def _refuse(source: str, options: dict[str, str | None], what: str) -> None:
    """An option that cannot apply is an error, not silently unused."""
    for name, value in options.items():
        if value is not None:
            raise StratoscopeError(f"--data {source} is {what}: --{name} '{value}' does not apply; leave it out")
