from __future__ import annotations

from dataclasses import replace
from typing import Any

from huggingface_hub import ModelCard

from stratoscope.core.value import Value
from stratoscope.results.cutting import cut as results
from stratoscope.studies.cut.card import escaped, model_card, spelled


def made(**changes: Any) -> results.Cut:
    point = Value(0.9, 0.88, 0.92)
    small = results.Cut(
        model={"name": "tuned", "source": "org/tuned", "hub": True, "blocks": 6},
        loads_with="AutoModelForSequenceClassification",
        kept=(1, 2, 3, 6),
        dropped=(4, 5),
        task={"name": "sst2", "format": "single"},
        metric="accuracy",
        budget=0.01,
        confidence=0.95,
        rows={"choose": 436, "confirm": 437, "seed": 0},
        whole_on_choice_rows=0.9,
        candidates=(),
        tested=(results.Tested((1, 2, 3, 6), point, confirmed=True), results.Tested((1, 2, 3), point, confirmed=False)),
        before=point,
        after=replace(point, value=0.895),
        difference=Value(-0.005, -0.0091, 0.001),
        parameters={"before": 22_000_000, "after": 18_500_000},
        latency={"ratio": 0.7, "low": 0.65, "high": 0.75, "rounds": 15, "device": "cpu", "threads": 1},
        baselines={"majority": 0.5, "bag_of_words": 0.8},
        head={"tuned": False},
        length=128,
        reload={"rows": 32, "apart": 0.0},
    )
    return replace(small, **changes)


def test_the_card_has_the_numbers_and_front_matter_the_hub_reads() -> None:
    text = model_card(made())
    data = ModelCard(text).data.to_dict()
    assert data["base_model"] == "org/tuned"
    assert data["pipeline_tag"] == "text-classification"
    assert (data["library_name"], data["metrics"]) == ("transformers", ["accuracy"])
    for part in ("blocks 4-5", "(1-3, 6)", "18,500,000 (84%)", "-0.0050", "-0.0091", "budget: 0.01",
                 "0.70 (0.65 to 0.75)", "437 validation rows", "2 cuts were tested",
                 "0.9000 (0.8800 to 0.9200)"):  # fmt: skip
        assert part in text
    assert "AutoModelForSequenceClassification.from_pretrained(folder)" in text
    assert "Warnings" not in text


def test_a_local_source_is_no_base_model_and_a_choice_task_has_no_pipeline() -> None:
    local = made(
        model={"name": "x", "source": "runs/x", "hub": False, "blocks": 6}, task={"name": "t", "format": "choice"}
    )
    data = ModelCard(model_card(local)).data.to_dict()
    assert "base_model" not in data
    assert "pipeline_tag" not in data


def test_names_from_outside_write_no_markup() -> None:
    evil = 'x\n---\n<script>alert(1)</script> | [a](b) `c` "d" \u202e'
    evil_cut = made(
        model={"name": evil, "source": evil, "hub": True, "blocks": 6},
        task={"name": evil, "format": "single"},
        warnings=(evil,),
        head={"tuned": True},
    )
    text = model_card(evil_cut)
    assert "<script>" not in text.replace("\\<", "")
    assert "\u202e" not in text
    assert text.count("\n---\n") == 1  # the end of the front matter
    assert "base_model" not in ModelCard(text).data.to_dict()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {4}
    assert "## Warnings" in text
    assert "tuned further" in text


def test_one_block_is_no_plural() -> None:
    assert (spelled([6]), spelled([5, 6])) == ("block 6", "blocks 5-6")


def test_escaping_keeps_plain_names_readable() -> None:
    assert escaped("all-MiniLM-L6 v2.1") == "all-MiniLM-L6 v2.1"
