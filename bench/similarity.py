"""Time, memory and accuracy of the similarity engine, beside its peers on the same rows.

    python bench/similarity.py                    # everything, about half an hour; needs a quiet machine
    python bench/similarity.py --only gram,linear # seconds of these two, nothing written
    python bench/similarity.py --small            # a few layers of made-up numbers, to see that it runs
    python bench/similarity.py --model DIR        # another checkpoint than all-mpnet-base-v2
    python bench/similarity.py --ud FILE          # other text than UD English EWT dev

What is compared: every layer of all-mpnet-base-v2 (five pinned packages of the index) and of its random-init copy, on
10,000 words of real text read by the package's own extraction; 500 and 1,000 [CLS] rows; made-up rows where weights or
text cannot be had, and then the result says so. Weights, rows and peers are kept in `--cache`.

How: every run is a process of its own (trials.py) and the contenders take turns, round after round; figures are
medians over the rounds, ratios medians of each round's ratio. Ours is `score_layers` as `stratoscope compare` calls it:
rows in files, a run folder, one worker a core, the workers' start included. Peers have one thread and are compared by
CPU seconds, ours summed over all its processes. A peer would take hours for all pairs, so it is timed on a seeded
sample (all pairs of two layers of each model, or two of them where n×n matrices are made) and scaled. plain.py is
per-pair SVD code: the five measures of Wu et al. 2020 with the work their own code does, measure by measure; all linear
measures in the same manner; and all of them with all that a pair can share, each layer's SVD made once or, as much code
has it, for every pair.
Accuracy is the worst difference, over the sample and both directions, from the same formulas in float64.

Nothing here passes or fails by the clock: figures are printed beside the goals for a person to judge.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median

from attention import HEADING as ATTENTION
from attention import REAL
from inputs import Rows, fetch_mpnet, make_rows, read_rows
from meter import cores, machine
from peers import PEERS, install, refused
from plain import SIX, WU2020
from report import Findings, write
from stratoscope.core.errors import StratoscopeError
from stratoscope.demo.assets import default_cache
from stratoscope.measures.table import MEASURES
from trials import Outcome, run
from validation_report import HEADING as VALIDATION
from validation_report import section_of

HERE = Path(__file__).resolve().parent
LINEAR = tuple(m.name for m in MEASURES if m.compare)
NOT_ON_INDEX = "similarity-repository==0.0.1"

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    words: tuple[int, int, int]
    """Rows for the first memory figure, for all comparisons, and for the second memory figure."""
    cls: tuple[int, int]
    layers: int
    """Layers of a made-up model."""
    width: int
    rounds: int
    gemm: int
    """Side of the square matrices that measure the machine's peak."""
    sentences: int
    """Sentences read when extraction is timed."""


FULL = Scale((5_000, 10_000, 20_000), (500, 1_000), 13, 768, 3, 4096, 400)
SMALL = Scale((250, 500, 1_000), (48, 96), 3, 64, 1, 512, 20)


def main() -> None:
    args = _arguments()
    scale = SMALL if args.small else replace(FULL, rounds=args.rounds)
    cache = args.cache.expanduser().resolve()
    facts = machine()
    words, cls, model = gather(args, scale, cache)
    folder = cache / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    absent = (
        {}
        if (reason := install(folder)) is None
        else dict.fromkeys((p.name for p in PEERS), f"not installed: {reason}")
    )
    everyone = contenders(words[1], cls, scale, cache, None if reason else folder)
    for name in args.skip.split(",") if args.skip else ():
        del everyone[name]
    if args.only:
        for name, runs in turns({name: everyone[name] for name in args.only.split(",")}, scale.rounds).items():
            costs = [{k: round(v, 2) for k, v in o.items() if isinstance(v, float)} for o in runs]
            print(f"{name}: {costs}")
        return
    absent[NOT_ON_INDEX] = refused(NOT_ON_INDEX, cache / "refused")
    found = Findings(
        command=shlex.join(["python", *sys.argv]),
        small=args.small,
        machine=facts,
        words=words[1],
        cls=cls,
        rounds=scale.rounds,
        pairs=sample(words[1]),
        absent=absent,
        outcomes=turns(everyone, scale.rounds),
        reference={f"{r.n}": _reference(r, kernels=r is words[1]) for r in (words[1], *cls)},
        memory={r.n: ours(r, LINEAR, cache, workers=cores())() for r in (words[0], words[2])},
        extraction=[] if model is None else _extraction(model, args.ud, scale),
        help_seconds=help_seconds(),
    )
    text = write(found)
    print(text)
    if out := args.out or (None if args.small else HERE / "RESULTS.md"):
        out.parent.mkdir(parents=True, exist_ok=True)
        before = out.read_text(encoding="utf-8") if out.is_file() else ""
        kept = [section_of(before, heading) for heading in (VALIDATION, ATTENTION, REAL)]
        out.write_text("\n".join(filter(None, (text, *kept))), encoding="utf-8")
        _say(f"written to {out}")


def gather(args: argparse.Namespace, scale: Scale, cache: Path) -> tuple[list[Rows], list[Rows], Path | None]:
    """Rows for words and for [CLS], and the checkpoint they came from unless they are made up."""
    why = "--small needs no weights"
    if not args.small or args.model:
        try:
            if not args.ud.is_file():
                raise FileNotFoundError(f"there is no text at {args.ud}")
            model = args.model or fetch_mpnet(cache)
            _say(f"reading {args.ud.name} with {model.name} and its random-init copy (kept for the next time)")
            words = read_rows(model, args.ud, unit="word", sizes=scale.words, cache=cache)
            return words, read_rows(model, args.ud, unit="cls", sizes=scale.cls, cache=cache), model
        except (OSError, subprocess.CalledProcessError, StratoscopeError) as e:
            why = f"of this: {e}"
    _say(f"making up rows, because {why}")
    words = make_rows(layers=scale.layers, width=scale.width, sizes=scale.words, cache=cache, why=why)
    return words, make_rows(layers=scale.layers, width=scale.width, sizes=scale.cls, cache=cache, why=why), None


def sample(rows: Rows, seed: int = 0) -> Pairs:
    """All pairs of two layers of each model: within the first, across, within the second."""
    draw = random.Random(seed)
    models = [[k for k in rows.varying if (k < rows.first) == own] for own in (True, False)]
    return list(combinations(sorted(k for layers in models for k in draw.sample(layers, 2)), 2))


def heavy(rows: Rows) -> Pairs:
    """Two pairs for contenders that make n×n matrices: one within the first model, one across."""
    pairs = sample(rows)
    return [pairs[0], pairs[1]]


def ours(rows: Rows, measures: tuple[str, ...], cache: Path, *, workers: int | None = None) -> Callable[[], Outcome]:
    """Our engine on all layers, with the memory and number of workers `stratoscope compare` would choose."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    work = rows.n * float(rows.stored.layers * rows.width) ** 2
    spec: Outcome = {"measures": measures, "scratch": str(cache), "memory": memory, "workers": workers, "work": work}
    return partial(run, "ours", threads=cores(), rows=rows, **spec)


def contenders(
    words: Rows, cls: list[Rows], scale: Scale, cache: Path, peers: Path | None
) -> dict[str, Callable[[], Outcome]]:
    """Everything that is timed, by name, in the order of its turns."""
    few, two = sample(words), heavy(words)
    found: dict[str, Callable[[], Outcome]] = {
        "peak": partial(run, "gemm", threads=cores(), size=scale.gemm, times=12),
        "linear": ours(words, LINEAR, cache, workers=cores()),
        "gram": partial(run, "gram", threads=cores(), rows=words),
        "six": ours(words, SIX, cache, workers=cores()),
        "plain": partial(run, "plain", threads=1, rows=words, pairs=few, how="scores"),
        "wu2020": ours(words, WU2020, cache, workers=cores()),
        "authors": partial(run, "plain", threads=1, rows=words, pairs=few, how="apart"),
        "authors all": partial(run, "plain", threads=1, rows=words, pairs=few, how="apart_all"),
        "ckasim-rbf": ours(words, ("ckasim-rbf",), cache, workers=cores()),
        "kernels": partial(run, "kernels", threads=1, rows=words, pairs=two, published=False),
        "published kernels": partial(run, "kernels", threads=1, rows=words, pairs=two, published=True),
    }
    for name in dict.fromkeys(p.measure for p in PEERS if p.measure != "ckasim-rbf"):
        found[name] = ours(words, (name,), cache, workers=cores())
    for p in PEERS if peers else ():
        pairs = [(i, j) for i, j in few if i < words.first <= j] if p.crosses else few if p.every else two
        found[p.name] = partial(run, "peer", threads=1, peers=peers, rows=words, peer=p.name, pairs=pairs)
    for rows in cls:
        fitting = tuple(m.name for m in MEASURES if m.compare and not (m.saturates and rows.n <= rows.width))
        found[f"cls {rows.n} linear"] = ours(rows, fitting, cache)
        found[f"cls {rows.n} plain"] = partial(run, "plain", threads=1, rows=rows, pairs=sample(rows), how="scores")
    return found


def turns(contenders: dict[str, Callable[[], Outcome]], rounds: int) -> dict[str, list[Outcome]]:
    """Let everyone run once, then again; who failed once is not asked again."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    for k in range(rounds):
        for name, work in contenders.items():
            if any("failed" in o for o in outcomes[name]):
                continue
            begun = time.perf_counter()
            outcomes[name].append(work())
            _say(f"round {k + 1} of {rounds}: {name}, {time.perf_counter() - begun:.1f} s")
    return outcomes


def _reference(rows: Rows, *, kernels: bool) -> Outcome:
    _say(f"float64 reference on {rows.n} rows")
    return run("reference", threads=cores(), rows=rows, pairs=sample(rows), kernels=heavy(rows) if kernels else [])


def _extraction(model: Path, text: Path, scale: Scale) -> list[Outcome]:
    _say("extraction beside a bare loop")
    once = partial(run, "extraction", model=str(model), text=str(text), sentences=scale.sentences)
    return [once(threads=cores()) for _ in range(scale.rounds)]


def help_seconds(times: int = 5) -> float:
    """Median time of `stratoscope --help`."""
    command = [str(Path(sys.executable).with_name("stratoscope")), "--help"]
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes: shows that everything runs, measures nothing")
    parser.add_argument("--out", type=Path, help="where the tables go (bench/RESULTS.md; nowhere with --small)")
    parser.add_argument("--only", help="some contenders with commas between them: prints their seconds, writes nothing")
    parser.add_argument("--skip", help="contenders to leave out, with commas between them: peers can take long")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="how often everyone takes a turn")
    parser.add_argument("--cache", type=Path, default=default_cache() / "bench", help="where weights and rows are kept")
    parser.add_argument("--model", type=Path, help="checkpoint folder (all-mpnet-base-v2 from the index)")
    parser.add_argument(
        "--ud", type=Path, default=HERE.parents[1] / "shared/data/ud/en_ewt-ud-dev.conllu", help="text to read"
    )
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
