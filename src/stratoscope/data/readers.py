"""Read a corpus from wherever the user keeps it: the file's extension chooses the reader, a bare name means the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home
from stratoscope.data.corpus import Corpus, Sentence, gather
from stratoscope.data.formats.conll import read_columns, read_conllu
from stratoscope.data.formats.hub import DEFAULT_SPLIT, hub_table
from stratoscope.data.formats.tablefiles import csv_table, jsonl_table, parquet_table, tsv_table
from stratoscope.data.formats.tables import Table, to_corpus
from stratoscope.data.formats.textfile import numbered_lines

if TYPE_CHECKING:
    import pandas as pd

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

Data: TypeAlias = "str | Path | Corpus | Iterable[str] | Iterable[Mapping[str, object]] | pd.DataFrame"
"""Text as a caller may have it."""
IN_MEMORY = "data in memory"

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
    path, roles = at_home(source), {"text": text, "pair": pair, "label": label}
    suffix = path.suffix.lower()
    if path.is_dir():
        raise StratoscopeError(f"--data {source}: expected a file, got a folder; name one file in it")
    if not path.exists() and _hub_name(source):
        _refuse(source, {"columns": columns}, "a hub data set, whose columns have names")
        table = hub_table(source, split=split, revision=revision)
        return to_corpus(table, f"{source}/{split or DEFAULT_SPLIT}", **roles)
    if not path.exists():
        raise StratoscopeError(f"--data {source}: expected a file, but it does not exist; check the path")
    if not path.is_file():
        raise StratoscopeError(
            f"--data {source}: expected a file, got a pipe or a device; save the data to a file first"
        )
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


def corpus_of(data: Data, **how: str | None) -> Corpus:
    """Text as a caller has it: a path or hub id, a corpus, texts, or a table in memory; `how` as in `read_corpus`."""
    if isinstance(data, str | Path):
        return read_corpus(str(data), **how)
    given = {name: value for name, value in how.items() if value is not None}
    if not isinstance(data, Corpus):
        to_pandas = getattr(data, "to_pandas", None)  # a Dataset of the hub's library
        frame: Any = data if to_pandas is None else to_pandas()
        if isinstance(frame, bytes | Mapping) or not isinstance(frame, Iterable):
            raise StratoscopeError(
                f"expected data as a path, a hub data set, a list of texts or a data frame, got {type(data).__name__}"
            )
        table: Any = frame
        rows = table.to_dict("records") if hasattr(table, "columns") else list(table)
        if all(isinstance(row, Mapping) for row in rows) and rows:
            roles = {name: given.pop(name, None) for name in ("text", "pair", "label")}
            corpus = to_corpus(_records(rows), IN_MEMORY, **roles)
        else:
            corpus = _texts(rows)
    else:
        corpus = data
    if name := next(iter(given), None):
        what = "a corpus" if isinstance(data, Corpus) else "in memory"
        raise StratoscopeError(f"{name}='{given[name]}' says how to read a file, but data is {what}; leave it out")
    return corpus


def _texts(rows: Sequence[object]) -> Corpus:
    """One sentence per text; blank ones are skipped and counted."""
    for k, row in enumerate(rows):
        if not isinstance(row, str):
            raise StratoscopeError(f"data: expected texts, got {type(row).__name__} ({row!r:.40}) at position {k}")
    sentences, positions = gather((k, Sentence(str(row))) for k, row in enumerate(rows) if str(row).strip())
    if not sentences:
        raise StratoscopeError("data: expected texts, got none; give a list with at least one")
    return Corpus(IN_MEMORY, sentences, positions, skipped=len(rows) - len(sentences))


def _records(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """Rows in memory as a table; what is no value (None, NaN) is missing."""
    import pandas as pd

    columns = dict.fromkeys(str(name) for row in rows for name in row)
    plain = [{str(k): v for k, v in row.items() if not (pd.api.types.is_scalar(v) and pd.isna(v))} for row in rows]
    return Table("data", tuple(columns), lambda wanted: plain)


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
