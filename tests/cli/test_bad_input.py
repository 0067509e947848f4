"""Every bad input: one sentence on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ended import Command, Ended
from safetensors.torch import load_file, save_file

import tiny
from stratoscope.cli import main
from stratoscope.runs.folder import RunFolder


def assert_refused(ended: Ended, words: str, *, at_work: bool = False) -> None:
    assert ended.code == 2, ended.err
    assert ended.out == ""
    *before, sentence = ended.err.splitlines()
    assert sentence.startswith("stratoscope: ")
    assert words in sentence
    assert bool(before) == at_work, "what the run did so far, and nothing else"
    assert all(re.fullmatch(r"[^:]+: .*(to do|done in .* s)", b) for b in before)


OPTIONS = [
    (["--measure", "ckasm"], "unknown measure 'ckasm'; did you mean 'ckasim'? choose from: neuronsim, mixedsim"),
    (["--measure", "cca,svsim"], "got 'cca,svsim'; repeat the option instead: --measure cca --measure svsim"),
    (["--measure", "svsim@2"], "expected a fraction above 0 and at most 1 after '@', got '2' in 'svsim@2'"),
    (["--unit", "wrd"], "unknown unit 'wrd'; did you mean 'word'? choose from: word, cls, mean, token"),
    (["--subword", "lst"], "unknown subword 'lst'; did you mean 'last'? choose from: last, first, mean"),
    (["--dtype", "f32"], "unknown dtype 'f32'; did you mean 'float32'? choose from"),
    (["--device", "cdua"], "unknown device 'cdua'; did you mean 'cuda'? choose from"),
    (["--memory", "lots"], "expected a size such as 4GB or 800MB, got 'lots'"),
    (["--memory", "1MB"], "expected --memory of at least 100MB, got 1MB"),
    (["--layers", "3-1"], "expected layers such as '0,3-6', got '3-1'"),
    (["--layers", "0-9"], "'base' has no layer 4; its layers are 0-3 (0 = embeddings)"),
    (["--name", "a", "--name", "b"], "expected one --name per model (1) or none, got 2"),
    (["--bootstrap", "3"], "expected at least 20 bootstrap replicates for a 95 % interval (or 0 for none), got 3"),
    (["--bootstrap", "-20"], "expected --bootstrap of at least 0, got -20"),
    (["--workers", "0"], "expected --workers of at least 1, got 0"),
    (["--batch-tokens", "-4"], "expected --batch-tokens of at least 1, got -4"),
    (["--limit", "0"], "limit: expected at least 1 sentence, got 0"),
    (["--limit", "2", "--unit", "mean"], "expected at least 4 rows to compare, got 2; give more text"),
    (["--seed", "-1"], "expected a --seed of at least 0"),
    (["--text", "review"], "--text 'review' does not apply"),
]


@pytest.mark.parametrize(("args", "words"), OPTIONS, ids=[" ".join(a) for a, _ in OPTIONS])
def test_options(here: Path, command: Command, args: list[str], words: str) -> None:
    assert_refused(command("compare", "base", "--data", "t.txt", "--out", "run", *args), words)
    assert not (here / "run").exists()


DATA = [
    ("nope.txt", None, "--data nope.txt: expected a file, but it does not exist"),
    ("empty.txt", "", "expected one sentence a line, got no text; give a file with data"),
    ("empty.jsonl", "", "empty.jsonl"),
    ("labels.jsonl", '{"text": 1}\n{"text": 0}\n', "labels.jsonl"),
    ("labels.csv", "label\n1\n0\n1\n0\n", "labels.csv"),
    ("half.jsonl", '{"text": "fine"}\n{"text": "cut', "half.jsonl"),
    ("odd.xyz", "text", "expected a file ending in"),
    (".", None, "expected a file, got a folder"),
]


@pytest.mark.parametrize(("name", "content", "words"), DATA, ids=[d[0] for d in DATA])
def test_data(here: Path, command: Command, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (here / name).write_text(content)
    assert_refused(command("compare", "base", "--data", name, "--out", "run"), words)
    assert not (here / "run").exists()


def test_models(here: Path, home: Path, command: Command) -> None:
    tiny.checkpoint("bert", here / "pickled", safetensors=False)
    shutil.copytree(home / "base", here / "hollow", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(home / "base", here / "broken")
    (here / "broken" / "model.safetensors").write_bytes(b"not weights at all")
    (here / "nothing").mkdir()
    expected = {
        "./nowhere": "no model at './nowhere'; expected a checkpoint folder, a .gguf file or a hub id",
        "t.txt": "model 't.txt' is a file; expected a checkpoint folder",
        "nothing": "nothing has no config.json; expected a checkpoint folder written by save_pretrained",
        "hollow": "hollow has no weights (model.safetensors)",
        "pickled": "pickled holds its weights as a pickle only (pytorch_model.bin), which can run code when loaded",
        "some-org/some-model": "cannot get 'some-org/some-model': expected a local folder or a hub id that can be",
    }
    for source, words in expected.items():
        assert_refused(command("compare", "base", source, "--data", "t.txt", "--out", "run"), words)
        assert not (here / "run").exists()
    words = "cannot read the weights of 'broken'"
    assert_refused(command("compare", "broken", "--data", "t.txt", "--out", "run"), words)


def test_a_pickle_loads_when_the_user_says_so(here: Path, command: Command, undrawn: None) -> None:
    tiny.checkpoint("bert", here / "pickled", safetensors=False)
    ended = command("compare", "pickled", "--allow-pickle", "--data", "t.txt", "--out", "run")
    assert ended.code == 0, ended.err


def test_activations_that_are_not_finite_name_model_layer_and_row(here: Path, home: Path, command: Command) -> None:
    shutil.copytree(home / "tuned", here / "sick")
    path = here / "sick" / "model.safetensors"
    weights = load_file(path)
    key = next(k for k in weights if k.endswith("encoder.layer.1.output.dense.bias"))
    weights[key] = torch.full_like(weights[key], torch.nan)
    save_file(weights, path, metadata={"format": "pt"})
    ended = command("compare", "base", "sick", "--data", "t.txt", "--out", "run")
    assert_refused(ended, "'sick' gives a value that is not finite at layer 2, sentence ", at_work=True)
    assert ", word " in ended.err
    assert not (here / "run" / "result.json").exists()


def test_rows_of_different_lengths(here: Path) -> None:
    import stratoscope as ss

    with pytest.raises(ss.StratoscopeError, match="x and y must have the same rows in the same order; got 5 and 6"):
        ss.similarity(torch.randn(5, 2), torch.randn(6, 2))


def test_out_that_cannot_be_a_run_folder(here: Path, command: Command) -> None:
    base = ("compare", "base", "--data", "t.txt", "--out")
    assert_refused(command(*base, "t.txt"), "--out t.txt is a file; give a folder")
    assert_refused(command(*base, "t.txt/run"), "cannot write to t.txt/run: Not a directory; choose another --out")
    (here / "parts").mkdir()
    (here / "parts" / "mine").touch()
    assert_refused(command(*base, "."), ". has 'parts', which no run of stratoscope made; choose another --out")
    assert (here / "parts" / "mine").exists()


def test_a_folder_with_another_result(here: Path, command: Command, undrawn: None) -> None:
    base = ("compare", "base", "--data", "t.txt", "--out", "run")
    assert command(*base).code == 0
    before = (here / "run" / "result.json").read_bytes()
    assert_refused(
        command(*base, "--unit", "mean"),
        "run holds another result: unit (word, now mean); choose another --out or give --overwrite",
    )
    assert (here / "run" / "result.json").read_bytes() == before
    assert command(*base, "--unit", "mean", "--overwrite").code == 0


def test_a_folder_in_use(here: Path, command: Command) -> None:
    with RunFolder.open(here / "run"):
        ended = command("compare", "base", "--data", "t.txt", "--out", "run")
    assert_refused(ended, "run is in use by another run; wait for it to end or choose another --out")


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[None]:
    """Files may not grow beyond 16 kB, as under a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_size_limit(here: Path, command: Command, limited: None) -> None:
    ended = command("compare", "base", "--data", "t.txt", "--out", "run")
    assert_refused(ended, "cannot write to run: File too large; choose another --out", at_work=True)
    assert left(here / "run") == [".lock", "parts"]


@pytest.fixture
def disk(here: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system of its own."""
    path = here / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "none", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk is a tmpfs, and mounting one needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize(
    ("disk", "reached"),
    [(24, "reading"), (100, "preparing"), (1500, "drawing")],
    indirect=["disk"],
    ids=["while reading", "while preparing", "while drawing"],
)
def test_a_full_disk(disk: Path, reached: str, here: Path, command: Command) -> None:
    args = ("compare", "base", "tuned", "--data", "t.txt", "--measure", "cca", "--out")
    ended = command(*args, "disk/run")
    assert_refused(ended, "no space left on the disk of disk/run", at_work=True)
    kept = left(disk / "run")
    assert not [name for name in kept if "tmp" in name]
    assert any(name.endswith(".sha256") for name in kept) == (reached == "preparing"), "finished parts are kept"
    assert ("result.json" in kept) == (reached == "drawing")
    # the next run in a roomier place resumes from what was finished
    shutil.copytree(disk / "run", here / "roomy")
    assert command(*args, "roomy").code == 0
    assert (here / "roomy" / "result.json").is_file()


def left(folder: Path) -> list[str]:
    return sorted(os.path.relpath(p, folder) for p in folder.rglob("*"))


def test_an_empty_name_is_not_the_current_folder(here: Path, command: Command) -> None:
    """As of a shell variable that is not set."""
    before = sorted(p.name for p in here.iterdir())
    for out in ("", " "):
        assert_refused(command("compare", "base", "--data", "t.txt", "--out", out), "expected a folder for --out")
    assert sorted(p.name for p in here.iterdir()) == before


def test_tables_that_show_why_stand_above_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"tried": [{"blocks kept": "1-2", "parameters": 12_000}]}
    for words in (["cut"], ["cut", "--json"]):
        with pytest.raises(SystemExit):
            main._refuse("nothing can be cut", words, tables=tables)
        out, err = capsys.readouterr()
        assert err == "stratoscope: nothing can be cut\n"
        if "--json" in words:
            assert json.loads(out) == {"error": "nothing can be cut", "tables": tables}
        else:
            assert out.split() == ["tried", "blocks", "kept", "parameters", "1-2", "12,000"]
