"""Rows of a task: found in a GLUE-style folder, read from tables, with texts and labels as the source writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.data.formats.tables import Table, to_corpus
from stratoscope.data.formats.textfile import numbered_lines
from stratoscope.data.readers import HEADERLESS, TABLES
from stratoscope.data.tasks.spec import Columns, Folder

CHOICES_IN_TEXT = 4
Texts = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class TaskRows:
    """Rows as read: texts and labels in the source's own words."""

    source: str
    """File or hub data set, for messages."""
    texts: tuple[Texts, ...]
    labels: tuple[str | None, ...]
    positions: tuple[int, ...]
    """Index of each row in the source."""
    skipped: int = 0
    """Rows left out because a text was blank."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column that text, pair and label were read from; empty where a task of many columns fixes them."""

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, keep: Iterable[int]) -> TaskRows:
        """Some of the rows."""
        k = tuple(keep)
        return TaskRows(
            self.source,
            tuple(self.texts[i] for i in k),
            tuple(self.labels[i] for i in k),
            tuple(self.positions[i] for i in k),
            columns=self.columns,
        )


def folder_files(folder: Path, layout: Folder) -> list[Path]:
    """The training and the validation file, or the one that is there; test files have no labels and are never read.

    A folder of many tasks will do: the subfolder of the task's name is looked into next.
    """
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing of that name"
        raise StratoscopeError(
            f"{folder}: expected a folder with the files of {layout.name}, got {got}; check the path, "
            "or give your own file as data"
        )
    for place in (folder, folder / layout.name):
        files = [path for path in (_find(place, layout.train), _find(place, layout.validation)) if path is not None]
        if files:
            break
    else:
        raise StratoscopeError(
            f"{folder}: expected the files of {layout.name}, {' or '.join(layout.train)} and "
            f"{' or '.join(layout.validation)}, got neither; check the folder"
        )
    return files


def file_table(path: Path, header: str | None = None) -> Table:
    """A table file, or a text file of multiple-choice items."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return choice_lines(path)
    if header is not None and suffix in HEADERLESS:
        return HEADERLESS[suffix](path, header)
    if suffix not in TABLES:
        raise no_table(path)
    return TABLES[suffix](path)


def no_table(path: Path) -> StratoscopeError:
    """The error for a file whose rows have no columns, and so no labels."""
    got = path.suffix.lower() or path.name
    return StratoscopeError(f"{path}: expected a file ending in {', '.join(TABLES)}, got '{got}'; rename or convert it")


def choice_lines(path: Path) -> Table:
    """Multiple choice in plain text, six lines an item: context, index of the right ending, four endings."""
    lines = [line for _, line in numbered_lines(path)]
    while lines and not lines[-1].strip():
        lines.pop()
    size = 2 + CHOICES_IN_TEXT
    if not lines or len(lines) % size:
        raise StratoscopeError(
            f"{path}: expected {size} lines an item (context, index of the right ending, {CHOICES_IN_TEXT} endings), "
            f"got {len(lines)} lines; fix the file"
        )
    items = [lines[k : k + size] for k in range(0, len(lines), size)]
    rows = [{"ctx": item[0], "label": item[1].strip(), "endings": item[2:]} for item in items]
    return Table(str(path), ("ctx", "label", "endings"), lambda wanted: rows)


def table_rows(table: Table, columns: Columns) -> TaskRows:
    """Read the columns a task names."""
    needed = [c for c in (*columns.text, columns.pair, *columns.choices, columns.label) if c is not None]
    missing = [c for c in needed if c not in table.columns]
    if missing:
        what = "multiple-choice columns" if columns.choices else "columns"
        raise StratoscopeError(
            f"{table.source}: expected the {what} {', '.join(needed)}, got no {', '.join(missing)}; "
            f"rename the columns ({', '.join(table.columns)})"
        )
    if columns.choices:
        return _choice_rows(table, columns)
    (text,) = columns.text
    return corpus_rows(table.source, [to_corpus(table, "", text=text, pair=columns.pair, label=columns.label)])


def corpus_rows(source: str, corpora: list[Corpus]) -> TaskRows:
    """One (text, pair) of each corpus a row; rows that any of them skipped for a blank text are left out."""
    by_position = [dict(zip(c.positions, c.sentences, strict=True)) for c in corpora]
    common = sorted(set(by_position[0]).intersection(*by_position[1:]))
    if not common:
        raise StratoscopeError(
            f"{source}: expected rows with a text in every choice, got a blank one in each row; fix them"
        )
    return TaskRows(
        source,
        tuple(tuple((f[k].text, f[k].pair) for f in by_position) for k in common),
        tuple(by_position[0][k].label for k in common),
        tuple(common),
        skipped=len(corpora[0]) + corpora[0].skipped - len(common),
        columns=corpora[0].columns if len(corpora) == 1 else {},
    )


def _choice_rows(table: Table, columns: Columns) -> TaskRows:
    """Multiple choice as one pair of texts per choice, each checked as any pair of columns is."""
    needed = (*columns.text, *columns.choices, columns.label)
    text = " + ".join(columns.text)
    rows: list[Mapping[str, object]] = []
    names: tuple[str, ...] = ()
    for k, row in enumerate(table.rows(needed)):
        choices = _choices(row, columns)
        names = names or tuple(choices)
        if len(choices) < 2 or tuple(choices) != names:
            raise StratoscopeError(
                f"{table.source}: row {k + 1}: expected {len(names) if len(names) > 1 else 'two or more'} choices in "
                f"{', '.join(columns.choices)}, got {len(choices)}; give every row the same number"
            )
        rows.append(
            {text: _joined([row.get(c) for c in columns.text]), columns.label: row.get(columns.label), **choices}
        )
    if not rows:
        raise StratoscopeError(f"{table.source}: expected multiple-choice rows, got no rows; give a file with data")
    flat = Table(table.source, (text, columns.label, *names), lambda _: rows)
    pairs = [to_corpus(flat, "", text=text, pair=name, label=columns.label) for name in names]
    return corpus_rows(table.source, pairs)


def _choices(row: Mapping[str, object], columns: Columns) -> dict[str, object]:
    """The choices of one row under the names of their columns."""
    if len(columns.choices) > 1:
        return {c: row.get(c) for c in columns.choices}
    (name,) = columns.choices
    values = row.get(name)
    return {f"{name} {i}": value for i, value in enumerate(values if isinstance(values, list | tuple) else ())}


def _joined(parts: list[object]) -> object:
    """Texts joined by a blank; the first that is no text stays as it is, to be refused by the name of its column."""
    if len(parts) == 1:
        return parts[0]
    odd = [p for p in parts if not isinstance(p, str)]
    return odd[0] if odd else " ".join(str(p).strip() for p in parts)


def _find(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    for pattern in patterns:
        matches = sorted(p for p in folder.glob(pattern) if p.is_file())
        if len(matches) > 1:
            raise StratoscopeError(
                f"{folder}: expected one file {pattern}, got {', '.join(p.name for p in matches)}; keep one of them"
            )
        if matches:
            return matches[0]
    return None
