"""Time and memory of attention measures beside plain loops over pairs of layers, one thread each.

    python bench/attention.py                  # about three minutes; prints, and writes its section of RESULTS.md
    python bench/attention.py --sentences 50   # a small round; nothing is written

What is compared: 2 models × 12 layers × 12 heads, 500 made-up sentences of about 25 words, every layer with every
other. The loops do what published code does (github.com/johnmwu/contextual-corr-analysis, last version: all sentences
held, a broadcast over the heads of two layers for each sentence); they are timed on the first sentences and scaled.
Ours is `HeadSums.update` as the study calls it, group by group of sentences, made when needed. Every run is a
process of its own with one thread, contenders take turns; times are CPU seconds without making the sentences, ratios
medians over the rounds, memory the peak of the process less that of one that does nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
LAYERS, HEADS, WORDS, GROUP = 24, 12, 25, 10
SAMPLE = 10
"""Sentences that the loops are timed on."""
GOALS = {"frobenius": 15, "pearson": 40, "js": 15}
NAMES = tuple(GOALS)
HEADING, REAL = "## Attention", "## Attention on real weights"


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
    import torch

    torch.set_num_threads(1)
    held = [torch.from_numpy(sentence(k)) for k in range(sentences)]
    few = held[:SAMPLE]
    layers = [[s[k * HEADS : (k + 1) * HEADS] for s in few] for k in range(LAYERS)]
    start = time.process_time()
    for x, y in combinations(layers, 2):
        total = torch.zeros(HEADS, HEADS)
        for a, b in zip(x, y, strict=True):
            total += PLAIN[name](a[:, None], b[None])
    size, whole = (sum(s[0].numel() for s in part) for part in (few, held))
    return (time.process_time() - start) * whole / size


def _plain_frobenius(a: Any, b: Any) -> Any:
    import torch

    return torch.norm(a - b, p="fro", dim=(2, 3))


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
    "pearson": _plain_pearson,
    "js": _plain_js,
}


def ours(name: str, sentences: int) -> float:
    import numpy as np
    import torch

    from stratoscope.measures.attention import mixtures
    from stratoscope.measures.attention.rows import HeadRows
    from stratoscope.measures.attention.sums import HeadSums
    from stratoscope.measures.attention.table import attention_measure, attention_measures

    torch.set_num_threads(1)
    name, _, kernel = name.partition(" ")
    if kernel:  # as without numba
        mixtures._kernel = lambda: None  # type: ignore[assignment]
    mixtures.mixture_sums(np.ones((2, 2), np.float32))  # compiled before the clock starts
    wanted = attention_measures(["all"]) if name == "all" else (attention_measure(name),)
    sums, spent = HeadSums(frozenset(s for m in wanted for s in m.needs)), 0.0
    for first in range(0, sentences, GROUP):
        made = [sentence(k) for k in range(first, min(first + GROUP, sentences))]
        rows = HeadRows(
            np.concatenate([s.reshape(len(s), -1) for s in made], axis=1),
            np.concatenate([np.full(s.shape[1], s.shape[1]) for s in made]),
            np.array([s.shape[1] for s in made]),
        )
        start = time.process_time()
        sums.update(rows)
        spent += time.process_time() - start
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


def run(contender: str, name: str, sentences: int) -> tuple[float, float]:
    """CPU seconds and peak bytes of one process."""
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
    command = [sys.executable, __file__, "--one", contender, name, "--sentences", str(sentences)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "MEASURE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        contender, name = args.one
        seconds = {"loops": loops, "ours": ours, "nothing": nothing}[contender](name, args.sentences)
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    runs = [(c, n) for n in NAMES for c in ("loops", "ours")] + [("ours", "js numpy"), ("ours", "all")]
    bare = run("nothing", "", args.sentences)[1]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {r: [] for r in runs}
    for _ in range(args.rounds):
        for contender, name in runs:
            found[contender, name].append(run(contender, name, args.sentences))
    tenth = run("ours", "js", args.sentences // 10)[1]
    text = page(args, found, bare, tenth)
    print(text)
    if args.sentences >= 500:
        from validation_report import with_section

        results = HERE / "RESULTS.md"
        results.write_text(with_section(results.read_text(encoding="utf-8"), text, HEADING), encoding="utf-8")


def page(args: Any, found: Any, bare: float, tenth: float) -> str:
    from meter import machine
    from report import _table

    def seconds(*of: str) -> float:
        return median(s for s, _ in found[of])

    def peak(*of: str) -> str:
        return f"{(median(p for _, p in found[of]) - bare) / 1e6:.0f}"

    rows = []
    for name in NAMES:
        ratio = median(a / b for (a, _), (b, _) in zip(found["loops", name], found["ours", name], strict=True))
        met = "yes" if ratio >= GOALS[name] else "**no**"
        both = (f"{seconds('loops', name):.1f}", f"{seconds('ours', name):.2f}")
        rows.append((name, *both, f"{ratio:.0f}×", f"≥ {GOALS[name]}", met, peak("loops", name), peak("ours", name)))
    plain = seconds("ours", "js numpy")
    rows.append(("js, without numba", f"{seconds('loops', 'js'):.1f}", f"{plain:.2f}",
                 f"{seconds('loops', 'js') / plain:.0f}×", "", "", "", peak("ours", "js numpy")))  # fmt: skip
    rows.append(
        ("all seven measures together", "", f"{seconds('ours', 'all'):.2f}", "", "", "", "", peak("ours", "all"))
    )
    head = ("measure", "loops, CPU s", "ours, CPU s", "ratio", "goal", "met", "loops, MB", "ours, MB")
    rates = throughput()
    best = max(rates["numpy log, float32"], rates["torch log, float32"])
    mine = rates["our kernel, (a + b) log(a + b) summed"]
    logs = [(name, f"{rate:.2f}", f"{rate / best:.0%}") for name, rate in rates.items()]
    fewer = (tenth - bare) / 1e6
    facts = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    sections = (
        f"{HEADING}\n\n2 models × 12 layers × 12 heads, {args.sentences} made-up sentences of about {WORDS} words,"
        " every layer with every other; one thread, contenders taking turns, medians over the"
        f" rounds.\n\n- command: `python bench/attention.py --rounds {args.rounds}`\n{facts}",
        _table(head, rows),
        "Memory is beyond an idle process's; numba's compiler takes most of ours. With a tenth of the sentences js"
        f" takes {fewer:.0f} MB.",
        _table(("one thread", "billion logarithms a second", "of the faster library"), logs),
        f"The kernel takes {mine / best:.0%} of the logarithms a second that the faster library's bare logarithm"
        " reaches, with the sum, the product and the reduction included.",
    )
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()
