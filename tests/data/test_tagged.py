"""Tagged corpora: formats, splits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tagged import read_tagged, read_tags

CONLLU = """# text = Dogs bark
1	Dogs	dog	NOUN	NNS	Number=Plur	2	nsubj	2:nsubj	Gloss
2	bark	bark	VERB	VBP	Mood=Ind|Number=Plur	0	root	0:root	SpaceAfter=No

1	A	a	DET	DT	_	2	det	_	_
2	cat	cat	NOUN	NN	Number=Sing	3	nsubj	_	_
3	sat	sit	VERB	VBD	_	0	root	_	Gloss=s|SpaceAfter=No

"""


@pytest.mark.parametrize(
    ("property", "first", "second"),
    [
        ("upos", ("NOUN", "VERB"), ("DET", "NOUN", "VERB")),
        ("xpos", ("NNS", "VBP"), ("DT", "NN", "VBD")),
        ("deprel", ("nsubj", "root"), ("det", "nsubj", "root")),
        ("feats:Number", ("Plur", "Plur"), ("_", "Sing", "_")),
        ("misc:SpaceAfter", ("_", "No"), ("_", "_", "No")),
        ("misc", ("Gloss", "SpaceAfter=No"), ("_", "_", "Gloss=s|SpaceAfter=No")),
        ("deps", ("2:nsubj", "0:root"), ("_", "_", "_")),
        ("feats", ("Number=Plur", "Mood=Ind|Number=Plur"), ("_", "Number=Sing", "_")),
    ],
)
def test_any_column_or_feature_of_conllu(tmp_path: Path, property: str, first: object, second: object) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    sentences = read_tags(tmp_path / "a.conllu", property).sentences
    assert [s.tags[property] for s in sentences] == [first, second]  # type: ignore[index]
    assert sentences[1].words == ("A", "cat", "sat")


def test_part_of_speech_is_the_corpus_own_column(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conllu").write_text(CONLLU)
    read = read_tagged(tmp_path, "pos")
    assert (read.property_name, read.tags) == ("xpos", ("DT", "NN", "NNS", "VBD", "VBP"))
    assert read.fingerprint == read_tagged(tmp_path, "xpos").fingerprint


def test_columns_by_name_by_number_and_by_layout(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("He PRP B-NP\nran VBD B-VP\n\nShe PRP B-NP\nsat VBD B-VP\n")
    assert read_tags(tmp_path / "a.txt", "chunk").sentences[0].tags == {"chunk": ("B-NP", "B-VP")}
    assert read_tags(tmp_path / "a.txt", "3").sentences[0].tags == {"3": ("B-NP", "B-VP")}
    assert read_tags(tmp_path / "a.txt", "b", "word a b").sentences[1].tags == {"b": ("B-NP", "B-VP")}
    pmb = "# newdoc id = p\n# raw sent = A girl\nA\tA\ta\tDIS\tnp/n\tO\t[]\ngirl\tgirl\tgirl\tCON\tn\tgirl.n.01\t[]\n"
    (tmp_path / "p.conll").write_text(pmb)
    assert read_tags(tmp_path / "p.conll", "sem").sentences[0].tags == {"sem": ("DIS", "CON")}


def rows(n: int, tag: str = "ab") -> str:
    return "".join(json.dumps({"words": [f"w{k}", "x"], "t": [tag[k % len(tag)], None]}) + "\n" for k in range(n))


def test_jsonl_is_split_by_seed_and_words_without_a_tag_are_context(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows(100))
    one, two, other = (read_tagged(tmp_path / "a.jsonl", "t", seed=s) for s in (0, 0, 1))
    assert {k: len(c) for k, c in one.splits.items()} == {"train": 80, "dev": 10, "test": 10}
    words = [w for c in one.splits.values() for s in c.sentences for w in (s.words or ())[:1]]
    assert sorted(words) == sorted(f"w{k}" for k in range(100))
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert one.tags == ("a", "b")
    numbers = one.numbers("train", np.array([0, 0]), np.array([0, 1]))
    assert numbers.tolist()[1] == -2
    assert numbers.tolist()[0] in (0, 1)


def test_an_empty_tag_is_no_tag(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("He\tPRP\tA\nran\tVBD\t\nfar\tRB\tB\n\n" * 20)
    read = read_tagged(tmp_path / "a.conll", "chunk")
    assert read.tags == ("A", "B")
    assert read.numbers("test", np.zeros(3, np.int64), np.arange(3)).tolist() == [0, -2, 1]


def test_a_folder_with_splits_and_a_rare_tag(tmp_path: Path) -> None:
    (tmp_path / "x-train.jsonl").write_text(rows(20) + json.dumps({"words": ["z"], "t": ["c"]}) + "\n")
    (tmp_path / "x-test.jsonl").write_text(rows(6))
    got = read_tagged(tmp_path, "t")
    assert (len(got.splits["train"]), len(got.splits["dev"]), len(got.splits["test"])) == (19, 2, 6)
    assert set(got.rare) <= {"c"}
    (tmp_path / "x-dev.jsonl").write_text(rows(6))
    words = [json.dumps({"words": [tag], "t": [tag]}) for tag in "abbbbccccc"]
    (tmp_path / "x-train.jsonl").write_text("\n".join(words))
    assert read_tagged(tmp_path, "t").rare == {"a": 1, "b": 4}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (rows(30, "a"), ("two tags", "'a' only")),
        ("", ("without words",)),
        ("".join(json.dumps({"words": ["w"], "t": [k / 7]}) + "\n" for k in range(50)), ("numeric",)),
        ('{"words": ["a", "b"], "t": [0.5, 2.25]}\n' * 4, ("numeric",)),
        (json.dumps({"words": ["a", "b"], "t": ["x"]}) + "\n", ("line 1", "2 tags", "got 1")),
        (json.dumps({"words": ["a"], "u": ["x"]}) + "\n", ("'t'", "u")),
        (json.dumps({"words": ["a"], "t": "x"}) + "\n", ("line 1", "'t'", "got str")),
        (json.dumps({"words": ["a"], "u": 1}) + "\n", ("line 1", "'t'", "'u'")),
        (json.dumps({"words": ["a"], "t": [{"x": 1}]}) + "\n", ("line 1", "'t'", "{'x': 1}")),
        ("{\n", ("line 1", "JSON")),
        (json.dumps({"words": "a", "t": ["x"]}) + "\n", ("list of words",)),
        (rows(2), ("at least 3 sentences", "got 2")),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(StratoscopeError) as e:
        read_tagged(tmp_path / "a.jsonl", "t")
    assert all(fact in str(e.value) for fact in facts), str(e.value)


def test_more_tags_than_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratoscope.data.tagged.MOST_TAGS", 2)
    (tmp_path / "a.jsonl").write_text(rows(30, "ab"))
    assert read_tagged(tmp_path / "a.jsonl", "t").tags == ("a", "b")
    (tmp_path / "b.jsonl").write_text(rows(30, "abc"))
    with pytest.raises(StratoscopeError, match="at most 2 tags of 't', got 3"):
        read_tagged(tmp_path / "b.jsonl", "t")


def test_other_bad_input(tmp_path: Path) -> None:
    (tmp_path / "train.conllu").write_text(CONLLU)
    for source, property, facts in (
        (tmp_path / "train.conllu", "tag", ("'tag'", "upos")),
        (tmp_path / "train.conllu", "UPOS", ("'UPOS'", "did you mean 'upos'")),
        (tmp_path / "train.conllu", "feats:Nummer", ("'Nummer'", "did you mean 'Number'", "Mood, Number")),
        (tmp_path / "none", "upos", ("does not exist",)),
    ):
        with pytest.raises(StratoscopeError) as e:
            read_tagged(source, property)
        assert all(fact in str(e.value) for fact in facts)
    folder = tmp_path / "f"
    folder.mkdir()
    with pytest.raises(StratoscopeError, match="'train' in its name"):
        read_tagged(folder, "t")
    (folder / "train.jsonl").write_text(rows(20))
    (folder / "test.jsonl").write_text(rows(6))
    (folder / "dev.jsonl").write_text(rows(6, "q"))
    with pytest.raises(StratoscopeError, match="unseen in training: 'q'"):
        read_tagged(folder, "t")
    (folder / "train.jsonl").write_text(rows(200) + rows(1, "q"))
    whole = read_tagged(folder, "t")
    with pytest.raises(StratoscopeError, match=r"unseen in training: 'q'.*larger --limit"):
        whole.sample(5, 0)
    assert whole.sample(None, 0) is whole
    (folder / "valid.jsonl").write_text(rows(6))
    with pytest.raises(StratoscopeError, match="one file of dev"):
        read_tagged(folder, "t")
    (folder / "a.txt").write_text("a b c d e\n")
    with pytest.raises(StratoscopeError, match="5 columns"):
        read_tags(folder / "a.txt", "x")
    with pytest.raises(StratoscopeError, match="--columns"):
        read_tags(folder / "train.jsonl", "t", "word t")
    (folder / "a.png").write_text("a")
    with pytest.raises(StratoscopeError, match=r"\.png"):
        read_tags(folder / "a.png", "x")


def test_the_files_of_splits_are_found_by_the_words_of_their_names(tmp_path: Path) -> None:
    """Whole words alone name a split: `latest` has no test sentences, `trained` no training sentences."""
    (tmp_path / "latest.jsonl").write_text(rows(8))
    (tmp_path / "trained.jsonl").write_text(rows(8))
    with pytest.raises(StratoscopeError, match=r"'train' in its name.*got latest.jsonl, trained.jsonl"):
        read_tagged(tmp_path, "t")
    (tmp_path / "latest-train.jsonl").write_text(rows(40))
    only = read_tagged(tmp_path, "t", seed=3)
    assert {s: len(c) for s, c in only.splits.items()} == {"train": 32, "dev": 4, "test": 4}
    assert only.drawn == dict.fromkeys(("dev", "test"), "10% of latest-train.jsonl, drawn with seed 3")
    assert only.sample(30, 0).drawn == only.drawn
    (tmp_path / "corpus_val.jsonl").write_text(rows(6))
    (tmp_path / "2.TEST.jsonl").write_text(rows(8))
    (tmp_path / "contest-results_devices.jsonl").write_text(rows(8))
    (tmp_path / "device.md").write_text("")
    whole = read_tagged(tmp_path, "t")
    assert {s: len(c) for s, c in whole.splits.items()} == {"train": 40, "dev": 6, "test": 8}
    assert not whole.drawn
    (tmp_path / "2.TEST.jsonl").rename(tmp_path / "test-of-training.jsonl")
    with pytest.raises(StratoscopeError, match=r"one file of train.*got latest-train.jsonl, test-of-training.jsonl"):
        read_tagged(tmp_path, "t")
    (tmp_path / "latest-train.jsonl").unlink()
    with pytest.raises(StratoscopeError, match="name says train and test"):
        read_tagged(tmp_path, "t")
