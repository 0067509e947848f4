"""CoNLL-U and column files."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Sentence
from stratoscope.data.formats.conll import read_columns, read_conllu


def token(number: str, form: str, upos: str = "X", xpos: str = "x") -> str:
    return "\t".join([number, form, form.lower(), upos, xpos, "_", "_", "_", "_", "_"])


def write(tmp_path: Path, *lines: str, name: str = "a.conllu") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def words(path: Path, columns: str) -> list[str]:
    return [s.text for s in read_columns(path, columns).sentences]


def test_conllu_keeps_syntactic_words_and_tags(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# sent_id = 1",
        "# text = Vámonos al mar",
        token("1-2", "Vámonos", "_", "_"),
        token("1", "Vamos", "VERB", "VM"),
        token("2", "nos", "PRON", "_"),
        token("2.1", "nosotros", "PRON"),
        token("3", "#", "SYM", "FS"),
        "",
        "",
        "# sent_id = 2",
        token("1", "10 000", "NUM", "Z"),
    )
    corpus = read_conllu(path)
    assert corpus.sentences == (
        Sentence(
            "Vamos nos #",
            ("Vamos", "nos", "#"),
            tags={"upos": ("VERB", "PRON", "SYM"), "xpos": ("VM", "_", "FS")},
        ),
        Sentence("10 000", ("10 000",), tags={"upos": ("NUM",), "xpos": ("Z",)}),
    )
    assert (corpus.name, corpus.positions, corpus.skipped) == ("a.conllu", (0, 1), 0)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("1\tonly\tthree", "expected 10 columns separated by tabs, got 3"),
        (token("x", "a"), r"expected a word, got: .*'x' is not a valid ID"),
        (token("_", "a"), "expected word 1 of the sentence, got id _"),
        (token("2", "a"), "expected word 1 of the sentence, got id 2"),
    ],
)
def test_malformed_conllu_names_the_line(tmp_path: Path, bad: str, words: str) -> None:
    path = write(tmp_path, token("1", "fine"), "", "# comment", bad)
    with pytest.raises(StratoscopeError, match=rf"a\.conllu: line 4: malformed CoNLL-U: {words}.*; fix the line"):
        read_conllu(path)


def test_conllu_sentences_run_together_are_malformed(tmp_path: Path) -> None:
    path = write(tmp_path, token("1", "a"), token("2", "b"), token("1", "c"))
    with pytest.raises(StratoscopeError, match="line 3: malformed CoNLL-U: expected word 3 of the sentence, got id 1"):
        read_conllu(path)


@pytest.mark.parametrize("lines", [("",), ("# only = comments", "")])
def test_empty_conllu(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(
        StratoscopeError, match="expected sentences with one word a line, got none; give a file with data"
    ):
        read_conllu(write(tmp_path, *lines))


def test_columns_separated_by_blanks(tmp_path: Path) -> None:
    path = write(
        tmp_path, "He PRP B-NP", "paid  VBD B-VP ", "# # B-NP", "1 CD I-NP", "", " ", "# # B-NP", "5\u00a0m CD I-NP"
    )
    corpus = read_columns(path, "word pos chunk")
    assert corpus.sentences == (
        Sentence(
            "He paid # 1",
            ("He", "paid", "#", "1"),
            tags={"pos": ("PRP", "VBD", "#", "CD"), "chunk": ("B-NP", "B-VP", "B-NP", "I-NP")},
        ),
        Sentence("# 5\u00a0m", ("#", "5\u00a0m"), tags={"pos": ("#", "CD"), "chunk": ("B-NP", "I-NP")}),
    )
    assert corpus.positions == (0, 1)


def test_columns_separated_by_tabs_with_comments(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "### Made by the command: x",
        "# newdoc id = p00/d0004",
        "# tok:gold\tsem:gold\tcat:gold",
        "# raw sent = A dog",
        "A\tDIS\tnp/n",
        "New York\tGPE\tn",
        "#\tCON\tn",
        "#1\tORD\tn",
        "",
        "# newdoc id = p00/d0005",
        "#\tHAS\tx",
        "#tag\tCON\tn",
        "",
        "# the end",
    )
    corpus = read_columns(path, "word sem _")
    assert [s.words for s in corpus.sentences] == [("A", "New York", "#", "#1"), ("#", "#tag")]
    assert [s.tags for s in corpus.sentences] == [{"sem": ("DIS", "GPE", "CON", "ORD")}, {"sem": ("HAS", "CON")}]


def test_comments_as_wide_as_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "# id = 7", "# sent id =", "a A B C", "", "# # = C", "b A B C")
    assert words(path, "word x y z") == ["a", "# b"]


def test_document_marks_are_no_sentences(tmp_path: Path) -> None:
    path = write(tmp_path, "-DOCSTART- -X- O", "", "EU NNP B-ORG")
    assert words(path, "word pos ner") == ["EU"]


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a A\n\nb B", encoding="utf-8")
    assert words(path, "word pos") == ["a", "b"]


def test_only_words(tmp_path: Path) -> None:
    corpus = read_columns(write(tmp_path, "a", "b", "", "c"), "word")
    assert [s.words for s in corpus.sentences] == [("a", "b"), ("c",)]
    assert corpus.sentences[0].tags == {}


@pytest.mark.parametrize("bad", ["a", "a b c", "# c d"])
def test_ragged_columns_name_the_line(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path, "# comment", "x X", bad, name="a.conll")
    with pytest.raises(
        StratoscopeError,
        match=rf"a\.conll: line 3: expected 2 columns \(word pos\), got {len(bad.split())}; .*with _ for",
    ):
        read_columns(path, "word pos")


def test_a_word_column_is_needed(tmp_path: Path) -> None:
    with pytest.raises(
        StratoscopeError, match="--columns: expected one column called 'word', got 'form pos'; for example"
    ):
        read_columns(write(tmp_path, "a b"), "form pos")


def test_no_sentences_in_columns(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="expected sentences with one word a line, got none"):
        read_columns(write(tmp_path, "# nothing else"), "word pos")
