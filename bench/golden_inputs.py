"""What the golden cases read: texts, tasks and tiny models, made once so that they never change between versions."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import stratoscope as ss
from stratoscope.data.tasks.data import Example, TaskData
from stratoscope.demo.assets import default_cache

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
INPUTS = Path(os.environ.get("GOLDEN_INPUTS", default_cache() / "golden"))
WEIGHTS = Path(os.environ.get("GOLDEN_WEIGHTS", "/tmp/weights"))
SHARED = Path(os.environ.get("GOLDEN_SHARED", ROOT.parent / "shared/data"))
MINILM, SRE, MPNET, SMOLLM = (WEIGHTS / name for name in ("minilm", "sre", "mpnet", "smollm2.gguf"))
TUNED = INPUTS / "tuned"
HOW_TUNED = {"recipe": "quick", "lr": 2e-4, "epochs": 1}


def prepare() -> None:
    """Write the inputs, once; texts and models of the cases then never change."""
    sys.path[:0] = [str(TESTS), str(TESTS / "studies")]
    import planted
    import toys
    import transformers

    import tiny as maker

    INPUTS.mkdir(parents=True, exist_ok=True)
    draw = random.Random(11)
    words = sorted({w for s in maker.SENTENCES for w in s.split()})
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 14))) for _ in range(90)]
    write("many.txt", "\n".join(texts) + "\n")
    write("short.txt", "Yes.\nBirds sing.\nThe dog.\nIt rains.\nold film\n")
    write("few.txt", "\n".join(texts[:4]) + "\n")
    pairs = list(zip(texts[:40], texts[40:], strict=False))
    write_rows("pairs.jsonl", [{"text": a, "other": b, "label": "ab"[k % 2]} for k, (a, b) in enumerate(pairs)])
    table = ["first\tsecond\tkind", *(f"{a}\t{b}\t{k % 2}" for k, (a, b) in enumerate(pairs))]
    write("table.tsv", "\n".join(table) + "\n")
    rest = "X\tX\t_\t0\troot\t_\t_"
    blocks = ["\n".join(f"{k}\t{w}\t{w}\t{rest}" for k, w in enumerate(t.split(), 1)) for t in texts[:40]]
    write("tiny.conllu", "\n\n".join(blocks) + "\n\n")
    for family in maker.TOKENIZERS:
        maker.checkpoint(family, INPUTS / "tiny" / family)
        if family in ("bert", "gpt2"):
            maker.checkpoint(family, INPUTS / "tiny" / f"{family}-b", seed=1)
        if family in ("gpt2", "llama", "gemma2"):
            maker.checkpoint(family, INPUTS / "causal" / family, head="causal")
    maker.checkpoint("bert", INPUTS / "tiny" / "bert-wide", seed=2, hidden=48, layers=4)
    for split, seed in (("train", 0), ("validation", 1)):
        made = toys.verdicts(96, seed)
        write_rows(f"verdicts-{split}.jsonl", [{"text": e.texts[0][0], "label": named(e)} for e in made])
        write_rows(
            f"pairs-{split}.jsonl",
            [{"text": e.texts[0][0], "pair": draw.choice(texts), "label": named(e)} for e in made],
        )
        noise = random.Random(seed)
        rated = [{"text": e.texts[0][0], "label": round(3 * e.label + noise.random(), 3)} for e in made]
        write_rows(f"rated-{split}.jsonl", rated)
        endings = toys.choices(64 if seed else 72).train
        write_rows(
            f"endings-{split}.jsonl",
            [
                {"ctx": e.texts[0][0], "endings": [*(b for _, b in e.texts), "is lazy dog"], "label": int(e.label)}
                for e in endings
            ],
        )
    for kind, idle in (("planted", 2), ("middle", 0)):
        folder = planted.classifier(INPUTS / kind / "model", idle=idle)
        if kind == "middle":
            net = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
            for part in (net.transformer.h[1].attn.c_proj, net.transformer.h[1].mlp.c_proj):
                part.weight.data.zero_()
                part.bias.data.zero_()
            net.save_pretrained(folder)
        made = planted.task_of(folder).train
        rows = [{"text": e.texts[0][0], "label": named(e)} for e in made]
        write_rows(f"{kind}-train.jsonl", rows)
        write_rows(f"{kind}-validation.jsonl", rows)
    ewt = (SHARED / "ud" / "en_ewt-ud-dev.conllu").read_text(encoding="utf-8").split("\n\n")
    write("ewt.conllu", "\n\n".join(ewt[:150]) + "\n\n")
    dev = (SHARED / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    train = (SHARED / "glue" / "SST-2" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    write("sst2.tsv", "\n".join(dev[:301]) + "\n")
    write("three.txt", "\n".join(row.split("\t")[0].strip() for row in dev[3:6]) + "\n")
    long = [row for row in train if len(row.split()) > 8]
    for split, rows in (("train", random.Random(0).sample(long, 480)), ("validation", dev[1:401])):
        parts = [row.rsplit("\t", 1) for row in rows]
        write_rows(f"sst2-{split}.jsonl", [{"sentence": t.strip(), "label": int(y)} for t, y in parts])
    with tempfile.TemporaryDirectory() as made_in:
        tuned = ss.finetune(MINILM, sst(), out=Path(made_in) / "tuned", **HOW_TUNED)[0]
        shutil.rmtree(TUNED, ignore_errors=True)
        # Without what stratoscope notes beside the checkpoint: the form of that may change.
        own = shutil.ignore_patterns("finetune.*", "run.yaml", ".*")
        shutil.copytree(tuned.folder, TUNED, ignore=own)


def task(name: str, kind: str) -> TaskData:
    """A task read from the files of its kind."""
    train, validation = (str(INPUTS / f"{kind}-{split}.jsonl") for split in ("train", "validation"))
    return ss.read_task(name, data=train, validation=validation)


def sst() -> TaskData:
    """Some of SST-2."""
    return task("sst2", "sst2")


def named(e: Example) -> str:
    """The label of an example in a file."""
    return "good" if e.label else "bad"


def write(name: str, text: str) -> None:
    """An input."""
    (INPUTS / name).write_text(text, encoding="utf-8")


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """An input of JSON lines."""
    write(name, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
