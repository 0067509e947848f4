"""What the validation on real tasks found, as one section of RESULTS.md that other benchmarks leave alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from report import _table

Record = Mapping[str, Any]
"""What one model did on one task (validate.py), or under `failed` why it did nothing."""

HEADING = "## Validation on real tasks"
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "minilm": {"sst2": 91.5, "rte": 68.8, "mrpc": 88.9, "cola": 47.5},
}
"""Development set of GLUE after all training rows, in percent."""
SOURCES = (
    "Published: the pre-trained relatives of these sentence encoders, tuned on ALL training rows and judged on the full"
    " development set, so a ballpark and not a goal. MiniLM-L6xH384: github.com/microsoft/unilm, minilm/README.md (no"
    " STS-B there); no table of MPNet's could be read here. Ours is, for MRPC, the mean of"
    " accuracy and F1 and, for STS-B, of Pearson's and Spearman's correlation; theirs may be one."
)
NAME, FLOORS, STEP = ("model", "task"), ("majority", "bag of words"), ("step, whole", "step, frozen", "ratio")
BLOCKS = tuple(f"{measure}, {who}" for measure in ("CKA", "debiased CKA") for who in ("base", "tuned", "random"))


def section_of(page: str, heading: str = HEADING) -> str:
    """The section of a page under a heading; nothing where there is none."""
    found = _section(heading).search(page)
    return found[0].rstrip() + "\n" if found else ""


def with_section(page: str, section: str, heading: str = HEADING) -> str:
    """The page with this section in place of its old one, or at its end."""
    if _section(heading).search(page):
        return _section(heading).sub(lambda _: section.rstrip() + "\n\n", page).rstrip() + "\n"
    return f"{page.rstrip()}\n\n{section}".lstrip()


def _section(heading: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(heading)}$.*?(?=^##? |\Z)", re.MULTILINE | re.DOTALL)


def render(records: Sequence[Record], facts: Mapping[str, str]) -> str:
    """The whole section, from what is finished so far."""
    done = [r for r in records if "failed" not in r]
    failed = [f"- **failed**: {r['model']} on {r['task']}: {r['failed']}" for r in records if "failed" in r]
    commands = dict.fromkeys(f"- command: `{r['command']}` ({r['date']})" for r in records)
    parts = [
        f"{HEADING}\n",
        *commands,
        *[f"- {name}: {value}" for name, value in facts.items()],
        *failed,
        "\n### The task\n",
        _table(
            (*NAME, "rows", "metric", "tuned [95 %]", *FLOORS, "beats both", "published"), [_scores(r) for r in done]
        ),
        f"\n{SOURCES}",
        "\n### Two blocks, before and after\n",
        _table((*NAME, "unit", *BLOCKS), [_blocks(r, unit) for r in done for unit in r["blocks"]]),
        "\nContrast: mean similarity within the two blocks minus between them, at the split where it is largest; in"
        " brackets the first layer of the second block. Any smooth matrix has one: read it beside base and random"
        " initialisation.",
        "\n### Top blocks that can go at less than one point\n",
        _table((*NAME, "blocks", "UNTUNED", "TUNED"), [_depth(r) for r in done]),
        "\nBy the point estimate, and in brackets with the lower end of the difference's 95 % interval still within"
        " the point. Where the model does not beat both baselines, the number says little.",
        "\n### Freezing the lower half, and seconds of everything\n",
        _table((*NAME, "frozen", "trained", *STEP, "fine-tuning", "layers and depth", "all"), [_cost(r) for r in done]),
        "\nA step: seconds in short trainings taking turns on the same batches, the ratio the median over the rounds;"
        " trained: share of the parameters. A resumed run counts its last attempt, fine-tuning all of them.",
    ]
    return "\n".join(parts) + "\n"


def _scores(r: Record) -> tuple[str, ...]:
    value, low, high = r["score"]
    best = max(r["majority"], r["bag_of_words"])
    verdict = "yes" if low > best else "not surely" if value > best else "**no**"
    known = PUBLISHED.get(r["model"], {}).get(r["task"])
    floors = (f"{r['majority']:.3f}", f"{r['bag_of_words']:.3f}")
    rows = f"{r['train']:,}/{r['validation']:,}"
    shown = f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return (*_name(r), rows, r["metric"], shown, *floors, verdict, "–" if known is None else f"{known / 100:.3f}")


def _blocks(r: Record, unit: str) -> tuple[str, ...]:
    cells = (
        r["blocks"][unit][measure].get(who) for measure in r["blocks"][unit] for who in ("base", "tuned", "random")
    )
    return (*_name(r), unit, *("–" if c is None else f"{c['contrast']:.3f} ({c['start']})" for c in cells))


def _depth(r: Record) -> tuple[str, ...]:
    return (*_name(r), f"{r['depth']}", *(f"{about} ({sure})" for about, sure in r["droppable"].values()))


def _cost(r: Record) -> tuple[str, ...]:
    f, s = r["freeze"], r["seconds"]
    step = (f"{f['whole']:.2f}", f"{f['frozen']:.2f}", f"{f['ratio']:.2f}×")
    return (
        *_name(r),
        f["how"],
        f"{f['trained']:.0%}",
        *step,
        *(f"{s[part]:.0f}" for part in ("finetune", "study", "all")),
    )


def _name(r: Record) -> tuple[str, str]:
    return str(r["model"]), str(r["task"])
