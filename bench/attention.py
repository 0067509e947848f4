"""Time and memory of attention measures beside plain loops over pairs of layers, one thread each.

    python bench/attention.py                  # about three minutes; prints, and writes its section of RESULTS.md
    python bench/attention.py --sentences 50   # a small round; nothing is written

What is compared: 2 models × 12 layers × 12 heads, 500 made-up sentences of about 25 words, every layer with every
other. The loops do the work of published code (github.com/johnmwu/contextual-corr-analysis, last version): all
sentences held, a tensor for each layer; for each pair of layers and each sentence a broadcast over the heads of both
with every intermediate stored, the result copied to numpy, then the best partner of each head. They are timed on all
sentences of some pairs of layers, and scaled to all pairs. `torch.norm` was difference, square, sum and root in the
torch of 2019 and is one fused pass after the difference today: both are timed. Ours is `HeadSums.update` as the study
calls it, group by group of sentences, made when needed. Every run is a process of its own with one thread, contenders
take turns; times are CPU seconds without making the sentences, ratios medians over the rounds, memory the peak of the
process less that of one that does nothing. Threads: seconds by the clock of ours with one and with two, beside what
two processes of one thread each, which is how a study works, take when they run at once: what the machine's second
core is worth at that moment.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from meter import machine
from report import _table
from validation_report import with_section

HERE = Path(__file__).resolve().parent
LAYERS, HEADS, WORDS, GROUP = 24, 12, 25, 10
TIMED = {"frobenius": 24, "frobenius-2019": 24, "pearson": 6, "js": 3}
"""Pairs of layers that the loops are timed on, of 276."""
GOALS = {"frobenius": 15, "pearson": 40, "js": 15}
ROWS: tuple[tuple[str, str, str, int], ...] = (
    ("frobenius", "frobenius", "frobenius", GOALS["frobenius"]),
    ("frobenius, `torch.norm` in steps as in 2019", "frobenius-2019", "frobenius", GOALS["frobenius"]),
    ("pearson", "pearson", "pearson", GOALS["pearson"]),
    ("js", "js", "js", GOALS["js"]),
    ("frobenius, ours without numba", "frobenius", "frobenius numpy", 0),
    ("js, ours without numba", "js", "js numpy", 0),
    ("all seven measures together", "", "all", 0),
)
"""Label, loop, ours, goal."""
QUIET = 1.0
"""Load average up to which seconds by the clock say something of threads."""
HEADING = "## Attention"


def sentence(k: int) -> Any:
    """(heads of all layers, words, words): attention of sentence k, peaked and flat heads alike."""
    import numpy as np

    rng = np.random.default_rng(k)
    n = int(np.clip(rng.normal(WORDS, 8), 1, 60))
    scores = rng.standard_normal((LAYERS * HEADS, n, n)) * rng.uniform(0.5, 4, (LAYERS * HEADS, 1, 1))
    weights = np.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


# --- contenders: CPU seconds for so many sentences ---------------------------------------------------------


def nothing(name: str, sentences: int) -> float:
    import torch

    torch.set_num_threads(1)
    sentence(0)
    return 0.0


def loops(name: str, sentences: int) -> float:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    layers: list[list[Any]] = [[] for _ in range(LAYERS)]
    for k in range(sentences):
        for layer, part in zip(layers, torch.from_numpy(sentence(k)).split(HEADS), strict=True):
            layer.append(part.clone())
    pairs = list(combinations(range(LAYERS), 2))
    chosen = pairs[:: len(pairs) // TIMED[name]]
    start = time.process_time()
    for first, second in chosen:
        each = np.zeros((sentences, HEADS, HEADS))
        for k, (a, b) in enumerate(zip(layers[first], layers[second], strict=True)):
            each[k] = PLAIN[name](a[:, None], b[None]).cpu().numpy()
        similarity = 1 - each.mean(axis=0)
        for axis in (1, 0):
            similarity.max(axis=axis).mean()
            similarity.argmax(axis=axis)
    return (time.process_time() - start) * len(pairs) / len(chosen)


def _plain_frobenius(a: Any, b: Any) -> Any:
    import torch

    return torch.norm(a - b, p="fro", dim=(2, 3))


def _plain_frobenius_2019(a: Any, b: Any) -> Any:
    apart = a - b
    return (apart * apart).sum(dim=(2, 3)).sqrt()


def _plain_pearson(a: Any, b: Any) -> Any:
    covariance = (a * b).mean(dim=-1) - a.mean(dim=-1) * b.mean(dim=-1)
    return (covariance / (a.std(dim=-1) * b.std(dim=-1))).sum(dim=-1)


def _plain_js(a: Any, b: Any) -> Any:
    m = (a + b) / 2
    total = 0.0
    for x in (a, b):
        terms = x * (x.log() - m.log())
        terms[terms.isnan()] = 0
        total = total + terms.sum(dim=-1) / 2
    return total.sum(dim=-1)  # type: ignore[attr-defined]


PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "frobenius": _plain_frobenius,
    "frobenius-2019": _plain_frobenius_2019,
    "pearson": _plain_pearson,
    "js": _plain_js,
}


def ours(name: str, sentences: int, threads: int | None = None) -> float:
    """CPU seconds of one thread, or, with `threads`, seconds by the clock."""
    import numpy as np
    import torch
    from threadpoolctl import ThreadpoolController

    from stratoscope.measures.attention import kernels
    from stratoscope.measures.attention.rows import HeadRows
    from stratoscope.measures.attention.sums import HeadSums
    from stratoscope.measures.attention.table import attention_measure, attention_measures

    torch.set_num_threads(threads or 1)
    name, _, plain = name.partition(" ")
    if plain:  # as without numba
        kernels._module = lambda: None  # type: ignore[assignment]
    wanted = attention_measures(["all"]) if name == "all" else (attention_measure(name),)
    needs = frozenset(s for m in wanted for s in m.needs)
    rows_of_two = np.full((2, 4), 0.5, np.float32), np.array([2, 2]), np.array([2])
    HeadSums(needs).update(HeadRows(*rows_of_two))  # compiled before the clock starts
    sums, spent = HeadSums(needs), 0.0
    clock = time.perf_counter if threads else time.process_time
    ThreadpoolController().limit(limits=1, user_api="blas")  # as in a run: `engine.local.InProcess`
    for first in range(0, sentences, GROUP):
        made = [sentence(k) for k in range(first, min(first + GROUP, sentences))]
        rows = HeadRows(
            np.concatenate([s.reshape(len(s), -1) for s in made], axis=1),
            np.concatenate([np.full(s.shape[1], s.shape[1]) for s in made]),
            np.array([s.shape[1] for s in made]),
        )
        start = clock()
        sums.update(rows)
        spent += clock() - start
    return spent


def throughput() -> dict[str, float]:
    """Logarithms a second, in billions: of numpy and torch on blocks that stay in the cache, and of our kernel."""
    import numpy as np
    import torch

    from stratoscope.measures.attention.mixtures import mixture_sums

    torch.set_num_threads(1)
    x = torch.rand(2**14)
    out, n = torch.empty_like(x), 400
    values = np.concatenate([sentence(k).reshape(LAYERS * HEADS, -1) for k in range(4)], axis=1)
    logs = LAYERS * HEADS * (LAYERS * HEADS + 1) / 2 * values.shape[1]
    mixture_sums(values[:, :64].copy())

    def rate(work: Callable[[], Any], count: float) -> float:
        best = min(_timed(work) for _ in range(3))
        return count / best / 1e9

    return {
        "numpy log, float32": rate(lambda: [np.log(x.numpy(), out=out.numpy()) for _ in range(n)], n * len(x)),
        "torch log, float32": rate(lambda: [torch.log(x, out=out) for _ in range(n)], n * len(x)),
        "our kernel, (a + b) log(a + b) summed": rate(lambda: mixture_sums(values), logs),
        "the same in numpy, float64": rate(lambda: mixture_sums(values, compiled=False), logs),
    }


def _timed(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# --- rounds


def begun(contender: str, name: str, sentences: int, threads: int | None = None) -> subprocess.Popen[str]:
    """A process of its own for one contender."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    command = [sys.executable, __file__, "--one", contender, name, "--sentences", str(sentences)]
    command += ["--threads", str(threads)] if threads else []
    environment = {**os.environ, **dict.fromkeys(names, str(threads or 1))}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Its seconds and peak bytes."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} failed")
    seconds, peak = map(float, out.split())
    return seconds, peak


def run(contender: str, name: str, sentences: int, threads: int | None = None) -> tuple[float, float]:
    return ended(begun(contender, name, sentences, threads))


def at_once(name: str, sentences: int) -> float:
    """Seconds by the clock of the slower of two processes of one thread that run at the same time."""
    both = [begun("ours", name, sentences, 1) for _ in range(2)]
    return max(ended(p)[0] for p in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "MEASURE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        contender, name = args.one
        more = {"threads": args.threads} if args.threads else {}
        seconds = {"loops": loops, "ours": ours, "nothing": nothing}[contender](name, args.sentences, **more)
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    facts, quiet = machine(), os.getloadavg()[0] < QUIET
    bare = run("nothing", "", args.sentences)[1]
    pairs = sorted({pair for row in ROWS for pair in (("loops", row[1]), ("ours", row[2])) if pair[1]})
    found: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in pairs}
    clock: dict[str, list[tuple[float, float, float]]] = {name: [] for name in GOALS}
    for _ in range(args.rounds):
        for contender, name in pairs:
            found[contender, name].append(run(contender, name, args.sentences))
        for name, times in clock.items() if quiet else ():
            alone, two = (run("ours", name, args.sentences, threads)[0] for threads in (1, 2))
            times.append((alone, two, at_once(name, args.sentences)))
    tenth = run("ours", "js", args.sentences // 10)[1]
    text = page(args, facts, found, clock, bare, tenth)
    print(text)
    if args.sentences >= 500:
        results = HERE / "RESULTS.md"
        results.write_text(with_section(results.read_text(encoding="utf-8"), text, HEADING), encoding="utf-8")


def page(args: Any, facts: Any, found: Any, clock: Any, bare: float, tenth: float) -> str:
    def seconds(*of: str) -> float:
        return median(s for s, _ in found[of])

    def peak(*of: str) -> str:
        return f"{(median(p for _, p in found[of]) - bare) / 1e6:.0f}"

    rows = []
    for label, theirs, mine, goal in ROWS:
        row = [label, "", f"{seconds('ours', mine):.2f}", "", "", "", "", peak("ours", mine)]
        if theirs:
            both = zip(found["loops", theirs], found["ours", mine], strict=True)
            ratio = median(a / b for (a, _), (b, _) in both)
            row[1], row[3], row[6] = f"{seconds('loops', theirs):.1f}", f"{ratio:.1f}×", peak("loops", theirs)
            row[4:6] = [f"≥ {goal}", "yes" if ratio >= goal else "**no**"] if goal else ["", ""]
        rows.append(tuple(row))
    threads = []
    for name, times in ((name, times) for name, times in clock.items() if times):
        alone, two, beside = (median(t[k] for t in times) for k in range(3))
        gain, worth = (median(t[0] / t[1] for t in times), median(2 * t[0] / t[2] for t in times))
        threads.append((name, f"{alone:.2f}", f"{two:.2f}", f"{gain:.2f}×", f"{beside:.2f}", f"{worth:.2f}×"))
    head = ("measure", "loops, CPU s", "ours, CPU s", "ratio", "goal", "met", "loops, MB", "ours, MB")
    rates = throughput()
    best = max(rates["numpy log, float32"], rates["torch log, float32"])
    mine = rates["our kernel, (a + b) log(a + b) summed"]
    logs = [(name, f"{rate:.2f}", f"{rate / best:.0%}") for name, rate in rates.items()]
    fewer = (tenth - bare) / 1e6
    listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    sections = (
        f"{HEADING}\n\n2 models × 12 layers × 12 heads, {args.sentences} made-up sentences of about {WORDS} words,"
        " every layer with every other; one thread, contenders taking turns, medians over the"
        f" rounds.\n\n- command: `python bench/attention.py --rounds {args.rounds}` ({date.today()})\n{listed}",
        _table(head, rows),
        "Memory is beyond an idle process's; numba's compiler takes most of ours. With a tenth of the sentences js"
        f" takes {fewer:.0f} MB.",
        _table(("one thread", "billion logarithms a second", "of the faster library"), logs),
        f"The kernel takes {mine / best:.0%} of the logarithms a second that the faster library's bare logarithm"
        " reaches, with the sum, the product and the reduction included.",
        *(_scaling(threads) if threads else (f"Two threads were not timed: the load was above {QUIET} at the start.",)),
    )
    return "\n\n".join(sections) + "\n"


def _scaling(threads: list[tuple[str, ...]]) -> tuple[str, str]:
    head = ("seconds by the clock", "1 thread", "2 threads", "gain", "2 processes of 1 thread at once", "gain")
    last = "The last column is what the second core was worth: twice the work in the time of the slower process."
    return _table(head, threads), last


if __name__ == "__main__":
    main()
