"""The model card of a cut checkpoint: README.md with the front matter the hub reads, made from the record alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from stratoscope.claims.scores import spans
from stratoscope.core.value import Value
from stratoscope.data.tasks.data import CHOICE
from stratoscope.results.cutting.cut import Cut

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def model_card(made: Cut) -> str:
    """The card of a cut model; names from outside are escaped, so that none can write markup or front matter."""
    head, size, speed = made.head, made.parameters, made.latency
    name, task, metric = escaped(made.model["name"]), escaped(made.task["name"]), made.metric
    blocks, kept = made.model["blocks"], made.kept
    before, after, change = made.before, made.after, made.difference
    how = "tuned further on the layer it now reads (before, it was judged as it is)" if head["tuned"] else "as it was"
    tested = "one cut was" if len(made.tested) == 1 else f"{len(made.tested)} cuts were"
    lines = [
        *_front_matter(made),
        f"# {name}, cut to {len(kept)} of {blocks} blocks",
        "",
        f"`stratoscope cut` took {spelled(made.dropped)} out of the fine-tuned model {name}; the other"
        f" blocks ({spans(kept)}) are unchanged and the head is {how}.",
        "",
        "| | before | after |",
        "|---|---|---|",
        f"| blocks | {blocks} | {len(kept)} |",
        f"| parameters | {size['before']:,} | {size['after']:,} ({size['after'] / size['before']:.0%}) |",
        f"| {escaped(metric)} on {task} | {_point(before)} | {_point(after)} |",
        f"| time per batch | 1 | {speed['ratio']:.2f} ({speed['low']:.2f} to {speed['high']:.2f}) |",
        "",
        f"{escaped(metric).capitalize()} changed by {change.value:+.4f}; with {made.confidence:.0%} confidence"
        f" by no less than {change.low:+.4f} (budget: {made.budget:g}). It was measured on"
        f" {made.rows['confirm']} validation rows that took no part in choosing the cut; the choice was made on"
        f" {made.rows['choose']} others, and {tested} tested in a fixed sequence, mildest"
        " first, until one failed or none was left. Intervals in the table are 95 % bootstrap intervals.",
        "",
        f"Simple baselines on the same rows: majority {made.baselines['majority']:.3f}, bag of words"
        f" {made.baselines['bag_of_words']:.3f}. Times are the median of {speed['rounds']} interleaved rounds of"
        f" both models on {escaped(speed['device'])} (threads: {speed['threads']}).",
        "",
        "## How to load",
        "",
        "```python",
        f"from transformers import {made.loads_with}, AutoTokenizer",
        "",
        'folder = "."  # where this file is',
        f"model = {made.loads_with}.from_pretrained(folder)",
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "```",
        "",
        f"Texts were read up to {made.length} tokens. The checkpoint was reloaded this way when it was written:"
        f" its logits were at most {made.reload['apart']:.1g} from those of the model that was judged.",
        "",
    ]
    if made.warnings:
        lines += ["## Warnings", "", *(f"- {escaped(w)}" for w in made.warnings), ""]
    return "\n".join(lines)


def _front_matter(made: Cut) -> list[str]:
    """YAML in which every value from outside is a JSON string, which YAML reads as it is."""
    metric = {"correlation": "pearsonr", "matthews": "matthews_correlation"}.get(made.metric, made.metric)
    lines = ["---", "library_name: transformers"]
    if made.task["format"] != CHOICE:
        lines.append("pipeline_tag: text-classification")
    if made.model["hub"] and HUB_ID.fullmatch(made.model["source"]):
        lines.append(f"base_model: {json.dumps(made.model['source'])}")
    return [*lines, "tags:", "- stratoscope", "- layer-pruning", "metrics:", f"- {json.dumps(metric)}", "---", ""]


def escaped(text: str) -> str:
    """Text as Markdown shows it: one line, and no character that means anything to Markdown or HTML."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return re.sub(r"([\\`*_{}\[\]()<>#|!&~:@$^])", r"\\\1", line)


def spelled(blocks: Sequence[int]) -> str:
    """`block 6` or `blocks 4-6`."""
    return f"block{'s' if len(blocks) > 1 else ''} {spans(blocks)}"


def _point(point: Value) -> str:
    return f"{point.value:.4f} ({point.low:.4f} to {point.high:.4f})"
