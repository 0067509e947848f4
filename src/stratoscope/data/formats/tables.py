"""Tables to corpora: which columns hold text, pair and label, and whether their values really are text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.data.corpus import Corpus, Sentence, gather

PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "passage"),
    ("question", "sentence"),
    ("context", "question"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("#1 string", "#2 string"),
)
"""Well-known names of the two texts of a pair; found in any case."""

# fmt: off
TEXTS = (
    "text", "sentence", "review", "content", "review_text", "review_body", "body", "comment", "comment_text", "tweet",
    "snippet", "document", "article", "utterance", "question", "passage", "context",
)
"""Well-known names of a single text."""

LABELS = (
    "label", "labels", "gold_label", "class", "target", "category", "sentiment", "polarity", "rating", "stars", "score",
    "answer", "quality", "is_duplicate",
)
"""Well-known names of a label; `label` itself wins over the others."""
# fmt: on

JUDGED, RETURNS = 30, 10
"""Rows from which on single words that come back so often, on average, are taken for labels."""
MOST_CLASSES = 10_000
"""More different words than these are no names of classes."""

_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


class Literal(str):
    """The text form of a value that is not text: a number as it was written, or the name of a class."""


@dataclass(frozen=True)
class Table:
    """Named columns and a way to read some of them."""

    source: str
    """File or hub data set as the user knows it, for messages."""
    columns: tuple[str, ...]
    rows: Callable[[tuple[str, ...]], Iterable[Mapping[str, object]]]
    """Rows in source order, holding at least the columns asked for; an absent key is a missing value."""
    ways: tuple[str, ...] = ()
    """What else to do when no column looks like text."""


@dataclass(frozen=True)
class _Roles:
    text: str
    pair: str | None
    label: str | None
    label_named: bool
    """Whether the user named the label column; a guessed one that holds no labels is left alone."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for c in (*self.texts, self.label) if c is not None))


def to_corpus(
    table: Table, name: str, *, text: str | None = None, pair: str | None = None, label: str | None = None
) -> Corpus:
    """One sentence per row, blank ones skipped and counted; columns not named by the caller are inferred."""
    roles = _roles(table, text=text, pair=pair, label=label)
    try:
        return _read(table, name, roles)
    except _NoLabelsError:  # a guessed column
        return _read(table, name, replace(roles, label=None))


def _read(table: Table, name: str, roles: _Roles) -> Corpus:
    count, labelled = 0, False

    def rows() -> Iterator[tuple[int, Sentence]]:
        nonlocal count, labelled
        for k, row in enumerate(table.rows(roles.columns)):
            count = k + 1
            label = _label(table, k, row, roles)
            labelled |= label is not None
            texts = [_text(table, k, column, row.get(column)) for column in roles.texts]
            if all(t.strip() for t in texts):
                yield k, Sentence(texts[0], pair=texts[1] if len(texts) > 1 else None, label=label)

    sentences, positions = gather(rows())
    if not count:
        raise no_rows(table.source)
    if not sentences:
        raise StratoscopeError(
            f"{table.source}: no usable text: expected it in {_list(roles.texts)}, got only blanks ({count} rows)",
            f"name another column with --text (columns: {_list(table.columns)})",
        )
    columns = {"text": roles.text, "pair": roles.pair, "label": roles.label if labelled else None}
    used = {role: column for role, column in columns.items() if column is not None}
    corpus = Corpus(name, sentences, positions, skipped=count - len(sentences), columns=used)
    _check_texts(table, roles, corpus)
    return corpus


def no_rows(source: object) -> StratoscopeError:
    """The error for a source without any row."""
    return StratoscopeError(f"{source}: expected rows of text, got no rows; give a file with data")


def _roles(table: Table, *, text: str | None, pair: str | None, label: str | None) -> _Roles:
    flags = {"--text": text, "--pair": pair, "--label": label}
    for flag, column in flags.items():
        if column is not None and column not in table.columns:
            raise unknown_name(f"{flag} column of {table.source}", column, table.columns)
    named = [column for column in flags.values() if column is not None]
    if len(set(named)) < len(named):
        raise StratoscopeError(
            f"{table.source}: expected different columns for --text, --pair and --label, got {_list(named)}; "
            f"choose from: {_list(table.columns)}"
        )
    if text is None:
        text, pair = _infer_texts(table, pair, label)
    return _Roles(text, pair, label or _infer_label(table, (text, pair)), label_named=label is not None)


def _infer_texts(table: Table, pair: str | None, label: str | None) -> tuple[str, str | None]:
    """The one well-known text, or pair of texts, among the columns."""
    known = {c.strip().casefold(): c for c in table.columns if c not in (label, pair)}
    if pair is None:
        candidates: list[tuple[str, str | None]] = [(known[a], known[b]) for a, b in PAIRS if a in known and b in known]
    else:
        candidates = [(known[a], pair) for a, b in PAIRS if a in known and b == pair.strip().casefold()]
    taken = {column for both in candidates for column in both}
    candidates += [(known[t], pair) for t in TEXTS if t in known and known[t] not in taken]
    if not candidates and len(known) == 1:
        candidates = [(next(iter(known.values())), pair)]
    if not candidates:
        raise StratoscopeError(
            f"{table.source}: expected a column with a well-known name such as {_list(TEXTS[:4])}, "
            f"got the columns: {_list(table.columns)}",
            "name the text with --text",
            *table.ways,
        )
    if len(candidates) > 1:
        options = ", or ".join(" with ".join(f"'{c}'" for c in both if c is not None) for both in candidates)
        raise StratoscopeError(
            f"{table.source}: expected one text, got several candidates: {options}",
            f"choose with --text (columns: {_list(table.columns)})",
            "with --text and --pair for two texts",
        )
    return candidates[0]


def _infer_label(table: Table, texts: tuple[str | None, ...]) -> str | None:
    known = {c.strip().casefold(): c for c in table.columns if c not in texts}
    candidates = [known[name] for name in LABELS if name in known]
    if len(candidates) > 1 and candidates[0].strip().casefold() != LABELS[0]:
        raise StratoscopeError(
            f"{table.source}: expected one label column, got several candidates: {_list(candidates)}",
            "choose with --label",
        )
    return candidates[0] if candidates else None


class _NoLabelsError(Exception):
    """A column that looked like the labels by its name holds something else."""


def _label(table: Table, k: int, row: Mapping[str, object], roles: _Roles) -> str | None:
    """The label as a string: numbers keep their text form, booleans are spelled as in JSON, a blank is None."""
    value = None if roles.label is None else row.get(roles.label)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str | int | float):
        return None if value is None or not str(value).strip() else str(value)
    if not roles.label_named:
        raise _NoLabelsError
    raise StratoscopeError(
        f"{table.source}: row {k + 1}, column '{roles.label}': expected a label, got {_describe(value)}",
        f"name another column with --label (columns: {_list(table.columns)})",
    )


def _no_text(table: Table, k: int, column: str, got: str) -> StratoscopeError:
    return StratoscopeError(
        f"{table.source}: row {k + 1}, column '{column}': expected text, got {got}",
        f"name the text column with --text (columns: {_list(table.columns)})",
    )


def _text(table: Table, k: int, column: str, value: object) -> str:
    if isinstance(value, str) and not isinstance(value, Literal):
        return value
    raise _no_text(table, k, column, _describe(value))


def _check_texts(table: Table, roles: _Roles, corpus: Corpus) -> None:
    """Refuse a column that is no text.

    Files without types (CSV) show a label column named as text only by holding nothing but numbers, or a few single
    words over and over; a second text may be so (the choices yes and no). The first row of real text settles it.
    """
    first, row = corpus.sentences[0], corpus.positions[0]
    for column, text, whole in (
        (roles.text, first.text, (s.text for s in corpus.sentences)),
        (roles.pair, first.pair, (s.pair for s in corpus.sentences)),
    ):
        if column is not None and all(t is not None and _NUMBER.fullmatch(t) for t in whole):
            raise _no_text(table, row, column, f"the number {text} and numbers only in the whole column")
    words = set()
    for sentence in corpus.sentences:
        words.add(sentence.text.strip())
        if len(sentence.text.split()) != 1 or len(words) > MOST_CLASSES:
            return
    if len(corpus) >= JUDGED and len(words) <= len(corpus) // RETURNS:
        often = f"no more than {len(words)} different words in {len(corpus)} rows"
        raise _no_text(table, row, roles.text, f"the label '{first.text.strip()}' and {often}")


def _describe(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, Literal) and not _NUMBER.fullmatch(value):
        return f"the label '{value}'"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, int | float | Literal):
        return f"the number {value}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"a value of type {type(value).__name__}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in names)
