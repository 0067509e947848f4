"""What a comparison costs, and how it spreads over workers.

    python bench/scale.py items --model MPNET --data en_ewt-ud-dev.conllu   # times of items, schedule at 2, 16, 128
    python bench/scale.py engines --model MPNET --data ... --rounds 3       # two Ray workers against two processes
    python bench/scale.py store --model MODEL ... --data ...                # what --store float16 changes
    python bench/scale.py paper --items items.json --fewer fewer.json       # measured rates, extrapolated on paper

Times are CPU seconds of one thread, but for `engines`, whose contenders take turns: wall seconds, and CPU seconds of
all processes of the session. docs/scale.md has the numbers of the run it names.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
LINEAR = ("ckasim", "ckasim-debiased", "svsim", "pwsim", "procrustes", "neuronsim", "mixedsim")
WORKERS = (2, 16, 128)
RAY_ITEM = 0.005
"""Seconds that Ray takes for one item beside its work: 500 items that do nothing took 2.2 s on two busy cores."""


def main() -> None:
    args = _arguments()
    {"items": items, "schedule": again, "engines": engines, "store": store, "paper": paper}[args.what](args)


# --- times of items, and a schedule made of them ----------------------------------------------------------------------


def items(args: argparse.Namespace) -> None:
    """Run a comparison in this process, with one thread, and write down what every item took."""
    import torch

    torch.set_num_threads(1)
    from stratoscope.engine import local
    from stratoscope.studies import asked
    from stratoscope.studies.compare.study import compare

    stages: list[dict[str, Any]] = []

    class Timed(local.InProcess):
        def map(self, work: Any, items: Iterable[Any], shared: Any = None, resources: Any = local.ANY) -> Iterator[Any]:
            stage = {"name": work.__name__, "begun": time.process_time(), "seconds": [], "bytes": []}
            stages.append(stage)
            for k, item in enumerate(items):
                begun = time.process_time()
                result = work(shared, item)
                stage["seconds"].append(time.process_time() - begun)
                stage["bytes"].append(sum(t.numel() * t.element_size() for t in result.values()))
                yield k, result

    asked.engine_of = lambda options, work=0.0: Timed()  # type: ignore[assignment]
    opened = _opening(args.model[0])
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        begun = time.process_time()
        result = compare(args.model, data=args.data, out=Path(folder) / "run", **_asked(args))
        total = time.process_time() - begun
    stages = [s for s in stages if s["seconds"]]
    measured = {
        "rows": result.data["rows"],
        "layers": sum(m.layers for m in result.models),
        "width": result.models[0].width,
        "measures": list(result),
        "total": total,
        "open": opened,
        "imports": _imports(),
        "stages": [{k: s[k] for k in ("name", "seconds", "bytes")} for s in stages],
    }
    args.items.write_text(json.dumps(measured))
    print(f"{measured['rows']} rows, {measured['layers']} layers of width {measured['width']}, {total:.1f} CPU s")
    print(f"opening a model {opened:.2f} s, starting a worker {measured['imports']:.2f} s of CPU\n")
    print("| step | items | CPU s, all | shortest | median | longest | MB returned, largest |")
    print("|---" * 7 + "|")
    for s in measured["stages"]:
        t = sorted(s["seconds"])
        numbers = f"{sum(t):.1f} | {t[0]:.2f} | {statistics.median(t):.2f} | {t[-1]:.2f}"
        print(f"| {s['name'].strip('_')} | {len(t)} | {numbers} | {max(s['bytes']) / 1e6:.1f} |")
    print()
    simulate(measured)


def again(args: argparse.Namespace) -> None:
    """The schedule from items measured before."""
    simulate(json.loads(args.items.read_text()))


def simulate(measured: dict[str, Any]) -> None:
    """The schedule of the measured items on so many workers, and of larger runs made of such items."""
    print("| run | core-hours | " + " | ".join(f"{w} workers: wall, efficiency" for w in WORKERS) + " |")
    print("|---" * (2 + len(WORKERS)) + "|")
    for name, layers, words in RUNS:
        run = grown(measured, layers, words)
        cells = [f"{run['total'] / 3600:.2f}"]
        for workers in WORKERS:
            wall, before = schedule(run, workers), schedule(run, workers, one_model_at_a_time=True)
            cells.append(f"{wall:,.0f} s, {run['total'] / (wall * workers):.0%} (one by one {before:,.0f} s)")
        print(f"| {name} | {' | '.join(cells)} |")


RUNS = (
    ("as measured", 1, 1),
    ("10 times the models", 10, 1),
    ("10 times the words", 1, 10),
    ("10 times the models, 100 times the words", 10, 100),
)


def grown(measured: dict[str, Any], models: int, words: int) -> dict[str, Any]:
    """So many times the models and words: more items where they are shards, longer ones where they are not."""
    measured_stages = measured["stages"]
    between = measured["total"] - sum(sum(s["seconds"]) for s in measured_stages)
    keeping = between / sum(sum(s["bytes"]) for s in measured_stages)
    reading: dict[str, Any] = {"name": "read_texts", "seconds": [], "bytes": [], "model": []}
    stages = [reading]
    for stage in measured_stages:
        name, seconds, sizes = stage["name"], stage["seconds"], stage["bytes"]
        if name == "read_texts":  # of one model each, at one time; all models in one map
            for _ in range(models):
                reading["model"] += [len(set(reading["model"]))] * len(seconds) * words
                reading["seconds"] += seconds * words
                reading["bytes"] += sizes * words
            continue
        longer, more = 1 if name == "_transform" else words, 1 if name == "_draw" else models
        more *= {"_transform": words, "_score_tile": models}.get(name, 1)
        stages.append({"name": name, "seconds": [s * longer for s in seconds] * more, "bytes": sizes * more})
    driver = keeping * sum(sum(s["bytes"]) for s in stages)
    total = driver + sum(sum(s["seconds"]) for s in stages)
    return {**measured, "stages": stages, "total": total, "keeping": keeping}


def schedule(run: dict[str, Any], workers: int, *, one_model_at_a_time: bool = False) -> float:
    """Wall seconds.

    As `Run.map` and the engines do it: an item goes to the first worker that is free, in order; a worker starts once,
    and opens a model unless it read with it last; the driver keeps one result after the other while workers go on; a
    step ends with its last item. `one_model_at_a_time` is how reading was until every model was in one map.
    """
    wall = run["imports"]
    for stage in run["stages"]:
        models = stage.get("model", [None] * len(stage["seconds"]))
        busy, barrier = [(0.0, k, None) for k in range(min(workers, len(models)))], 0.0
        for k, (seconds, model) in enumerate(zip(stage["seconds"], models, strict=True)):
            if one_model_at_a_time and k and model != models[k - 1]:
                barrier = max(busy)[0]
            free, worker, last = heapq.heappop(busy)
            opened = run["open"] if model != last else 0.0
            heapq.heappush(busy, (max(free, barrier) + opened + seconds + RAY_ITEM, worker, model))
        wall += max(max(busy)[0], run["keeping"] * sum(stage["bytes"]))
    return float(wall)


def _opening(model: str) -> float:
    from stratoscope.models.open.loading import ModelSpec, open_model

    begun = time.process_time()
    open_model(ModelSpec(model))
    return time.process_time() - begun


def _imports() -> float:
    """CPU seconds until a worker has what it needs."""
    code = "import time, torch, transformers, stratoscope.studies.compare.study; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    return float(done.stdout)


# --- two Ray workers against two processes ----------------------------------------------------------------------------


def engines(args: argparse.Namespace) -> None:
    """The same command with --workers 2 and with --engine ray, in turns."""
    words = ["compare", *args.model, "--data", args.data, "--limit", str(args.limit), "--workers", "2"]
    words += ["--random-init"] if args.random_init else []
    words += [w for m in LINEAR for w in ("-m", m)]
    taken: dict[str, list[tuple[float, float]]] = {"local": [], "ray": []}
    results: dict[str, bytes] = {}
    for number in range(args.rounds):
        for name in taken if number % 2 == 0 else reversed(taken):
            with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
                wall, cpu, said = _timed([*words, "--engine", name, "--out", f"{folder}/run"])
                result = (Path(folder) / "run" / "result.json").read_bytes()
            assert results.setdefault("", result) == result, "results differ"
            taken[name].append((wall, cpu))
            print(f"round {number + 1}, {name}: {wall:.1f} s wall, {cpu:.1f} s CPU; load {os.getloadavg()[0]:.1f}"
                  f"; {said}", flush=True)  # fmt: skip
    (lw, lc), (rw, rc) = ([statistics.median(t[k] for t in taken[n]) for k in (0, 1)] for n in ("local", "ray"))
    print(f"\nmedian: local {lw:.1f} s wall, {lc:.1f} CPU; ray {rw:.1f} wall, {rc:.1f} CPU;"
          f" ray over local {rw / lw:.2f} wall (goal 1.15), {rc / lc:.2f} CPU")  # fmt: skip


def _timed(words: Sequence[str]) -> tuple[float, float, str]:
    """Wall seconds of a command, CPU seconds of its whole session, and the times of its steps."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "stratoscope", *words],
        env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    used: dict[str, float] = {}

    def watch() -> None:
        while process.poll() is None:
            for stat in Path("/proc").glob("[0-9]*/stat"):
                try:
                    fields = stat.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == process.pid:  # its session
                    used[stat.parent.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.2)

    thread = threading.Thread(target=watch)
    thread.start()
    err = process.communicate()[1]
    wall = time.monotonic() - begun
    thread.join()
    if process.returncode:
        sys.exit(err)
    steps = [line.replace(": done in ", " ") for line in err.splitlines() if ": done in " in line]
    return wall, sum(used.values()), ", ".join(steps)


# --- what half precision on disk changes ------------------------------------------------------------------------------


def store(args: argparse.Namespace) -> None:
    """Every measure with activations in float32 and in float16: the largest difference over all pairs of layers."""
    import numpy as np

    from stratoscope.studies.compare.study import compare

    found, bytes_kept = {}, {}
    for kind in ("float32", "float16"):
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            asked = {**_asked(args), "measures": ("all",), "keep": True, "store": kind, "workers": 1}
            found[kind] = compare(args.model, data=args.data, out=Path(folder) / "run", **asked)
            bytes_kept[kind] = sum(p.stat().st_size for p in Path(folder).glob("run/parts/layers-*.safetensors"))
    whole, half = found["float32"], found["float16"]
    said = half.provenance["store"]
    print(f"{' and '.join(args.model)}: {whole.data['rows']} rows, activations {bytes_kept['float32'] / 1e6:.0f} MB in"
          f" float32, {bytes_kept['float16'] / 1e6:.0f} MB in float16\n")  # fmt: skip
    print(f"| measure | largest change | mean change | as the run says, on {said['rows']} rows |\n|---|---|---|---|")
    for name in whole:
        apart = np.abs(whole[name].values - half[name].values)
        own = said["change"].get(name)
        print(f"| {name} | {np.nanmax(apart):.1e} | {np.nanmean(apart):.1e} |"
              f" {'not measured' if own is None else f'{own:.1e}'} |")  # fmt: skip


# --- on paper ---------------------------------------------------------------------------------------------------------


def paper(args: argparse.Namespace) -> None:
    """The measured rates, and what they come to elsewhere."""
    many, few = (json.loads(path.read_text()) for path in (args.items, args.fewer))
    d, layers = many["width"], many["layers"]
    pairs = layers * (layers + 1) / 2
    seconds = {name: [sum(sum(s["seconds"]) for s in m["stages"] if s["name"] == name) for m in (many, few)]
               for name in ("read_texts", "_fit", "_transform", "_score_tile")}  # fmt: skip
    rows = many["rows"], few["rows"]
    reads = 2 * 12 * (layers - 2) * d**2 * rows[0] * TOKENS_PER_WORD / seconds["read_texts"][0]
    # What grows with the rows, and what a layer or a pair of layers takes however many there are.
    slope = {name: (s[0] - s[1]) / (rows[0] - rows[1]) for name, s in seconds.items()}
    fixed = {name: max(0.0, s[0] - slope[name] * rows[0]) for name, s in seconds.items()}
    layer, pair = (2 * d**2 * n / slope[name] for name, n in (("_fit", layers), ("_score_tile", pairs)))
    print(f"reading: {reads:.2e} FLOP (2 x weights x tokens) per CPU second")
    print(f"a layer: {layer:.2e} FLOP (2 n d^2) per CPU second, and {fixed['_fit'] / layers:.2f} s (d^3)")
    print(f"a pair: {pair:.2e} FLOP (2 n d^2) per CPU second, and {fixed['_score_tile'] / pairs:.3f} s (d^3)")
    print("\n| models | layers | width | words | reading, core-h | layers, core-h | pairs, core-h | of these with the"
          " base only | disk float32 | float16 | coordinates | memory of a worker |\n" + "|---" * 12 + "|")  # fmt: skip
    for models, depth, width, words in PLANS:
        every, cube = models * depth, (width / d) ** 3
        forward = 2 * 12 * width**2 * every * words * TOKENS_PER_WORD / reads
        bases = every * (2 * words * width**2 / layer + cube * fixed["_fit"] / layers)
        one = 2 * words * width**2 / pair + cube * fixed["_score_tile"] / pairs
        all_pairs, with_base = one * every * (every + 1) / 2, one * (models - 1) * depth * (2 * depth + 1)
        hours = " | ".join(f"{s / 3600:,.2g}" for s in (forward, bases, all_pairs, with_base))
        cells, worker = every * width * words, 8 * width**2 * (HELD + 2) + 4 * 2048 * width * 8
        print(f"| {models} | {depth} | {width:,} | {words:.0e} | {hours}"
              f" | {_size(4 * cells)} | {_size(2 * cells)} | {_size(4 * cells)} | {_size(worker)} |")  # fmt: skip


TOKENS_PER_WORD = 1.3
HELD = 16
"""Products of a tile of pairs that are held at once, if --memory has room for them; one at least."""
PLANS = (
    (2, 13, 768, 1e4), (2, 13, 768, 1e6), (20, 13, 768, 1e5), (20, 25, 1024, 1e5), (100, 80, 8192, 1e5),
    (100, 80, 8192, 1e6), (100, 80, 8192, 1e8),
)  # fmt: skip


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"


# --- command line -----------------------------------------------------------------------------------------------------


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    return {"measures": LINEAR, "limit": args.limit, "random_init": args.random_init}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE / "src"), "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("items", "schedule", "engines", "store", "paper"))
    parser.add_argument("--model", nargs="*", default=[])
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int, default=800, help="sentences; 800 of UD English dev have 10,000 words")
    parser.add_argument("--random-init", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=Path, default=Path("items.json"), help="file of measured items")
    parser.add_argument("--fewer", type=Path, default=Path("fewer.json"), help="the same with fewer rows (paper)")
    parser.add_argument("--scratch", type=Path, help="folder for temporary run folders")
    return parser.parse_args()


if __name__ == "__main__":
    main()
