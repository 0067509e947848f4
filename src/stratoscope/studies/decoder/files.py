"""Write a cut decoder: checkpoint, model card and the numbers as plain data; verified before it is in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.claims.scores import spans as ranges
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import write_text
from stratoscope.core.value import Value, ratio_of_sums
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.heads import Causal
from stratoscope.models.read.perplexity import LEVEL, predictions
from stratoscope.models.surgery.blocks import exported
from stratoscope.models.surgery.latency import latency_ratio
from stratoscope.models.surgery.reload import apart
from stratoscope.models.text.encoder import sound
from stratoscope.results.cutting.decoder import CutDecoder
from stratoscope.studies.checkpoint import put_in_place, weights_of, write_checkpoint
from stratoscope.studies.cut.card import HUB_ID, escaped, spelled
from stratoscope.studies.cut.files import APART, CARD
from stratoscope.studies.decoder.work import Chosen, Removed, Work
from stratoscope.studies.perplexity.spans import exp, ratio, spans_of

RELOADED = 4
"""Texts on which the written checkpoint must give the same logits."""
TIMED, ROUNDS = 8, 7
"""Texts on which the models are timed, in one batch, and how often."""


def write_cut(work: Work, found: Chosen, removed: Removed, allowed: float) -> CutDecoder:
    """Fill the run's folder with the model without these blocks, and return what `decoder.json` says of it."""
    assert work.run.folder is not None
    rows, tokens, patch = work.shares.confirm, work.tokens(work.shares.confirm), found.patches[removed]
    whole, judged = (work.said(rows, *cut) for cut in ((), (removed, patch)))
    with work.cut((), patch).opened() as model:
        small: Any = exported(model.module, work.kept(removed))
    _forget_gguf_(small)
    some = rows[:RELOADED]
    again = predictions(replace(work.model, module=small), work.encoded, some).losses
    if not np.allclose(again, judged.losses[:RELOADED], rtol=APART):
        raise StratoscopeError(
            f"the cut model does not say what it was judged by, so it is not written; this is a defect in how"
            f" '{work.surveyed.family.name}' is cut, please report it"
        )
    timed = latency_ratio(work.model.module, small, [work.encoded.batch(rows[:TIMED])], rounds=ROUNDS)
    device, threads = work.model.device.type, torch.get_num_threads()
    size = {"before": _parameters(work.model.module), "after": _parameters(small)}
    folder = write_checkpoint(work.run.folder, small.to("cpu"), work.surveyed.encoder.tokenizer)
    given = [_given(sound(work.corpus.sentences[int(k)].text), work.length) for k in some]
    trust = work.spec.trust_remote_code
    worst = apart(folder, small, Causal().auto_class, given, trust_remote_code=trust)
    choosing = work.shares.choose
    result = CutDecoder(
        folder=work.run.folder.path,
        model={
            "name": work.spec.label,
            "source": work.spec.source,
            "hub": not locate(work.spec.source).local,
            "family": work.surveyed.family.name,
            "fingerprint": work.surveyed.fingerprint,
            "blocks": work.blocks,
        },
        kept=work.kept(removed),
        dropped=removed,
        patched=tuple(first - 1 for (first, _), _ in patch),
        corpus={"name": work.corpus.name, "fingerprint": work.corpus.fingerprint, "texts": len(work.corpus)},
        max_ppl=allowed,
        confidence=work.options.confidence,
        texts={
            **{name: len(share) for name, share in vars(work.shares).items()},
            "seed": work.options.seed,
        },
        tried=found.tried,
        spans=spans_of(found.spans, found.whole, work.tokens(choosing)),
        before=exp(ratio_of_sums(whole.losses, tokens, level=LEVEL)),
        after=exp(ratio_of_sums(judged.losses, tokens, level=LEVEL)),
        ratio=ratio(judged.losses, whole.losses, tokens, level=2 * work.options.confidence - 1),
        agreement=ratio_of_sums(judged.agreement(whole).astype(float), tokens, level=LEVEL),
        length=work.length,
        parameters=size,
        latency={
            **dict(zip(("ratio", "low", "high"), timed, strict=True)),
            "rounds": ROUNDS,
            "texts": min(TIMED, len(rows)),
            "device": device,
            "threads": threads,
        },
        reload={"rows": len(some), "apart": worst, "weights": weights_of(folder)},
        warnings=tuple(_warnings(work)),
    )
    write_text(folder / CARD, model_card(result))
    put_in_place(work.run.folder)
    return result


def model_card(made: CutDecoder) -> str:
    """The card of a cut decoder; names from outside are escaped, so that none can write markup or front matter."""
    name, text, size, speed = escaped(made.model["name"]), escaped(made.corpus["name"]), made.parameters, made.latency
    blocks, source = made.model["blocks"], made.model["source"]
    hub = [f"base_model: {json.dumps(source)}"] if made.model["hub"] and HUB_ID.fullmatch(source) else []
    patched = (
        f"; the down projection of {spelled(made.patched)} was refitted on {made.texts['fit']} other texts to close the"
        " gap, and everything else is unchanged"
        if made.patched
        else "; everything else is unchanged"
    )
    lines = [
        *("---", "library_name: transformers", "pipeline_tag: text-generation", *hub),
        *("tags:", "- stratoscope", "- layer-pruning", "metrics:", "- perplexity", "---", ""),
        f"# {name}, cut to {len(made.kept)} of {blocks} blocks",
        "",
        f"`stratoscope cut` took {spelled(made.dropped)} out of {name}{patched}. Blocks {ranges(made.kept)} are left.",
        "",
        "| | before | after |",
        "|---|---|---|",
        f"| blocks | {blocks} | {len(made.kept)} |",
        f"| parameters | {size['before']:,} | {size['after']:,} ({size['after'] / size['before']:.0%}) |",
        f"| perplexity on {text} | {_point(made.before)} | {_point(made.after)} |",
        f"| time per batch | 1 | {speed['ratio']:.2f} ({speed['low']:.2f} to {speed['high']:.2f}) |",
        "",
        f"Perplexity is {made.ratio.value:.3f} times that of the whole model; with {made.confidence:.0%} confidence at"
        f" most {made.ratio.high:.3f} times (limit: {made.max_ppl:g}). Of {_point(made.agreement)} of the tokens both"
        f" models say the same first. It was measured on {made.texts['confirm']} texts that took no part in choosing"
        f" the cut ({made.texts['choose']} texts). It holds for text like this; on other text it may be more.",
        "",
        *("## How to load", "", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""),
        'folder = "."  # where this file is',
        "model = AutoModelForCausalLM.from_pretrained(folder)",
        *("tokenizer = AutoTokenizer.from_pretrained(folder)", "```", ""),
        f"Texts were read up to {made.length} tokens. The checkpoint was reloaded this way when it was written: its"
        f" logits were at most {made.reload['apart']:.1g} from those of the model that was judged.",
        "",
    ]
    if made.warnings:
        lines += ["## Warnings", "", *(f"- {escaped(w)}" for w in made.warnings), ""]
    return "\n".join(lines)


def _forget_gguf_(module: Any) -> None:
    """The weights of a GGUF are plain ones once they are loaded; as a checkpoint they would be taken for packed."""
    packed = getattr(module.config, "quantization_config", None)
    if getattr(packed, "quant_method", None) == "gguf":
        module.hf_quantizer = None
        del module.config.quantization_config


def _given(text: str, length: int) -> Callable[[Any], dict[str, Tensor]]:
    def make(tokenizer: Any) -> dict[str, Tensor]:
        return dict(tokenizer(text, truncation=True, max_length=length, return_tensors="pt"))

    return make


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def _point(point: Value) -> str:
    return f"{point.value:.3f} ({point.low:.3f} to {point.high:.3f})"


def _warnings(work: Work) -> list[str]:
    notes = []
    if work.options.patch and work.surveyed.family.down is None:
        notes.append(f"nothing was refitted: the down projection of '{work.surveyed.family.name}' is not known")
    if cut := int(work.encoded.truncated.sum()):
        notes.append(f"{cut} texts are longer than {work.length} tokens and were truncated")
    return notes
