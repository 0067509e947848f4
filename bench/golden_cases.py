"""The golden cases: every measure, unit and command on tiny models, and the most used of them on real weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stratoscope as ss
from golden_inputs import HOW_TUNED, INPUTS, MINILM, MPNET, SMOLLM, SRE, TUNED, sst, task
from golden_numbers import (
    Facts,
    lines,
    of_comparison,
    of_cut,
    of_depth,
    of_finetuned,
    of_logits,
    of_matrix,
    of_neurons,
    of_points,
    of_study,
    of_weights,
    plain,
)  # fmt: skip
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec
from stratoscope.results.comparison import Comparison

MEASURES = (
    "neuronsim", "mixedsim", "svsim", "pwsim", "ckasim", "ckasim-debiased", "ckasim-rbf", "ckasim-minibatch", "cca",
    "linreg", "procrustes", "rsa", "mixedsim-heldout",
)  # fmt: skip
HALVES = ("neuronsim@0.5", "mixedsim@0.5", "svsim@0.5", "pwsim@0.5")
EVERY = [*MEASURES, *HALVES]
CHEAP = ["ckasim", "ckasim-debiased", "svsim", "pwsim"]

Case = Callable[[Path], Any]
"""Gets an empty folder and returns nested data of numbers."""
QUICK: dict[str, Case] = {}
FULL: dict[str, Case] = {}


def case(name: str, *, full: bool = False) -> Callable[[Case], Case]:
    """Register a case, of tiny models or, `full`, one that takes longer."""

    def register(run: Case) -> Case:
        (FULL if full else QUICK)[name] = run
        return run

    return register


def compare(models: Sequence[str | Path | ModelSpec], **how: Any) -> Comparison:
    """One worker and a fixed memory unless said otherwise: nothing may depend on the machine's size."""
    return ss.compare(models, **{"workers": 1, "memory": 4e9} | how)


def tiny(*families: str) -> list[Path]:
    """Folders of tiny models."""
    return [INPUTS / "tiny" / f for f in families]


def add_comparison(name: str, families: tuple[str, ...], *, full: bool = False, **how: Any) -> None:
    """A comparison of tiny models."""
    (FULL if full else QUICK)[f"compare/{name}"] = lambda out: of_comparison(compare(tiny(*families), **how))


MANY, FEW, SHORT = (INPUTS / name for name in ("many.txt", "few.txt", "short.txt"))
STRONG = {"measures": EVERY, "bootstrap": 20, "random_init": True}
add_comparison("bert-word-many", ("bert", "bert-b"), data=MANY, limit=16, unit="word", **STRONG)
add_comparison("decoders-word-many", ("gpt2", "llama"), full=True, data=MANY, limit=24, unit="word", **STRONG)
add_comparison("bert-roberta-word-few", ("bert", "roberta"), data=FEW, unit="word", **STRONG)
add_comparison("albert-electra-cls-many", ("albert", "electra"), data=MANY, unit="cls", **STRONG)
add_comparison("bert-cls-few", ("bert", "bert-b"), data=MANY, limit=20, unit="cls", **STRONG)
add_comparison("gpt2-qwen3-cls-few", ("gpt2", "qwen3"), full=True, data=MANY, limit=20, unit="cls", **STRONG)
add_comparison("distilbert-mpnet-mean-many", ("distilbert", "mpnet"), full=True, data=MANY, unit="mean", **STRONG)
add_comparison("xlnet-deberta-mean-few", ("xlnet", "deberta"), full=True, data=MANY, limit=20, unit="mean", **STRONG)
add_comparison("qwen-token-many", ("qwen2", "qwen3"), data=MANY, limit=5, unit="token", **STRONG)
add_comparison("bert-token-few", ("bert", "bert-b"), full=True, data=SHORT, unit="token", **STRONG)
add_comparison(
    "families-word", ("deberta-v2", "modernbert", "gemma2", "gpt2-b"), data=MANY, measures=["all"], random_init=True
)
add_comparison("all-few", ("bert", "roberta"), data=MANY, limit=25, unit="cls", measures=["all"], bootstrap=20)
add_comparison("all-mean", ("llama", "bert-b"), data=MANY, unit="mean", measures=["all"], seed=3)
add_comparison(
    "wide-word", ("bert-wide", "bert"), full=True, data=MANY, limit=30, unit="word", measures=EVERY, bootstrap=20
)
add_comparison(
    "layers-first", ("bert", "gpt2"), data=MANY, subword="first", layers=(0, 2), bootstrap=20, measures=CHEAP
)
add_comparison("subword-mean", ("bert", "gpt2"), data=MANY, subword="mean", measures=EVERY, limit=30, seed=7)
add_comparison(
    "standardised", ("bert", "bert-b"), data=MANY, measures=["neuronsim", "svsim"], standardise=True, random_init=True
)
add_comparison("pairs", ("bert", "roberta"), data=INPUTS / "pairs.jsonl", unit="mean", measures=CHEAP, bootstrap=20)
add_comparison("columns", ("bert",), data=INPUTS / "table.tsv", unit="cls", text="second", measures=CHEAP, label="kind")
add_comparison("conllu", ("bert", "gpt2"), data=INPUTS / "tiny.conllu", unit="word", measures=CHEAP)
add_comparison("batches", ("bert", "gpt2"), data=MANY, unit="word", measures=CHEAP, batch_tokens=200)
add_comparison(
    "small-memory",
    ("bert", "bert-b"),
    full=True,
    data=MANY,
    limit=24,
    unit="word",
    measures=EVERY,
    bootstrap=20,
    memory=1e8,
)
add_comparison("two-workers", ("bert", "bert-b"), full=True, data=MANY, unit="word", measures=EVERY, workers=2)


@case("compare/bfloat16")
def _(out: Path) -> Any:
    (folder,) = tiny("bert")
    return of_comparison(
        compare([folder, ModelSpec(str(folder), name="half", dtype="bfloat16")], data=MANY, measures=CHEAP)
    )


@case("compare/reloaded")
def _(out: Path) -> Any:
    """What the run folder gives back is what was returned, and an added measure does not move the others."""
    models, how = tiny("bert", "bert-b"), {"data": MANY, "unit": "mean", "bootstrap": 20, "random_init": True}
    made = compare(models, out=out / "run", keep=True, measures=CHEAP, **how)
    again = compare(models, out=out / "run", keep=True, overwrite=True, measures=[*CHEAP, "neuronsim"], **how)
    one, two = plain(of_comparison(made)), plain(of_comparison(again))
    return {
        "made": one,
        "again": two,
        "loaded_as_made": plain(of_comparison(ss.load(out / "run"))) == two,
        "others_unmoved": all(one["measures"][name] == two["measures"][name] for name in CHEAP),
        "block": of_matrix(made["ckasim"].between("bert", "bert-b")),
        "at": made["ckasim"].at(("bert", 1), ("bert-b", 2)),
        "frame": made["svsim"].to_frame().to_numpy(),
        "localization": ss.localization(again),
        "standardised": ss.localization(again, standardise=True),
        "neurons": of_neurons(again, "bert", 2),
        "control's neurons": of_neurons(again, "bert-random", 1),
    }


@case("similarity")
def _(out: Path) -> Any:
    draw = np.random.default_rng(5)
    found = {}
    for n, p, q in ((200, 12, 9), (30, 40, 25), (12, 12, 5)):
        x = draw.standard_normal((n, p))
        y = x[:, :q] @ draw.standard_normal((min(p, q), q)) + draw.standard_normal((n, q)) if q <= p else None
        for kind in ("float64", "float32"):
            a, b = x.astype(kind), y.astype(kind)
            for m in EVERY:
                found[f"{m} {n}x{p} {n}x{q} {kind}"] = [ss.similarity(a, b, m), ss.similarity(b, a, m, seed=1)]
    return found


TOY = {"recipe": "quick", "lr": 3e-3, "epochs": 3, "batch": 8}


def toy(kind: str = "verdicts") -> TaskData:
    """A task that a tiny model can learn."""
    name = "hellaswag" if kind == "endings" else kind
    return task(name, kind)


@case("tune/bert")
def _(out: Path) -> Any:
    """Two seeds, whole; then all that is made of them, from the folders as they were written."""
    (base,), data = tiny("bert"), toy()
    texts = lines(INPUTS / "verdicts-validation.jsonl", "text")[:10]
    made = ss.finetune(base, data, out=out / "tuned", seeds=2, **TOY)
    first = made[0].folder
    done = ss.cut(first, data, out=out / "small", budget=0.3, head=True)
    parts = ss.study_finetuned(
        base, [m.folder for m in made], data, out=out / "study", across=tiny("roberta"), bootstrap=20, limit=60,
        localization=True, workers=1, memory=4e9,
    )  # fmt: skip
    return {
        "tuned": [of_finetuned(m) for m in made],
        "weights": [of_weights(m.folder) for m in made],
        "logits": [of_logits(m.folder, texts) for m in made],
        "depth": of_depth(ss.depth(first, data, out=out / "depth", base=base)),
        "cut": of_cut(done) | of_weights(done.folder) | {"logits": of_logits(done.folder, texts)},
        "study": of_study(parts),
    }


def made_on(out: Path, family: str, kind: str, **how: Any) -> Facts:
    """A model tuned, judged at every depth and cut."""
    (base,), data = tiny(family), toy(kind)
    made = ss.finetune(base, data, out=out / "tuned", **TOY | how)[0]
    deep = ss.depth(made.folder, data, out=out / "depth", base=base, seed=1)
    done = ss.cut(made.folder, data, out=out / "small", budget=0.9, head=True, confidence=0.9, keep=2)
    return {
        "tuned": of_finetuned(made), "weights": of_weights(made.folder), "depth": of_depth(deep),
        "cut": of_cut(done) | of_weights(done.folder),
    }  # fmt: skip


@case("tune/choices")
def _(out: Path) -> Any:
    return made_on(out, "bert", "endings", max_steps=12)


@case("tune/regression", full=True)
def _(out: Path) -> Any:
    return made_on(out, "gpt2", "rated")


@case("tune/pairs", full=True)
def _(out: Path) -> Any:
    return made_on(out, "roberta", "pairs", freeze="bottom:1")


@case("tune/modernbert", full=True)
def _(out: Path) -> Any:
    return made_on(out, "modernbert", "verdicts", freeze="top:1", length=16)


@case("tune/xlnet", full=True)
def _(out: Path) -> Any:
    return made_on(out, "xlnet", "verdicts", recipe="wu2020")


@case("tune/pruned")
def _(out: Path) -> Any:
    (base,), data = tiny("bert"), toy()
    found = {}
    for drop in ("top:1", "bottom:1"):
        made = ss.prune(base, data, out=out / drop.replace(":", "-"), drop=drop, **TOY)[0]
        found[drop] = of_finetuned(made) | of_weights(made.folder) | {"kept": made.pruned["kept"]}
    return found


@case("depth/planted")
def _(out: Path) -> Any:
    folder, data = INPUTS / "planted" / "model", toy("planted")
    return of_depth(ss.depth(folder, data, out=out / "depth")) | {
        "plain": of_depth(ss.depth(folder, data, out=out / "plain", skip=False, batch_tokens=100, length=8))
    }


@case("cut/planted")
def _(out: Path) -> Any:
    found, texts = {}, lines(INPUTS / "planted-validation.jsonl", "text")[:10]
    for kind, budget, how in (
        ("planted", 0.05, {}), ("planted", 0.05, {"blocks": "any"}), ("planted", 0.05, {"head": True, "seed": 1}),
        ("middle", 0.05, {"blocks": "any"}), ("planted", 0.1, {"keep": 3, "confidence": 0.9}),
    ):  # fmt: skip
        name = f"{kind} {budget} {how}"
        made = ss.cut(INPUTS / kind / "model", toy(kind), out=out / str(len(found)), budget=budget, **how)
        found[name] = of_cut(made) | of_weights(made.folder) | {"logits": of_logits(made.folder, texts)}
    try:
        ss.cut(INPUTS / "middle" / "model", toy("middle"), out=out / "none", budget=0.05)
    except ss.StratoscopeError as e:
        found["middle refused"] = {"refused": True, "~why": str(e)}
    return found


@case("perplexity/tiny")
def _(out: Path) -> Any:
    found = {}
    for family in ("gpt2", "llama", "gemma2"):
        folder = INPUTS / "causal" / family
        found[family] = of_points(ss.perplexity(folder, FEW, out=out / family))
        found[f"{family} short"] = of_points(ss.perplexity(folder, MANY, length=9, batch_tokens=128))
    return found


@case("callback")
def _(out: Path) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    folder = INPUTS / "planted" / "model"
    tokens = AutoTokenizer.from_pretrained(folder)
    tokens.pad_token = tokens.pad_token or tokens.eos_token
    given = [json.loads(g) for g in lines(INPUTS / "planted-train.jsonl")[:32]]
    rows = [{**tokens(g["text"]), "labels": int(g["label"] == "good")} for g in given]
    found = {}
    for unit in ("mean", "cls"):
        torch.manual_seed(0)
        watch = ss.StratoscopeCallback(out / unit, texts=lines(MANY), every=3, unit=unit, tokenizer=tokens, rows=24)
        how = TrainingArguments(
            str(out / "trainer"), max_steps=6, per_device_train_batch_size=4, learning_rate=1e-3, report_to="none",
            disable_tqdm=True, use_cpu=True, save_strategy="no", logging_strategy="no", seed=0,
        )  # fmt: skip
        Trainer(
            AutoModelForSequenceClassification.from_pretrained(folder), how, train_dataset=rows,
            data_collator=lambda batch: tokens.pad(batch, return_tensors="pt"), callbacks=[watch],
        ).train()  # fmt: skip
        found[unit] = [json.loads(line) for line in lines(out / unit / "drift.jsonl")]
    return found


# --- real models ---------------------------------------------------------------------------------------------------

EWT, SST = INPUTS / "ewt.conllu", INPUTS / "sst2.tsv"


def add_real(name: str, models: tuple[Path, ...], **how: Any) -> None:
    """A comparison of real models."""
    FULL[f"real/{name}"] = lambda out: of_comparison(compare(list(models), **how))


SLOW = ["ckasim-rbf", "rsa", "mixedsim-heldout", "linreg", "ckasim-minibatch", "procrustes", "cca"]
QUICKER = [m for m in EVERY if m not in SLOW]
add_real("minilm-word", (MINILM, SRE), data=EWT, unit="word", measures=QUICKER)
add_real("minilm-word-slow", (MINILM, SRE), data=EWT, unit="word", measures=SLOW, layers=(0, 3, 6))
add_real("minilm-cls", (MINILM, SRE), data=SST, unit="cls", measures=EVERY, layers=(0, 2, 4, 6))
add_real("minilm-mean", (MINILM, SRE), data=SST, unit="mean", measures=EVERY, layers=(0, 2, 4, 6), random_init=True)
add_real(
    "minilm-mean-boot", (MINILM, SRE), data=SST, unit="mean", bootstrap=20, measures=["ckasim", "ckasim-debiased"],
    random_init=True,
)  # fmt: skip
add_real("minilm-all", (MINILM, SRE), data=SST, unit="mean", measures=["all"], layers=(0, 6), limit=120, bootstrap=20)
add_real("mpnet-word", (MPNET, MINILM), data=EWT, unit="word", measures=CHEAP, layers=(0, 3, 6), limit=60)
add_real("smollm-word", (SMOLLM, MINILM), data=EWT, unit="word", measures=CHEAP, layers=(0, 3, 6), limit=60)


@case("minilm/tune", full=True)
def _(out: Path) -> Any:
    made = ss.finetune(MINILM, sst(), out=out / "tuned", **HOW_TUNED)[0]
    texts = lines(INPUTS / "sst2-validation.jsonl", "sentence")[:20]
    return of_finetuned(made) | of_weights(made.folder) | {"logits": of_logits(made.folder, texts)}


@case("minilm/depth", full=True)
def _(out: Path) -> Any:
    data = sst().sample(train=120, validation=160, seed=0)
    return of_depth(ss.depth(TUNED, data, out=out / "depth", base=MINILM, length=128))


@case("minilm/cut", full=True)
def _(out: Path) -> Any:
    found, texts = {}, lines(INPUTS / "sst2-validation.jsonl", "sentence")[:10]
    data = sst().sample(train=120, validation=200, seed=0)
    for name, budget, how in (("head", 0.2, {"head": True}), ("any", 0.2, {"blocks": "any"})):
        made = ss.cut(TUNED, data, out=out / name, budget=budget, length=128, **how)
        found[name] = of_cut(made) | of_weights(made.folder) | {"logits": of_logits(made.folder, texts)}
    return found


@case("minilm/study", full=True)
def _(out: Path) -> Any:
    few = sst().sample(train=60, validation=60, seed=0)
    how = {"bootstrap": 20, "localization": True, "length": 64, "workers": 1}
    return of_study(ss.study_finetuned(MINILM, [TUNED], few, out=out / "study", across=(SRE,), **how))


@case("smollm/perplexity", full=True)
def _(out: Path) -> Any:
    return of_points(ss.perplexity(SMOLLM, INPUTS / "three.txt", length=24))
