"""Names and numbers as a reader sees them: clean, short enough, with digits that show the difference."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from stratoscope.core.value import Value

LEAST_DECIMALS, MOST_DECIMALS = 3, 6


def printable(text: object) -> str:
    """Text that can be drawn, written and printed anywhere: one line, no control characters, no broken Unicode."""
    whole = " ".join(str(text).encode("utf-8", "replace").decode("utf-8").split())
    return "".join(c if c.isprintable() else "\ufffd" for c in whole)


def shorten(name: str, width: int) -> str:
    """A label of at most `width` characters; a long one keeps its beginning and, twice as long, its end."""
    name, width = printable(name), max(width, 4)
    if len(name) <= width:
        return name
    head = (width - 1) // 3
    return name[:head] + "…" + name[len(name) - (width - 1 - head) :]


def slugs(names: Iterable[str]) -> dict[str, str]:
    """A name for each that every file system and every link takes, `svsim@0.5` as `svsim-at-0.5`; all different."""
    taken: set[str] = set()
    made: dict[str, str] = {}
    for name in dict.fromkeys(names):
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("@", "-at-"))[:80].strip(".-") or "unnamed"
        slug, again = safe, 2
        while slug.lower() in taken:
            slug, again = f"{safe}-{again}", again + 1
        taken.add(slug.lower())
        made[name] = slug
    return made


def decimals(value: float) -> int:
    """Digits after the point: three, more where the value is close to 0 or to 1, none for thousands."""
    if math.isnan(value) or math.isinf(value):
        return LEAST_DECIMALS
    if abs(value) >= 10:
        return 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    near = min((d for d in (abs(value), abs(1 - abs(value))) if d >= 1e-7), default=1.0)
    return LEAST_DECIMALS if near >= 0.01 else min(math.ceil(-math.log10(near)) + 1, MOST_DECIMALS)


def number(value: float, places: int | None = None) -> str:
    """A number with the digits that show it; a missing one is a dash."""
    if math.isnan(value):
        return "–"
    if places is None and 0 < abs(value) < 10**-MOST_DECIMALS:
        return f"{value:.1e}"
    return f"{value:,.{decimals(value) if places is None else places}f}".replace("-", "−")


def shown(value: Value) -> str:
    """A number with its interval where it has one, both with the same digits."""
    return f"{estimate(value)} {interval(value)}".rstrip()


def estimate(value: Value) -> str:
    """The number alone, with the digits of its interval."""
    return number(value.value, decimals(value.value) if value.has_interval else None)


def interval(value: Value) -> str:
    """The interval alone; empty where there is none."""
    places = decimals(value.value)
    return f"[{number(value.low, places)}, {number(value.high, places)}]" if value.has_interval else ""


def points(change: float) -> str:
    """A change of a metric in points, hundredths of it, with its sign."""
    size = abs(change) * 100
    text = f"{size:.1f}" if size >= 0.05 or size == 0 else f"{size:.1g}"
    return f"{'+' if change > 0 else '−' if change < 0 else '±'}{text} point{'' if text == '1.0' else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in words: 1–4, 7."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def count(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
