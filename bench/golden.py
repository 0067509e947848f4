"""Golden numbers: everything the public Python API gives, stored by one version of the code and checked by another.

    GOLDEN_INPUTS=DIR python bench/golden.py --prepare       make texts, tasks and tiny models in DIR, once
    GOLDEN_INPUTS=DIR python bench/golden.py FILE            compute all cases and store them in FILE
    GOLDEN_INPUTS=DIR python bench/golden.py --check FILE    compute again, print what moved; exit code 1 if any did

Before a change: `--prepare`, then FILE, in a checkout of the code to compare with (its own script, the same DIR). After
it: `--check FILE` here. A number has moved if it differs by more than 1e-9 (`--tolerance`), relative where it is
above 1. What moves is explained in CHANGELOG under "numbers changed". Neither DIR nor FILE is part of the repository:
float32 sums depend on the processor and on the libraries, so a FILE holds for the kind of machine it was made on, which
it records; elsewhere it is made anew. Everything runs in one thread, for sums depend on their number too.

    --quick            tiny models only: a few minutes; everything takes about twenty
    --only PREFIX      cases whose name begins so; may be repeated; when storing, the other cases of FILE stay
    --brief            at most five lines a case

DIR is $GOLDEN_INPUTS, by default `golden` in the cache folder of the demo. Real weights are read from $GOLDEN_WEIGHTS
(/tmp/weights): the checkpoints `minilm` and `sre` as `stratoscope.demo.assets` fetches them, `mpnet` as bench/inputs.py
does, and a file `smollm2.gguf`. `--prepare` reads `ud` and `glue` of $GOLDEN_SHARED (shared/data beside the checkout).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from golden_cases import Case

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
ALONE = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""No threads of others, no network, no other device."""
LIBRARIES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "tokenizers", "accelerate", "safetensors")
BRIEF = 5


def main() -> int:
    given = _arguments()
    os.environ |= dict.fromkeys(THREADS, "1") | ALONE  # before torch and stratoscope, which main's imports load
    warnings.simplefilter("ignore")
    import torch

    import stratoscope
    from golden_cases import FULL, QUICK
    from golden_inputs import prepare

    torch.set_num_threads(1)
    if given.prepare:
        prepare()
        return 0
    chosen = QUICK if given.quick else QUICK | FULL
    if given.only:
        chosen = {name: case for name, case in (QUICK | FULL).items() if name.startswith(tuple(given.only))}
    print(f"stratoscope from {Path(stratoscope.__file__).parent}", flush=True)
    return check(chosen, given) if given.check else store(chosen, given)


def store(chosen: dict[str, Case], given: argparse.Namespace) -> int:
    """Compute cases and write them; 1 if one failed."""
    kept = json.loads(given.file.read_text())["cases"] if given.only and given.file.exists() else {}
    failed = 0
    for name, work in chosen.items():
        try:
            found, seconds = run(work)
        except Exception:
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
            continue
        kept[name] = {"seconds": round(seconds, 1), "found": found}
        print(f"{name}: {numbers(found)} numbers, {seconds:.1f} s of CPU", flush=True)
    with tempfile.NamedTemporaryFile("w", dir=given.file.parent, delete=False) as f:
        json.dump({"meta": meta(), "cases": kept}, f, allow_nan=False)
    os.chmod(f.name, 0o644)
    os.replace(f.name, given.file)
    total = sum(numbers(c["found"]) for c in kept.values())
    print(f"{total} numbers of {len(kept)} cases in {given.file}; {failed} cases failed")
    return 1 if failed else 0


def check(chosen: dict[str, Case], given: argparse.Namespace) -> int:
    """Compute cases again and print what is not as it was; 1 if anything."""
    stored = json.loads(given.file.read_text())
    now = meta()
    for name, was in stored["meta"].items():
        if now[name] != was:
            print(f"NOTE {name} was {was}, is {now[name]}: numbers may move for that alone", flush=True)
    moved = looked_at = words = failed = 0
    for name, work in chosen.items():
        if name not in stored["cases"]:
            print(f"{name}: not in {given.file}; left out")
            continue
        was = stored["cases"][name]["found"]
        try:
            found, seconds = run(work)
        except Exception:
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
            continue
        seen = list(differences(was, found, "", given.tolerance))
        bad = [line for counts, line in seen if counts]
        soft = [line for counts, line in seen if not counts]
        looked_at, moved, words = looked_at + numbers(was), moved + len(bad), words + len(soft)
        print(f"{name}: {len(bad)} of {numbers(was)} differ, {seconds:.1f} s of CPU", flush=True)
        for mark, each in (("  DIFFERS", bad), ("  note", soft)):
            for line in each[: BRIEF if given.brief else None]:
                print(mark, line)
            if given.brief and len(each) > BRIEF:
                print(mark, f"... and {len(each) - BRIEF} more")
    print(f"{moved} differences in {looked_at} numbers of {len(chosen)} cases; {failed} cases failed; {words} notes")
    return 1 if moved or failed else 0


def run(work: Case) -> tuple[Any, float]:
    """What a case found, as JSON gives it back, and its CPU seconds."""
    import torch

    from golden_numbers import plain

    start = time.process_time()
    with tempfile.TemporaryDirectory(prefix="golden-") as out:
        torch.manual_seed(0)
        found = plain(work(Path(out)))
    return found, time.process_time() - start


def numbers(value: Any) -> int:
    """How many numbers count."""
    if isinstance(value, dict):
        return sum(numbers(v) for k, v in value.items() if not k.startswith("~"))
    return sum(map(numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def differences(old: Any, new: Any, at: str, tolerance: float, near: Any = None) -> Iterator[tuple[bool, str]]:
    """(whether it counts, line) of everything that is not as it was; `near` is the dictionary around a list."""
    if isinstance(old, dict) and isinstance(new, dict):
        for k in old:
            inner = f"{at}.{k}" if at else k
            if k.startswith("~"):
                if old[k] != new.get(k):
                    yield False, f"{inner}: words {old[k]!r} -> {new.get(k)!r}"
            elif k not in new:
                yield True, f"{inner}: was there, is not"
            else:
                yield from differences(old[k], new[k], inner, tolerance, old)
        for k in new.keys() - old.keys():
            yield False, f"{at}.{k}: new"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield True, f"{at}: {len(old)} entries -> {len(new)}"
            return
        for k, (a, b) in enumerate(zip(old, new, strict=True)):
            axis = near.get("columns" if "[" in at.rsplit(".", 1)[-1] else "rows") if isinstance(near, dict) else None
            label = axis[k] if isinstance(axis, list) and len(axis) == len(old) and at[-4:] != "rows" else k
            yield from differences(a, b, f"{at}[{label}]", tolerance, near)
    elif _number(old) and _number(new):
        if not abs(old - new) <= tolerance * max(1.0, abs(old)):
            yield True, f"{at}: {old!r} -> {new!r} ({new - old:+.3g})"
    elif old != new:
        yield True, f"{at}: {old!r} -> {new!r}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def meta() -> dict[str, Any]:
    """What numbers depend on besides the code."""
    from importlib.metadata import version

    import torch

    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    field = {k.strip(): v.strip() for k, _, v in (row.partition(":") for row in cpu.splitlines()) if v}
    return {
        "cpu": [field.get(k) for k in ("vendor_id", "cpu family", "model", "model name")],
        "simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="where the numbers are")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="PREFIX")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-9)
    parser.add_argument("--prepare", action="store_true", help="make the inputs anew; every FILE made before is void")
    given = parser.parse_args()
    if not given.prepare and given.file is None:
        parser.error("expected FILE, or --prepare")
    return given


if __name__ == "__main__":
    sys.exit(main())
