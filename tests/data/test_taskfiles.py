"""Finding a task's files in folders, and rows of texts and choices in tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.formats.tables import Table
from stratoscope.data.tasks.files import choice_lines, file_table, folder_files, table_rows
from stratoscope.data.tasks.spec import Columns, Folder

LAYOUT = Folder("Toy", ("train.tsv",), ("dev.jsonl", "dev*.txt"))
LIST = Columns(("ctx",), choices=("endings",))
APART = Columns(("story", "question"), choices=("a0", "a1"))


def table(*rows: dict[str, Any]) -> Table:
    return Table("t", tuple(dict.fromkeys(k for row in rows for k in row)), lambda wanted: rows)


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    return folder


def found(folder: Path) -> list[str]:
    return [str(p.relative_to(folder)) for p in folder_files(folder, LAYOUT)]


def test_files_by_preference_and_never_the_test_file(tmp_path: Path) -> None:
    touch(tmp_path, "train.tsv", "dev.txt", "test.tsv")
    assert found(tmp_path) == ["train.tsv", "dev.txt"]
    touch(tmp_path, "dev.jsonl")
    assert found(tmp_path) == ["train.tsv", "dev.jsonl"]


def test_one_file_will_do_and_so_will_the_folder_above(tmp_path: Path) -> None:
    touch(tmp_path, "Toy/dev_200.txt", "Other/train.tsv")
    assert found(tmp_path) == ["Toy/dev_200.txt"]


def test_no_folder_no_files_or_too_many(tmp_path: Path) -> None:
    with pytest.raises(
        StratoscopeError, match="nope: expected a folder with the files of Toy, got nothing of that name"
    ):
        found(tmp_path / "nope")
    with pytest.raises(
        StratoscopeError, match=r"train.tsv: expected a folder with the files of Toy, got a file; check"
    ):
        found(touch(tmp_path / "f", "train.tsv") / "train.tsv")
    with pytest.raises(
        StratoscopeError, match=r"files of Toy, train.tsv and dev.jsonl or dev\*.txt, got neither; check"
    ):
        found(touch(tmp_path, "test.tsv"))
    with pytest.raises(
        StratoscopeError, match=r"expected one file dev\*.txt, got dev1.txt, dev2.txt; keep one of them"
    ):
        found(touch(tmp_path, "dev1.txt", "dev2.txt"))


def test_six_lines_an_item(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("ctx one\n3\na\nb\nc\nd\nctx two\n 0 \ne\nf\ng\nh\n\n")
    rows = table_rows(file_table(path), LIST)
    assert rows.texts[0] == (("ctx one", "a"), ("ctx one", "b"), ("ctx one", "c"), ("ctx one", "d"))
    assert rows.texts[1][3] == ("ctx two", "h")
    assert rows.labels == ("3", "0")
    for text in ("ctx\n1\na\nb\nc\n", "", "\n"):
        path.write_text(text)
        with pytest.raises(
            StratoscopeError, match=r"expected 6 lines an item .context, index of the right ending, 4 end"
        ):
            choice_lines(path)


def test_a_header_is_for_files_without_one(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('x\t1\t*\tsome "text\n')
    rows = table_rows(file_table(path, "source label _ sentence"), Columns(("sentence",)))
    assert (rows.texts, rows.labels) == ((((('some "text'), None),),), ("1",))
    (tmp_path / "a.jsonl").write_text('{"sentence": "b", "label": 0}\n')
    assert table_rows(file_table(tmp_path / "a.jsonl", "source"), Columns(("sentence",))).labels == ("0",)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(
        StratoscopeError, match=r"a.xml: expected a file ending in .jsonl, .*, got '.xml'; rename or con"
    ):
        file_table(tmp_path / "a.xml")


def test_rows_keep_their_place_when_blank_ones_are_skipped() -> None:
    t = table({"a": "x", "b": "y", "label": "1"}, {"a": " ", "b": "y", "label": "0"}, {"a": "z", "b": "w"})
    rows = table_rows(t, Columns(("a",), pair="b"))
    assert rows.texts == ((("x", "y"),), (("z", "w"),))
    assert (rows.labels, rows.positions, rows.skipped) == (("1", None), (0, 2), 1)
    last = rows.take([1])
    assert (last.texts, last.labels, last.positions, len(last)) == (((("z", "w"),),), (None,), (2,), 1)


def test_choices_in_columns_of_their_own() -> None:
    story = {"story": " It rained. ", "question": "Why?", "a0": "clouds", "a1": "sun", "label": 0}
    rows = table_rows(table(story, {**story, "a1": ""}), APART)
    assert rows.texts == ((("It rained. Why?", "clouds"), ("It rained. Why?", "sun")),)
    assert (rows.labels, rows.positions, rows.skipped) == (("0",), (0,), 1)


@pytest.mark.parametrize(
    ("columns", "rows", "words"),
    [
        (LIST, [{"ctx": "a", "label": "0"}], "t: expected the multiple-choice columns ctx, endings, label, got no end"),
        (
            LIST,
            [{"ctx": "a", "endings": ["b"], "label": "0"}],
            "t: row 1: expected two or more choices in endings, got 1",
        ),
        (
            LIST,
            [{"ctx": "a", "endings": "bc", "label": "0"}],
            "t: row 1: expected two or more choices in endings, got 0",
        ),
        (
            LIST,
            [{"ctx": "a", "endings": ["b", "c"], "label": "0"}, {"ctx": "a", "endings": ["b", "c", "d"], "label": "0"}],
            "t: row 2: expected 2 choices in endings, got 3; give every row the same number",
        ),
        (
            LIST,
            [{"ctx": "a", "endings": ["b", 3], "label": "0"}],
            "column 'endings 1': expected text, got the number 3",
        ),
        (
            APART,
            [{"story": "a", "question": None, "a0": "b", "a1": "c", "label": "0"}],
            r"column 'story \+ question': expected text, got nothing",
        ),
        (
            APART,
            [
                {"story": "a", "question": "q", "a0": " ", "a1": "c", "label": "0"},
                {"story": "a", "question": "q", "a0": "b", "a1": "", "label": "0"},
            ],
            "t: expected rows with a text in every choice, got a blank one in each row; fix them",
        ),
    ],
)
def test_choices_that_are_none(columns: Columns, rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        table_rows(table(*rows), columns)


def test_no_choice_rows_at_all() -> None:
    empty = Table("t", ("ctx", "endings", "label"), lambda wanted: [])
    with pytest.raises(StratoscopeError, match="t: expected multiple-choice rows, got no rows; give a file with data"):
        table_rows(empty, LIST)
