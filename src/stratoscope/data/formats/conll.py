"""Pre-split sentences with tags: CoNLL-U, and files with one word a line in named columns."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conllu.exceptions import ParseException
from conllu.parser import parse_line

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence, gather
from stratoscope.data.formats.tablefiles import IGNORED, column_names
from stratoscope.data.formats.textfile import numbered_lines

_CONLLU_COLUMNS = 10
_CONLLU_FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
CONLLU_TAGS = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Columns of CoNLL-U that give every word a tag; `feats:Number` and `misc:SpaceAfter` are one key of theirs."""
CONLLU_PAIRS = ("feats", "misc")
"""Columns of keys and values."""
_KEY_VALUE_COMMENT = re.compile(r"#+\s*[^\W\d_]\S*(\s+\S+)?\s+=(\s|$)")
_DOCUMENT_MARK = "-DOCSTART-"


def read_conllu(path: Path, tags: Sequence[str] = ("upos", "xpos")) -> Corpus:
    """Syntactic words (integer ids) with these tags; multi-word ranges and empty nodes are left out.

    A tag is a column of `CONLLU_TAGS`, or one key of it, such as `feats:Number`; `_` where a word has none.
    """
    return _corpus(path, (_conllu_sentence(path, block, tags) for block in _blocks(path)))


def read_columns(path: Path, columns: str) -> Corpus:
    """One word a line, sentences separated by blank lines; every named column but `word` becomes tags.

    Columns are separated by tabs if the first word's line has one, else by blanks. Comments start with `#` and stand
    before a sentence: inside one, and wherever the line has the right columns, `#` is a word.
    """
    names = column_names(columns)
    if "word" not in names:
        raise StratoscopeError(
            f"--columns: expected one column called 'word', got '{columns}'; for example \"word pos {IGNORED}\""
        )
    tabbed = next(("\t" in line for block in _blocks(path) for _, line in block if not line.startswith("#")), False)
    return _corpus(path, (_column_sentence(path, block, names, tabbed) for block in _blocks(path)))


def _blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines between blank ones."""
    block: list[tuple[int, str]] = []
    for number, line in numbered_lines(path):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _corpus(path: Path, found: Iterable[Sentence | None]) -> Corpus:
    sentences, positions = gather(enumerate(s for s in found if s is not None))
    if not sentences:
        raise StratoscopeError(f"{path}: expected sentences with one word a line, got none; give a file with data")
    return Corpus(path.name, sentences, positions)


def _sentence(words: list[str], tags: dict[str, list[str]]) -> Sentence | None:
    if not words:
        return None
    kept = {name: tuple(map(sys.intern, tag)) for name, tag in tags.items()}  # equal ones take memory once
    return Sentence(" ".join(words), tuple(map(sys.intern, words)), tags=kept)


def _conllu_sentence(path: Path, block: list[tuple[int, str]], names: Sequence[str]) -> Sentence | None:
    words: list[str] = []
    tags: dict[str, list[str]] = {name: [] for name in names}
    columns = [_CONLLU_FIELDS.index(name.partition(":")[0]) for name in names]
    fields = _CONLLU_FIELDS[: max(5, *(k + 1 for k in columns))]
    for number, line in block:
        if line.startswith("#"):
            continue
        got = line.count("\t") + 1
        if got != _CONLLU_COLUMNS:
            raise _malformed(path, number, f"{_CONLLU_COLUMNS} columns separated by tabs, got {got}")
        try:
            token = parse_line(line, fields)
        except ParseException as e:
            raise _malformed(path, number, f"a word, got: {e}") from e
        if isinstance(token["id"], tuple):
            continue
        if token["id"] != len(words) + 1:
            raise _malformed(path, number, f"word {len(words) + 1} of the sentence, got id {line.split(chr(9))[0]}")
        words.append(token["form"])
        for name, tag in tags.items():
            column, _, key = name.partition(":")
            written = line.split("\t")[_CONLLU_FIELDS.index(column)]
            tag.append(((token[column] or {}).get(key) if key else written) or "_")
    return _sentence(words, tags)


def _malformed(path: Path, number: int, problem: str) -> StratoscopeError:
    return StratoscopeError(
        f"{path}: line {number}: malformed CoNLL-U: expected {problem}",
        "fix the line",
        "if the file has other columns, name it .conll and give --columns",
    )


def _column_sentence(path: Path, block: list[tuple[int, str]], names: tuple[str, ...], tabbed: bool) -> Sentence | None:
    table: dict[str, list[str]] = {name: [] for name in names if name != IGNORED}
    for number, line in block:
        fields = [f.strip(" ") for f in line.split("\t")] if tabbed else re.split("[ \t]+", line.strip(" \t"))
        if fields[0] == _DOCUMENT_MARK or (not table["word"] and _is_comment(line, fields, len(names), tabbed)):
            continue
        if len(fields) != len(names):
            raise StratoscopeError(
                f"{path}: line {number}: expected {len(names)} columns ({' '.join(names)}), got {len(fields)}; "
                f"fix the line, or name every column in --columns, with {IGNORED} for those to ignore"
            )
        for name, value in zip(names, fields, strict=True):
            if name != IGNORED:
                table[name].append(value)
    return _sentence(table.pop("word"), table)


def _is_comment(line: str, fields: list[str], width: int, tabbed: bool) -> bool:
    """A line before the first word that starts with `#` and does not look like the word `#` with its tags."""
    if not line.startswith("#"):
        return False
    if len(fields) != width:
        return True
    return " " in fields[0] if tabbed else _KEY_VALUE_COMMENT.match(line) is not None
