from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_reference as plain
import yaml
from safetensors.torch import load_file, save_file
from toys import KilledError, Reads, Told, killing

import stratoscope as ss
import tiny
from stratoscope.core import provenance
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.core.value import BOOTSTRAP, Interval
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.measures import score
from stratoscope.measures.bootstrap import Resampled
from stratoscope.models.open.loading import ModelSpec, choose_device
from stratoscope.models.read import store
from stratoscope.results.comparison import Comparison
from stratoscope.runs import run as runs
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.compare import plan as planning
from stratoscope.studies.compare import study
from stratoscope.studies.compare.options import CompareOptions as Options
from stratoscope.studies.compare.plan import named
from stratoscope.studies.compare.study import compare

Pair = Callable[..., Comparison]


@pytest.fixture(scope="session")
def pair(checkpoints: Path, text: str) -> Pair:
    """Compare base with tuned, both BERTs."""

    def run(*, models: tuple[str, ...] = ("base", "tuned"), out: Path | None = None, **options: Any) -> Comparison:
        return ss.compare([str(checkpoints / m) for m in models], data=text, out=out, **options)

    return run


def assert_close(a: Comparison, b: Comparison, tolerance: float = 2e-6) -> None:
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name].values, b[name].values, atol=tolerance, err_msg=name)


# --- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "subword"), [("word", "last"), ("word", "first"), ("word", "mean"), ("cls", "last"), ("mean", "last")]
)
def test_values_are_those_of_a_slow_reference(checkpoints: Path, pair: Pair, unit: str, subword: str) -> None:
    result = pair(unit=unit, subword=subword, measures=["ckasim"])["ckasim"]
    models = ("base", "tuned")
    rows = [
        (m, k, x)
        for m in models
        for k, x in enumerate(plain.activations(checkpoints / m, tiny.SENTENCES, unit, subword))
    ]
    assert [str(r) for r in result.rows] == [f"{m}:{k}" for m, k, _ in rows]
    for m, k, x in rows:
        for other, j, y in rows:
            got = result.at((m, k), (other, j))
            if unit == "cls" and 0 in (k, j):
                assert np.isnan(got), "the [CLS] embedding is the same in every sentence"
            else:
                assert got == pytest.approx(plain.linear_cka(x, y), abs=2e-6)


def test_different_families_widths_and_tokenizers_meet_at_words(checkpoints: Path, pair: Pair) -> None:
    result = pair(models=("base", "other"), measures=["ckasim", "linreg"])
    base, other = (plain.activations(checkpoints / m, tiny.SENTENCES, "word") for m in ("base", "other"))
    assert base[0].shape[1] != other[0].shape[1]
    assert len(base[0]) == len(other[0]) == result.data["rows"]
    for k, x in enumerate(base):
        for j, y in enumerate(other):
            assert result["ckasim"].at(("base", k), ("other", j)) == pytest.approx(plain.linear_cka(x, y), abs=2e-6)
            # the first argument, on the rows, is the one that predicts
            assert result["linreg"].at(("base", k), ("other", j)) == pytest.approx(plain.r2(x, y), abs=1e-5)
            assert result["linreg"].at(("other", j), ("base", k)) == pytest.approx(plain.r2(y, x), abs=1e-5)
    assert [(m.family, m.width, m.layers) for m in result.models] == [("bert", 32, 4), ("roberta", 48, 3)]


def test_tokens_of_different_tokenizers_are_not_compared(pair: Pair) -> None:
    with pytest.raises(StratoscopeError, match="unit 'token' needs models that share a tokenizer"):
        pair(models=("base", "other"), unit="token")


ALL_KINDS = ("ckasim", "ckasim-debiased", "linreg", "pwsim", "neuronsim", "neuronsim@0.5", "rsa", "ckasim-minibatch")


@pytest.fixture(scope="session")
def reference(pair: Pair) -> Comparison:
    return pair(measures=ALL_KINDS)


@pytest.mark.parametrize("batch_tokens", [1, 7 * 20, 10**6])
def test_the_size_of_batches_does_not_matter(pair: Pair, reference: Comparison, batch_tokens: int) -> None:
    assert_close(pair(measures=ALL_KINDS, batch_tokens=batch_tokens), reference, 5e-5)


def test_little_memory_gives_the_same_numbers(
    pair: Pair, reference: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cross-products are made to look so large that tiles hold one pair each; rows come in many chunks and shards."""
    tiles: list[int] = []
    whole = score._tiles
    monkeypatch.setattr(score, "_tiles", lambda *a: (found := whole(*a), tiles.append(len(found)))[0])
    monkeypatch.setattr(score, "PRODUCT_BYTES", 10**6)
    monkeypatch.setattr(store, "CHUNK", 16)
    monkeypatch.setattr(store, "SHARD_BYTES", 4 * 32 * 4 * 16 * 2)
    small = pair(measures=ALL_KINDS, memory=1e8)
    assert tiles[0] == 8 * 9 // 2  # those after it are of permuted sentences
    assert_close(small, reference)
    for name, array in reference.arrays.items():
        np.testing.assert_allclose(small.arrays[name], array, atol=1e-5, err_msg=name)


def test_workers_give_the_same_numbers(pair: Pair, reference: Comparison) -> None:
    assert_close(pair(measures=ALL_KINDS, workers=2), reference)


def test_some_layers_are_a_part_of_all_layers(pair: Pair, reference: Comparison) -> None:
    some = pair(measures=ALL_KINDS, layers=(1, 3))
    keep = [1, 3, 5, 7]
    for name in ALL_KINDS:
        assert [str(r) for r in some[name].rows] == ["base:1", "base:3", "tuned:1", "tuned:3"]
        np.testing.assert_allclose(some[name].values, reference[name].values[np.ix_(keep, keep)], atol=2e-6)


def test_a_missing_layer_is_never_a_zero(pair: Pair, tmp_path: Path) -> None:
    result = pair(unit="cls", measures=["ckasim", "neuronsim", "rsa", "ckasim-debiased"], out=tmp_path, bootstrap=20)
    saved = json.loads((tmp_path / "result.json").read_text())
    for name, on_disk in zip(result, saved["matrices"], strict=True):
        values = result[name].values
        for k in (0, 4):
            assert np.isnan(values[k]).all()
            assert np.isnan(values[:, k]).all()
            for field in ("values", "low", "high"):
                assert on_disk[field][k] == [None] * 8
        rest = np.delete(np.delete(values, (0, 4), 0), (0, 4), 1)
        assert not np.isnan(rest).any()
    assert any("base:0, tuned:0" in w and "missing" in w for w in result.warnings)


def test_a_layer_without_a_bandwidth_is_missing_and_the_reason_given(checkpoints: Path, tmp_path: Path) -> None:
    """Sixteen of twenty sentences are the same: half of all distances between rows are 0."""
    path = tmp_path / "again.txt"
    path.write_text("\n".join([*tiny.SENTENCES[:4], *[tiny.SENTENCES[4]] * 16]), encoding="utf-8")
    result = ss.compare([str(checkpoints / "base")], data=str(path), unit="mean", measures=["ckasim-rbf", "ckasim"])
    assert np.isnan(result["ckasim-rbf"].values).all()
    np.testing.assert_allclose(np.diag(result["ckasim"].values), 1, atol=1e-6)
    assert any("ckasim-rbf" in w and "base:0, base:1, base:2, base:3" in w for w in result.warnings)


def test_intervals_surround_the_score_and_come_from_the_seed(pair: Pair) -> None:
    runs = [pair(measures=["ckasim"], bootstrap=20, seed=s)["ckasim"] for s in (1, 1, 2)]
    first, again, other = runs
    assert first.low is not None
    assert first.high is not None
    off = ~np.eye(8, dtype=bool)
    assert (first.low[off] < first.values[off]).all()
    assert (first.values[off] < first.high[off]).all()
    np.testing.assert_array_equal(first.low, again.low)
    assert np.abs(first.low - other.low).max() > 1e-4
    assert first.interval == Interval(0.95, BOOTSTRAP, groups=len(tiny.SENTENCES))
    assert first.replicates is not None
    assert first.replicates.shape == (20, 8, 8)
    assert pair(measures=["ckasim"])["ckasim"].interval is None


def test_what_the_bootstrap_needs_is_checked_before_anything_is_scored(checkpoints: Path, text: str) -> None:
    told = Told()
    compare([checkpoints / "base"], data=text, options=Options(bootstrap=30), progress=told)
    assert any("30 bootstrap replicates" in note for note in told.notes)
    many = Corpus("many", tuple(map(Sentence, tiny.SENTENCES * 400)), tuple(range(4000)))
    with pytest.raises(StratoscopeError, match="--memory"):
        compare(
            [checkpoints / "base"],
            data=many,
            options=Options(bootstrap=30, memory=1e8, workers=64),
            progress=killing("preparing", 0),
        )


def test_an_interval_that_cannot_be_given_is_missing_and_the_reader_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    withheld = {"cca": Resampled(None, note="no interval for cca: why")}
    monkeypatch.setattr(study, "bootstrap", lambda *a, **k: withheld)
    result = pair(measures=["cca"], bootstrap=20)
    assert (result["cca"].low, result["cca"].high, result["cca"].interval) == (None, None, None)
    assert "no interval for cca: why" in result.warnings


# --- which models, which rows ----------------------------------------------------------------------------------------


def test_the_random_control_is_seeded(pair: Pair) -> None:
    runs = {s: pair(models=("base",), random_init=True, seed=s, out=None) for s in (0, 1)}
    again = pair(models=("base",), random_init=True, seed=0)
    assert [(m.name, m.role, m.base) for m in again.models] == [
        ("base", "model", None),
        ("base-random", "control", "base"),
    ]
    assert again.models[1].fingerprint.startswith("random-init seed 0 of ")
    assert runs[1].models[1].fingerprint.startswith("random-init seed 1 of ")
    np.testing.assert_array_equal(again["ckasim"].values, runs[0]["ckasim"].values)
    own = [r["ckasim"].between("base", "base").values for r in runs.values()]
    np.testing.assert_array_equal(*own)
    control = [r["ckasim"].between("base", "base-random").values for r in runs.values()]
    assert np.abs(control[0] - control[1]).max() > 1e-3


def test_a_limit_draws_the_same_sentences_for_every_model(checkpoints: Path, pair: Pair) -> None:
    result = pair(limit=6, seed=3, measures=["ckasim"])
    corpus = Corpus("t", tuple(map(Sentence, tiny.SENTENCES)), tuple(range(10))).sample(6, 3)
    drawn = tuple(s.text for s in corpus.sentences)
    x, y = (plain.activations(checkpoints / m, drawn, "word")[2] for m in ("base", "tuned"))
    assert result.data["sentences"] == 6
    assert result["ckasim"].at(("base", 2), ("tuned", 2)) == pytest.approx(plain.linear_cka(x, y), abs=2e-6)
    assert pair(limit=6, seed=4).data["fingerprint"] != result.data["fingerprint"]


def test_what_is_left_out_is_counted_and_told(checkpoints: Path, tmp_path: Path) -> None:
    tiny.checkpoint("bert", tmp_path / "short", max_length=30)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in (*tiny.SENTENCES, " ")))
    result = ss.compare([checkpoints / "base", tmp_path / "short"], data=tmp_path / "t.jsonl", unit="mean")
    ((reason, count),) = result.data["dropped"].items()
    assert reason == "sentences longer than short's window (30 tokens)"
    assert result.data["rows"] == 10 - count
    assert f"left out: {count} {reason}" in result.warnings
    assert "left out: 1 blank rows of t.jsonl" in result.warnings


def test_few_rows_draw_a_caution(pair: Pair) -> None:
    result = pair(unit="mean", measures=["all"])
    assert "linreg" not in result
    assert any(
        w.startswith("linreg left out of 'all': it is 1 for any two layers with 10 rows") for w in result.warnings
    )
    words = r"with 10 rows and 32 neurons, unrelated layers already score .*ckasim"
    assert any(re.match(words, w) for w in result.warnings)


def test_directions_lost_to_rounding_are_told_by_layer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = pair(measures=["cca"])
    assert not any("rounding" in w for w in ordinary.warnings), "LayerNorm's own is not worth a word"
    own = study.score_layers

    def narrow(*given: Any, **how: Any) -> score.Scoring:
        return replace(own(*given, **how), lost=(1, 4, 0, 1, 1, 1, 30, 1), constant=(0, 0, 0, 0, 0, 0, 2, 0))

    monkeypatch.setattr(study, "score_layers", narrow)
    told = [w for w in pair(measures=["cca"]).warnings if "rounding" in w]
    assert len(told) == 1
    assert "left out of measures that invert a covariance: 4 of 32 in base:1, 30 of 30 in tuned:2 (" in told[0]


def test_repeated_neurons_are_told_from_the_weights_to_the_result(
    pair: Pair, checkpoints: Path, tmp_path: Path
) -> None:
    """Embeddings of words that are the same in five neurons, before a LayerNorm of its own for each of them."""
    copy = shutil.copytree(checkpoints / "base", tmp_path / "narrow")
    weights = load_file(copy / "model.safetensors")
    for name, w in weights.items():
        if name.startswith("embeddings.") and name.endswith("_embeddings.weight"):
            w[:, 1:6] = w[:, :1]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    told = [w for w in pair(models=("base", str(copy)), measures=["cca"]).warnings if "rounding" in w]
    assert len(told) == 1
    assert ": 6 of 32 in narrow:0 (" in told[0]


def label(*specs: ModelSpec, **options: Any) -> list[str | None]:
    return [s.name for s in named(list(specs), **options)]


def test_every_model_has_a_label_of_its_own() -> None:
    at = ModelSpec
    assert label(at("x/base"), at("y/tuned")) == ["base", "tuned"]
    assert label(at("x/model"), at("y/model"), at("z/other")) == ["x/model", "y/model", "other"]
    assert label(at("x/model"), at("x/model")) == ["x/model-1", "x/model-2"]
    assert label(at("x/base"), random_init=True) == ["base", "base-random"]
    assert len(set(label(at("x/base"), at("x/base-random"), random_init=True))) == 3
    assert label(at("x/model", name="a"), at("y/model", name="b")) == ["a", "b"]
    with pytest.raises(StratoscopeError, match="two models would be labelled 'x/m-1'; give each its own --name"):
        label(at("x/m"), at("x/m"), at("z", name="x/m-1"))
    with pytest.raises(StratoscopeError, match="expected at least one model, got none"):
        label()


def test_a_name_given_twice_is_refused_rather_than_changed() -> None:
    with pytest.raises(StratoscopeError, match="expected a different name for each model, got 'a' twice; rename one"):
        label(ModelSpec("x/m", name="a"), ModelSpec("y", name="b"), ModelSpec("z", name="a"))


def test_the_same_model_twice_is_said_to_be_one(pair: Pair) -> None:
    words = "base-1 and .*base-2 are the same model: what is between them is the model compared with itself"
    same = [w for w in pair(models=("base", "base")).warnings if re.search(words, w)]
    assert len(same) == 1
    assert not [w for w in pair().warnings if "same model" in w]


def test_a_revision_of_a_folder_is_told_to_do_nothing(checkpoints: Path, text: str) -> None:
    told = Told()
    folder = str(checkpoints / "base")
    models = [ModelSpec(folder, revision="v2"), checkpoints / "tuned"]
    compare(models, data=text, options=Options(random_init=True), progress=told)
    assert told.notes == [f"revision 'v2' is of hub models; it does nothing for the local '{folder}'"]


def test_equal_folder_names_stay_apart_in_the_matrix(checkpoints: Path, text: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "model").symlink_to(checkpoints / "base")
    (tmp_path / "b" / "model").symlink_to(checkpoints / "tuned")
    result = ss.compare([tmp_path / "a" / "model", tmp_path / "b" / "model"], data=text)
    first, second = result["ckasim"].models
    assert first != second
    assert result["ckasim"].between(first, second).values.shape == (4, 4)


# --- the saved result ------------------------------------------------------------------------------------------------


def test_the_same_run_elsewhere_gives_the_same_bytes(pair: Pair, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        pair(out=tmp_path / folder, models=("base",), measures=ALL_KINDS, bootstrap=20, random_init=True)
    names = [".lock", "result.arrays.safetensors", "result.json", "run.yaml"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_provenance_says_how_to_run_it_again_and_not_when_it_was(pair: Pair, tmp_path: Path) -> None:
    result = pair(out=tmp_path, limit=8, layers=(0, 2), seed=5)
    saved = json.loads((tmp_path / "result.json").read_text())
    made_by, asked = saved["provenance"], saved["provenance"]["request"]
    assert set(made_by["versions"]) == {"python", *provenance.LIBRARIES}
    assert (asked["options"]["seed"], asked["options"]["layers"], asked["options"]["bootstrap"]) == (5, [0, 2], 0)
    assert asked["said"] == {"limit": 8, "layers": [0, 2], "seed": 5}
    assert made_by["dtype"] == {"base": "float32", "tuned": "float32"}
    assert made_by["device"] == dict.fromkeys(("base", "tuned"), str(choose_device("auto")))
    assert (saved["kind"], made_by["code"]) == ("comparison", provenance.code_key())
    for model in saved["models"]:
        assert re.fullmatch("sha256:[0-9a-f]{64}", model["fingerprint"])
    assert {"name", "fingerprint", "rows_fingerprint", "unit", "subword", "sentences", "rows"} <= set(saved["data"])
    assert not re.search(r"20\d\d-\d\d|\d\d:\d\d:\d\d|elapsed|seconds", json.dumps(saved))
    assert result.data == saved["data"]


def test_a_finished_result_is_read_back_however_it_would_be_computed(pair: Pair, reads: Reads, tmp_path: Path) -> None:
    first = pair(out=tmp_path)
    reads.texts.clear()
    second = pair(out=tmp_path, batch_tokens=50, memory=2e8, workers=2)
    np.testing.assert_array_equal(first["ckasim"].values, second["ckasim"].values)
    assert not len(reads)


def test_a_run_resumed_with_other_workers_and_memory_reuses_its_parts(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(measures=("ckasim", "cca"), unit="mean", workers=1)

    def run(out: str, options: Options, progress: Told | None = None) -> Comparison:
        return compare([checkpoints / "base"], data=text, out=tmp_path / out, options=options, progress=progress)

    whole = run("whole", options)
    with pytest.raises(KilledError):
        run("killed", options, killing("comparing", 1))
    kept = {p.name for p in (tmp_path / "killed" / "parts").glob("*.safetensors")}
    saved: list[str] = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, t: (saved.append(name), save(self, name, t))[1])
    again = run("killed", replace(options, workers=2, memory=3e8, batch_tokens=64))
    assert len(kept) > 4
    assert not kept & set(saved)
    for name in whole:
        np.testing.assert_array_equal(again[name].values, whole[name].values)


def test_another_result_is_replaced_only_when_asked(pair: Pair, tmp_path: Path) -> None:
    pair(out=tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(StratoscopeError, match=r"holds another result: measures \(ckasim, now cca\).*--overwrite"):
        pair(out=tmp_path, measures=["cca"])
    with pytest.raises(StratoscopeError, match=r"holds another result: limit \(none, now 8\)"):
        pair(out=tmp_path, limit=8)
    with pytest.raises(StratoscopeError, match=r"holds another result: models"):
        pair(out=tmp_path, models=("base",))
    assert (tmp_path / "result.json").read_bytes() == before
    assert list(pair(out=tmp_path, measures=["cca"], overwrite=True)) == ["cca"]
    assert list(ss.load(tmp_path)) == ["cca"]


def change_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "code_key", lambda: "f" * 64)


def test_a_finished_result_outlives_an_upgrade_and_says_what_made_it(
    checkpoints: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: Any) -> str:
        told = Told()
        compare([checkpoints / "base"], data=text, out=tmp_path, options=Options(**options), progress=told)
        return " ".join(told.notes)

    run()
    before = (tmp_path / "result.json").read_bytes()
    change_code(monkeypatch)
    assert "made with other source files of stratoscope; give --overwrite" in run()
    monkeypatch.setattr(runs, "versions", lambda: {"torch": "99.0"})
    assert f"made with torch {provenance.versions()['torch']}; give --overwrite" in run()
    assert (tmp_path / "result.json").read_bytes() == before
    assert run(overwrite=True) == ""
    assert json.loads((tmp_path / "result.json").read_text())["provenance"]["code"] == "f" * 64
    assert "nothing to do" in run(overwrite=True)


def test_what_is_asked_for_and_what_a_part_depends_on(
    checkpoints: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device or other code asks for the same result, but never resumes with the parts of the former."""

    def plan() -> planning.Plan:
        return planning.make_plan([checkpoints / "base"], text, Options(), Silent())

    request, key = plan().request, plan().key
    assert plan().key == key
    part = runs.part_name("scores", key)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "choose_device", lambda name: "another device")
        assert plan().request.digest == request.digest
        assert runs.part_name("scores", plan().key) != part
    change_code(monkeypatch)
    assert plan().request.digest == request.digest
    assert runs.part_name("scores", plan().key) != part


def test_kept_activations_are_used_again_unless_other_code_made_them(
    pair: Pair, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> set[str]:
        return {p.name for p in (tmp_path / "parts").glob("*.safetensors")}

    pair(out=tmp_path, keep=True)
    first = kept()
    reads.texts.clear()
    pair(out=tmp_path, keep=True, overwrite=True, measures=["cca"])
    assert kept() == first
    assert not len(reads)
    change_code(monkeypatch)
    pair(out=tmp_path, keep=True, overwrite=True)
    assert len(kept()) == len(first) == 2
    assert not kept() & first
    assert len(reads) == 2 * len(tiny.SENTENCES)


def test_drawing_has_the_folder_to_itself_and_is_done_once(checkpoints: Path, text: str, tmp_path: Path) -> None:
    drawn: list[tuple[Path, list[str]]] = []

    def draw(folder: Path, found: Comparison) -> None:
        with pytest.raises(StratoscopeError, match="is in use by another run"), RunFolder.open(folder):
            pass
        drawn.append((folder, list(found)))
        (folder / runs.PAGE).write_text("page")

    for _ in range(2):
        compare([checkpoints / "base"], data=text, out=tmp_path, draw=draw)
    assert drawn == [(tmp_path, ["ckasim"])]
    (tmp_path / runs.PAGE).unlink()
    compare([checkpoints / "base"], data=text, out=tmp_path, draw=draw)
    assert len(drawn) == 2, "a page that is gone is drawn again"


@pytest.mark.parametrize("name", ["result.json", "result.arrays.safetensors"])
def test_a_damaged_result_is_made_again(pair: Pair, tmp_path: Path, name: str) -> None:
    pair(out=tmp_path, measures=["neuronsim"])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-9])
    pair(out=tmp_path, measures=["neuronsim"])
    assert (tmp_path / name).read_bytes() == whole


def test_other_weights_under_the_same_path_are_another_result(text: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        tiny.checkpoint("bert", tmp_path / "m", seed=seed)
        if seed == 0:
            ss.compare(tmp_path / "m", data=text, out=tmp_path / "run")
    with pytest.raises(StratoscopeError, match="holds another result: models"):
        ss.compare(tmp_path / "m", data=text, out=tmp_path / "run")


def test_run_yaml_has_the_names_of_the_models_where_they_were_given(
    checkpoints: Path, text: str, tmp_path: Path
) -> None:
    specs = [ModelSpec(str(checkpoints / "base"), name="a", dtype="bfloat16"), ModelSpec(str(checkpoints / "tuned"))]
    corpus = Corpus("mine", tuple(map(Sentence, tiny.SENTENCES)), tuple(range(10)))
    options = Options(random_init=True, overwrite=True)
    compare([specs[0], replace(specs[1], dtype="bfloat16")], data=corpus, out=tmp_path, options=options)
    said = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert said["models"] == [str(checkpoints / name) for name in ("base", "tuned")]
    assert (said["name"], said["dtype"], said["random_init"]) == (["a", "tuned"], "bfloat16", True)
    assert not {"data", "overwrite", "seed"} & set(said), "a corpus in memory has no path; defaults are left out"


# --- the Python interface --------------------------------------------------------------------------------------------


def test_the_interface_of_the_readme(pair: Pair, checkpoints: Path, text: str) -> None:
    m = ss.compare([str(checkpoints / "base"), str(checkpoints / "tuned")], data=text, unit="mean", measures="ckasim")
    frame = m["ckasim"].to_frame()
    assert list(frame.index) == list(frame.columns) == [f"{n}:{k}" for n in ("base", "tuned") for k in range(4)]
    x, y = (plain.activations(checkpoints / n, tiny.SENTENCES, "mean")[1] for n in ("base", "tuned"))
    with pytest.warns(UserWarning, match="unrelated layers already score"):
        one = ss.similarity(x, y, "ckasim")
    assert one == pytest.approx(frame.loc["base:1", "tuned:1"], abs=1e-5)


def test_one_model_paths_and_a_corpus_are_welcome(checkpoints: Path, text: str) -> None:
    corpus = Corpus("mine", tuple(map(Sentence, tiny.SENTENCES)), tuple(range(10)))
    results = [
        ss.compare(str(checkpoints / "base"), data=text),
        ss.compare(checkpoints / "base", data=Path(text)),
        ss.compare(ModelSpec(str(checkpoints / "base")), data=corpus),
    ]
    for result in results:
        assert [m.name for m in result.models] == ["base"]
        np.testing.assert_array_equal(result["ckasim"].values, results[0]["ckasim"].values)


def test_columns_are_named_in_python_as_on_the_command_line(checkpoints: Path, text: str, tmp_path: Path) -> None:
    rows = [{"text": "not this", "body": s, "stars": str(k)} for k, s in enumerate(tiny.SENTENCES)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = ss.compare(checkpoints / "base", data=tmp_path / "t.jsonl", text="body", label="stars", unit="mean")
    plain_text = ss.compare(checkpoints / "base", data=text, unit="mean")
    np.testing.assert_array_equal(found["ckasim"].values, plain_text["ckasim"].values)
    assert {k: found.data[k] for k in ("text", "pair", "label", "columns", "split")} == {
        "text": "body",
        "pair": None,
        "label": "stars",
        "columns": None,
        "split": None,
    }
    corpus = Corpus("mine", tuple(map(Sentence, tiny.SENTENCES)), tuple(range(10)))
    with pytest.raises(StratoscopeError, match="split='dev' says how to read a file, but data is a corpus; leave it"):
        ss.compare(checkpoints / "base", data=corpus, split="dev")


def test_columns_that_were_inferred_are_recorded_and_told(checkpoints: Path, tmp_path: Path) -> None:
    rows = [{"id": k, "review": t, "stars": k % 2} for k, t in enumerate(tiny.SENTENCES)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    told = Told()
    found = compare(
        [checkpoints / "base"],
        data=tmp_path / "t.jsonl",
        out=tmp_path / "run",
        options=Options(unit="mean", limit=8),
        progress=told,
    )
    saved = json.loads((tmp_path / "run" / "result.json").read_text())["data"]
    assert (saved["text"], saved["pair"], saved["label"]) == ("review", None, "stars")
    assert any("column 'review'" in note and "--text" in note for note in told.notes)
    assert found.data["text"] == "review"


def test_one_similarity_is_of_one_measure() -> None:
    with pytest.raises(StratoscopeError, match="it takes one measure, got 'all'; name one"):
        ss.similarity(np.eye(5), np.eye(5), "all")


def test_an_unknown_option_lists_the_choices(text: str) -> None:
    with pytest.raises(StratoscopeError, match=r"unknown option 'layer'; did you mean 'layers'. choose from: unit, .*"):
        ss.compare(["base"], data=text, layer=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "wrd"}, "unknown unit 'wrd'; did you mean 'word'"),
        ({"subword": "lst"}, "unknown subword 'lst'; did you mean 'last'"),
        ({"measures": ("ckasm",)}, "unknown measure 'ckasm'; did you mean 'ckasim'"),
        ({"measures": ("ckasim@0.5",)}, "ckasim is not a mean, so '@0.5' has no meaning"),
        (
            {"measures": ("ckasim, svsim",)},
            "expected one measure, got 'ckasim, svsim'; repeat the option instead: --measure ckasim --measure svsim",
        ),
        ({"layers": ()}, "expected at least one layer, got none; leave --layers out to compare all"),
        ({"layers": (1, 1)}, "expected each layer once, got 1, 1"),
        ({"seed": -1}, "expected a --seed of at least 0 and below 2.63, got -1"),
        ({"bootstrap": 3}, r"expected at least 20 bootstrap replicates for a 95 % interval \(or 0 for none\), got 3"),
        ({"bootstrap": -3}, "expected --bootstrap of at least 0, got -3"),
        ({"workers": 0}, "expected --workers of at least 1, got 0"),
        ({"batch_tokens": 0}, "expected --batch-tokens of at least 1, got 0"),
        ({"memory": 1e6}, "expected --memory of at least 100MB, got 1MB"),
    ],
)
def test_options_are_checked_before_anything_is_read(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match=words):
        compare(["./no/such/model"], data="nofile.txt", out=tmp_path / "out", options=replace(Options(), **options))
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_known_is_told_before_anything_is_written(checkpoints: Path, text: str) -> None:
    with pytest.raises(StratoscopeError, match="unknown device 'cdua'; did you mean 'cuda'"):
        ss.compare([ModelSpec(str(checkpoints / "base"), device="cdua")], data="nofile.txt")


def test_too_few_rows(checkpoints: Path) -> None:
    corpus = Corpus("three", tuple(map(Sentence, tiny.SENTENCES[:3])), (0, 1, 2))
    with pytest.raises(StratoscopeError, match="expected at least 4 rows to compare, got 3; give more text"):
        ss.compare(checkpoints / "base", data=corpus, unit="mean")


def test_a_result_of_another_format_is_not_overwritten_unasked(pair: Pair, tmp_path: Path) -> None:
    pair(out=tmp_path)
    record = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(StratoscopeError, match=r"of format 99.*--overwrite"):
        pair(out=tmp_path)
    assert list(pair(out=tmp_path, overwrite=True)) == ["ckasim"]
    assert list(ss.load(tmp_path)) == ["ckasim"]


def test_activations_in_half_precision_take_half_and_the_change_is_reported(
    checkpoints: Path, text: str, tmp_path: Path
) -> None:
    models = [checkpoints / "base", checkpoints / "tuned"]
    asked: dict[str, Any] = {"data": text, "measures": ("ckasim", "procrustes", "rsa", "svsim"), "keep": True}
    whole = compare(models, out=tmp_path / "whole", **asked)
    half = compare(models, out=tmp_path / "half", **asked, store="float16")
    sizes = [sum(p.stat().st_size for p in (tmp_path / o / "parts").glob("layers-*")) for o in ("whole", "half")]
    said = half.provenance["store"]
    assert sizes[1] < 1.6 * sizes[0], "halves, beside the few rows that are kept both ways"
    # Here all rows are in the first chunk, so that what is reported is the very change.
    assert said["rows"] == half.data["rows"]
    for name in whole:
        change = float(np.nanmax(np.abs(whole[name].values - half[name].values)))
        assert said["change"][name] == pytest.approx(change, rel=1e-3, abs=1e-9)
        assert 0 < change < 5e-3
    (note,) = [w for w in half.warnings if "float16" in w]
    assert all(name in note for name in half)
    assert not [w for w in whole.warnings if "float16" in w]
    with pytest.raises(StratoscopeError, match=r"store \(float32, now float16\)"):
        compare(models, out=tmp_path / "whole", **asked, store="float16")
    with pytest.raises(StratoscopeError, match=r"'bfloat16'.*float16"):
        compare(models, out=tmp_path / "other", **asked, store="bfloat16")


def test_a_massive_activation_survives_half_precision(tmp_path: Path, text: str) -> None:
    folder = tiny.checkpoint("gpt2", tmp_path / "decoder")
    state = load_file(folder / "model.safetensors")
    (bias,) = [name for name in state if name.endswith("h.0.mlp.c_proj.bias")]
    state[bias][3] = 2e5  # stands there, and varies no more than the other neurons
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    half, whole = (compare([folder], data=text, store=s, measures=("ckasim", "rsa")) for s in ("float16", "float32"))
    for a, b in zip(whole.matrices, half.matrices, strict=True):
        assert np.isfinite(a.values).all()
        np.testing.assert_allclose(b.values, a.values, atol=5e-3)
