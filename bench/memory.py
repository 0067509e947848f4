"""Peak memory of `stratoscope compare`, end to end, over the number of rows: it must not grow with them.

    python bench/memory.py                                     # a tiny BERT up to 1M rows, MiniLM up to 60k: an hour
    python bench/memory.py --rows 2000,20000 --model DIR       # another checkpoint
    python bench/memory.py --tiny --rows 2000,200000 --units cls

Each figure is the peak resident set of a process of its own with one worker (`ru_maxrss`, which counts pages of mapped
files too), so weights, libraries and the page that is drawn are in it. Texts are short, one to four words drawn with
the number of rows as seed: what is kept for a row shows most beside texts that cost little. The figures are printed as
a table as they come; nothing is written.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stratoscope.demo.assets import MINILM, fetch

HERE = Path(__file__).resolve().parent
WORDS = ("the", "a", "old", "film", "dog", "story", "ending", "is", "was", "goes", "warm", "funny", "finest", "wooden")
HIDDEN = 32
"""Width of the tiny BERT."""


@dataclass(frozen=True)
class Series:
    """One model on texts of growing number."""

    name: str
    model: Path
    rows: tuple[int, ...]
    words: tuple[int, int]
    """Fewest and most words of a text."""


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="memory-") as tmp:
        print("| model | unit | rows | peak MB | over the fewest | s |\n|---|---|---|---|---|---|", flush=True)
        for series in _chosen(args, Path(tmp)):
            for unit in args.units:
                first = None
                for rows in series.rows:
                    text = write_text(Path(tmp) / f"{rows}.txt", rows, series.words)
                    with tempfile.TemporaryDirectory(dir=tmp) as out:
                        peak, seconds = measure(series.model, text, unit, args.measure, Path(out) / "run")
                    first = first or peak
                    shown = f"{peak / 1e6:.0f} | {(peak - first) / 1e6:+.0f}"
                    print(f"| {series.name} | {unit} | {rows:,} | {shown} | {seconds:.0f} |", flush=True)


def measure(model: Path, text: Path, unit: str, measure: str, out: Path) -> tuple[int, float]:
    """Peak resident bytes and seconds of one comparison in a process of its own."""
    command = [sys.executable, "-m", "stratoscope", "compare", str(model), "--data", str(text), "--unit", unit]
    command += ["--measure", measure, "--workers", "1", "--quiet", "--out", str(out)]
    begun = time.perf_counter()
    # Waited for by its own number: RUSAGE_CHILDREN would give the largest of all children so far.
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"'{' '.join(command)}' ended with code {code}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), time.perf_counter() - begun


def write_text(path: Path, rows: int, words: tuple[int, int]) -> Path:
    """So many short texts, one a line."""
    draw = random.Random(rows)
    with path.open("w", encoding="utf-8") as f:
        f.writelines(" ".join(draw.choices(WORDS, k=draw.randint(*words))) + "\n" for _ in range(rows))
    return path


def _chosen(args: argparse.Namespace, tmp: Path) -> Iterator[Series]:
    if args.tiny or not args.model:
        yield Series("tiny BERT", _tiny(tmp / "tiny"), args.rows or (2_000, 20_000, 200_000, 1_000_000), (2, 4))
    if args.model or not args.tiny:
        model = args.model or fetch(MINILM)
        yield Series(model.name, model, args.rows or (2_000, 20_000, 60_000), (1, 3))


def _tiny(folder: Path) -> Path:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from tiny import checkpoint

    return checkpoint("bert", folder, hidden=HIDDEN)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the tiny BERT only, or besides --model")
    parser.add_argument("--model", type=Path, help="checkpoint folder (a tiny BERT and the demo's MiniLM)")
    parser.add_argument("--rows", type=_numbers, help="numbers of rows with commas between them")
    parser.add_argument("--units", type=lambda text: text.split(","), default=["cls", "mean"])
    parser.add_argument("--measure", default="ckasim")
    return parser.parse_args()


if __name__ == "__main__":
    main()
