"""The commands about tasks, end to end on a tiny model, and what they refuse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

import stratoscope as ss
import tiny

Command = Callable[..., Any]

GOOD, BAD = ("warm", "funny", "finest", "wonderful"), ("lazy", "wooden", "nowhere", "old")
TOPICS = ("film", "dog", "story", "ending", "theatre")
LEARN = ("--recipe", "quick", "--lr", "3e-3", "--epochs", "8", "--batch", "8", "--length", "24")


@pytest.fixture
def rows(here: Path) -> Path:
    draw = random.Random(0)
    pairs = [(draw.choice(GOOD if k % 2 else BAD), "good" if k % 2 else "bad") for k in range(80)]
    lines = [json.dumps({"text": f"the {draw.choice(TOPICS)} is {word}", "label": label}) for word, label in pairs]
    (here / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return here


def test_the_whole_story(rows: Path, command: Command) -> None:
    ended = command("finetune", "base", "--data", "rows.jsonl", "--text", "text", "--seeds", "2", "--out", "ft", *LEARN)
    assert ended.code == 0, ended.err
    assert "ft/seed-0: accuracy " in ended.out
    assert (
        "next: stratoscope study finetuned base ft/seed-0 ft/seed-1 --data rows.jsonl --text text --out ft-study"
        in ended.out
    )

    task = ("--data", "rows.jsonl")
    ended = command(
        "study", "finetuned", "base", "ft/seed-0", "ft/seed-1", *task, "--bootstrap", "20", "--out", "study"
    )
    assert ended.code == 0, ended.err
    study = ss.load("study")
    assert (study.base, study.tuned, study.control) == ("base", ("seed-0", "seed-1"), "base-random")
    assert set(study.comparisons) == {"cls", "mean"}
    assert study.depth.model.name == "seed-0"
    ended_again = command("study", "finetuned", "--config", "study/run.yaml", "--out", "study")
    assert "already holds this result" in ended_again.err, ended_again.err
    page = (rows / "study" / "report.html").read_text()
    assert "FT[1]" in page
    assert "study/report.html" in ended.out

    (rows / "study" / "report.html").unlink()
    again = command("report", "study")
    assert again.code == 0, again.err
    assert (rows / "study" / "report.html").read_text() == page

    ended = command("depth", "ft/seed-0", "--base", "base", *task, "--out", "deep")
    assert ended.code == 0, ended.err
    assert (rows / "deep" / "report.html").is_file()
    assert command("report", "deep").code == 0

    ended = command("prune", "base", "--drop", "top:1", *task, "--out", "pruned", *LEARN)
    assert ended.code == 0, ended.err
    whole, small = (
        transformers.AutoModelForSequenceClassification.from_pretrained(rows / folder)
        for folder in ("ft/seed-0", "pruned/seed-0")
    )
    assert small.config.num_hidden_layers == whole.config.num_hidden_layers - 1

    for folder, held in (
        ("ft", "a fine-tuned model (seed-0/"),
        ("pruned", "a pruned model (base/"),
        ("base", "no result"),
    ):
        ended = command("report", folder)
        assert ended.code == 2
        assert ended.err.startswith(f"stratoscope: {folder} holds {held}")


def test_a_study_across_families(rows: Path, command: Command) -> None:
    tiny.checkpoint("roberta", rows / "away" / "base", layers=5, hidden=16)
    task = ("--data", "rows.jsonl", "--no-depth", "--bootstrap", "0", "--unit", "mean")
    models = ("base", "tuned", "--across", "away/base")
    ended = command("study", "finetuned", *models, *task, "--localization", "--out", "study")
    assert ended.code == 0, ended.err
    study = ss.load("study")
    base = f"{(rows / 'base').resolve().parent.name}/base"
    assert (study.base, study.tuned, study.across) == (base, ("tuned",), ("away/base",))
    assert study.control == "base-random"
    found = study["mean"]
    roles = {m.name: (m.role, m.family, m.layers) for m in found.models}
    assert roles["away/base"] == ("model", "roberta", 6)
    assert roles["base-random"] == ("control", "bert", 4)
    assert found["ckasim"].between("tuned", "away/base").values.shape == (4, 6)
    page = (rows / "study" / "report.html").read_text()
    assert "FT\\u2013OTHER" in page
    local = study["localization"]
    assert [m.name for m in local.models] == [base, "tuned", "base-random"], "labels are the study's"
    assert local.data["unit"] == "word"
    assert (rows / "study" / "figures" / "localization.png").is_file()
    (rows / "study" / "report.html").unlink()
    assert command("report", "study").code == 0
    assert (rows / "study" / "report.html").read_text() == page


@pytest.mark.parametrize("again", ["base", "tuned", "./other"])
def test_a_model_across_is_another_one(rows: Path, command: Command, again: str) -> None:
    (rows / "other").symlink_to(tiny.checkpoint("bert", rows / "away", seed=2))
    others = ("--across", "away", "--across", again)
    ended = command("study", "finetuned", "base", "tuned", *others, "--data", "rows.jsonl", "--out", "out")
    assert ended.code == 2
    assert (
        f"expected --across models besides the base and the tuned ones, each once, got '{again}' again; leave it out"
        in ended.err
    )
    assert not (rows / "out").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("finetune", "base"), "expected --task (see 'stratoscope tasks') or your own --data, got neither"),
        (("finetune", "base", "--task", "sst3"), "unknown task 'sst3'; did you mean 'sst2'?"),
        (("finetune", "base", "--data", "none.jsonl"), "none.jsonl"),
        (("finetune", "base", "--data", "rows.jsonl", "--freeze", "bottom:9"), "bottom:9"),
        (("finetune", "base", "--data", "rows.jsonl", "--recipe", "phang"), "did you mean 'phang2021'?"),
        (("prune", "base", "--data", "rows.jsonl", "--drop", "top:9"), "cannot drop 9 blocks"),
        (("depth", "base", "--data", "rows.jsonl"), "'base' has no task head"),
        (("cut", "base", "--data", "rows.jsonl", "--budget", "much"), "expected --budget as a number, got 'much'"),
        (("study", "finetuned", "base", "tuned", "--data", "rows.jsonl"), "'tuned' has no task head"),
        (("study", "finetuned", "base", "tuned", "--data", "rows.jsonl", "--across", "./none"), "no model at './none'"),
    ],
)
def test_bad_input_is_one_sentence(rows: Path, command: Command, args: tuple[str, ...], words: str) -> None:
    ended = command(*args, "--out", "out")
    assert ended.code == 2
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("stratoscope: ")
    assert words in last


def test_rows_without_a_header_have_their_columns_named(rows: Path, command: Command) -> None:
    lines = [json.loads(line) for line in (rows / "rows.jsonl").read_text().splitlines()]
    (rows / "rows.tsv").write_text("".join(f"{row['label']}\t{row['text']}\n" for row in lines))
    made = ("--columns", "label text", "--out", "ft", *LEARN, "--max-steps", "2")
    ended = command("finetune", "base", "--data", "rows.tsv", *made)
    assert ended.code == 0, ended.err
    assert "rows: read from columns: text 'text', label 'label'; labels inferred: 2 classes" in ended.err
    assert "--data rows.tsv --columns 'label text' --out ft-study" in ended.out


def test_the_tasks_are_listed(command: Command) -> None:
    ended = command("tasks")
    assert ended.code == 0
    for name in ("cola", "sst2", "stsb", "hellaswag", "cosmosqa"):
        assert name in ended.out


def test_a_decoder_is_judged_by_perplexity(here: Path, command: Command) -> None:
    tiny.checkpoint("gpt2", here / "decoder", head="causal")
    ended = command("perplexity", "decoder", "--data", "t.txt", "--out", "ppl")
    assert ended.code == 0, ended.err
    points = ss.load("ppl").points
    assert f"{points[-1].value:,.1f}" in ended.out
    assert (here / "ppl" / "figures" / "perplexity.png").is_file()
    (here / "t.tsv").write_text("".join(f"{k}\t{line}" for k, line in enumerate((here / "t.txt").open())))
    named = command("perplexity", "decoder", "--data", "t.tsv", "--columns", "label text", "--out", "same")
    assert named.code == 0, named.err
    assert ss.load("same").points == points
    ended = command("perplexity", "base", "--data", "t.txt", "--out", "no")
    assert ended.code == 2


def test_a_decoder_is_cut_without_a_task(here: Path, command: Command) -> None:
    tiny.checkpoint("llama", here / "decoder", head="causal", layers=3)
    line = ["cut", "decoder", "--data", "t.txt", "--max-ppl", "1000x", "--out", "small"]
    ended = command(*line)
    assert ended.code == 0, ended.err
    made = ss.load("small")
    assert made.kind().name == "decoder"
    assert f"{len(made.kept)} of 3" in ended.out
    assert "stratoscope perplexity small --data t.txt" in ended.out
    assert (here / "small" / "report.html").is_file()
    again = command("cut", "--config", "small/run.yaml", "--out", "again")
    assert again.code == 0, again.err
    assert ss.load("again").kept == made.kept
    for more, words in {
        ("--budget", "0.1"): "got both",
        ("--task", "sst2"): "no --task",
        ("--label", "y"): "--label is for a task",
        ("--head",): "--head",
        ("--blocks", "top"): "span, any",
    }.items():
        refused = command(*line, *more, "--overwrite")
        assert refused.code == 2
        assert words in refused.err
    assert (
        "--no-patch is for a decoder"
        in command("cut", "decoder", "--data", "rows.jsonl", "--budget", "0.1", "--no-patch", "--out", "no").err
    )
    assert "got neither" in command("cut", "decoder", "--data", "t.txt", "--out", "no").err
