"""Maps between models end to end on tiny checkpoints: against plain rows, resumed, injected, recovered."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import KilledError, Reads, classification, distinct, killing, plain

import stratoscope as ss
import tiny
from stratoscope.aligners.fit import fit_map
from stratoscope.aligners.recovery import principal_components, random_bijection
from stratoscope.aligners.scores import inversion_error, resamples, row_errors, scores, shuffled
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.core.statement import FAILS, HOLDS, OPEN
from stratoscope.data.baselines import bag_of_words
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read.attention import AttentionReader
from stratoscope.models.read.loop import read
from stratoscope.models.text.rows import Rows, encode_for
from stratoscope.report.sections.alignment import recovery_sections, sections
from stratoscope.report.write import write_report
from stratoscope.results.alignment import IDENTITY, SHUFFLED, Alignment
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import MemoryRows, gather
from stratoscope.studies.align import inject as injecting
from stratoscope.studies.align import study
from stratoscope.studies.align.attention import read_pairs, sample_pairs
from stratoscope.studies.align.inject import RANDOM_HEAD, RANDOM_LABELS, _mapped, _States, inject
from stratoscope.studies.align.options import AlignOptions, InjectOptions
from stratoscope.studies.align.study import align, comparing
from stratoscope.studies.align.work import fit_layers, fit_rows, nuclear_norm, split_rows
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.attention.plan import plan_attention
from stratoscope.studies.compare.plan import make_plan
from stratoscope.studies.compare.study import read_plan

WORDS = sorted({w.strip(".,;?").lower() for s in tiny.SENTENCES for w in s.split()})


def texts(number: int = 240, seed: int = 0) -> Corpus:
    draw = random.Random(seed)
    every = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(number)]
    return Corpus("random", tuple(map(Sentence, every)), tuple(range(number)))


QUICK: dict[str, Any] = {"method": ("ridge",), "train": 160, "test": 80, "workers": 1}


@pytest.fixture(scope="module")
def found(checkpoints: Path) -> Alignment:
    models = [checkpoints / name for name in ("base", "tuned")]
    return align(*models, data=texts(), options=AlignOptions(**QUICK | {"method": ("linreg", "ridge", "cca")}))


def test_errors_are_those_of_a_map_fitted_to_plain_rows(found: Alignment, checkpoints: Path, tmp_path: Path) -> None:
    options = AlignOptions(**QUICK)
    plan = make_plan([checkpoints / "base", checkpoints / "tuned"], texts(), comparing(options), Silent())
    with RunFolder.open(tmp_path) as folder:
        rows = read_plan(plan, Run(folder))
        x, y = (gather(rows, k).double().numpy() for k in (2, 2 + tiny.LAYERS + 1))
        every = [gather(rows, k).double().numpy() for k in range(rows.layers)]
    train, test = split_rows(plan.rows.sentence, 160, 80, seed=0)
    assert not set(train.tolist()) & set(test.tolist())
    assert (len(train), len(test)) == (160, 80)
    a, b, ta, tb = x[train], y[train], x[test], y[test]
    slope = np.linalg.lstsq(a - a.mean(0), b - b.mean(0), rcond=1e-6)[0]
    expected = np.square(b.mean(0) + (ta - a.mean(0)) @ slope - tb).sum() / np.square(tb - tb.mean(0)).sum()
    fit = next(found.of("linreg", layer=2)).fit
    assert fit.error.value == pytest.approx(expected, rel=1e-3)
    assert fit.mse.value == pytest.approx(expected * np.square(tb - tb.mean(0)).mean(), rel=1e-3)
    identity = next(found.of(IDENTITY, layer=2)).fit
    assert identity.error.value == pytest.approx(np.square(ta - tb).sum() / np.square(tb - tb.mean(0)).sum(), rel=1e-4)
    ridge = fit_map(a, b, method="ridge")
    assert next(found.of("ridge", layer=2)).fit.error.value == pytest.approx(
        np.square(ridge(ta) - tb).sum() / np.square(tb - tb.mean(0)).sum(), rel=1e-4
    )
    floor = fit_map(a, shuffled(torch.from_numpy(b)), method="ridge")
    assert next(found.of(SHUFFLED, layer=2)).fit.error.value == pytest.approx(
        np.square(floor(ta) - tb).sum() / np.square(tb - tb.mean(0)).sum(), rel=1e-4
    )
    between, own = found.matrices
    for matrix, offset in ((between, tiny.LAYERS + 1), (own, 0)):  # from the layer of a row to that of a column
        a, b = every[1], every[offset + 3]
        g = fit_map(a[train], b[train], method="ridge")
        squares, around = (np.square(v).sum(1) for v in (g(a[test]) - b[test], b[test] - b[test].mean(0)))
        error = squares.sum() / around.sum()
        assert matrix.values[1, 3] == pytest.approx(error, rel=1e-3)
        weights = resamples(len(test), texts=plan.rows.sentence[test.numpy()])
        np.testing.assert_allclose(matrix.replicates[:, 1, 3], weights @ squares / (weights @ around), rtol=1e-3)
        assert matrix.values[3, 1] != pytest.approx(error, rel=1e-2)
    assert between.values[2, 2] == pytest.approx(next(found.of("ridge", layer=2)).fit.error.value, rel=0.05)
    assert own.values.shape == between.values.shape == (tiny.LAYERS + 1,) * 2
    assert own.values.diagonal().max() < 1e-3
    for curve, start in zip(found.norms, (0, tiny.LAYERS + 1), strict=True):
        both = torch.cat([train, test])
        norms = [
            np.linalg.svd(v[both] - v[both].mean(0), compute_uv=False).sum() for v in every[start:][: len(curve.layers)]
        ]
        np.testing.assert_allclose(curve.values, np.array(norms) / max(norms), rtol=1e-6)


def test_maps_between_words_choose_lambda_on_whole_texts(checkpoints: Path, tmp_path: Path) -> None:
    models, options = [checkpoints / "base", checkpoints / "tuned"], AlignOptions(**QUICK, unit="word")
    result = align(*models, data=texts(40), options=options)
    plan = make_plan(models, texts(40), comparing(options), Silent())
    with RunFolder.open(tmp_path) as folder:
        rows = read_plan(plan, Run(folder))
        x, y = (gather(rows, k).double() for k in (3, 3 + tiny.LAYERS + 1))
    of = plan.rows.sentence
    train, test = split_rows(of, 160, 80, seed=0)

    def error(**how: Any) -> float:
        g = fit_map(x[train], y[train], **how)
        return float((g(x[test]) - y[test]).square().sum() / (y[test] - y[test].mean(0)).square().sum())

    expected = error(texts=of[train.numpy()])
    assert expected != pytest.approx(error(), rel=1e-3)  # so that it matters here
    assert next(result.of("ridge", layer=3)).fit.error.value == pytest.approx(expected, rel=1e-4)
    assert result.matrices[0].values[3, 3] == pytest.approx(expected, rel=1e-4)
    g = fit_map(x[train], y[train], texts=of[train.numpy()])
    squares, around = (row_errors(v, y[test]) for v in (g(x[test]), y[test].mean(0)))
    error, alone = (scores("ridge", squares, around, x.shape[1], texts=t).error for t in (of[test.numpy()], None))
    fit = next(result.of("ridge", layer=3)).fit.error  # its interval, too, is over whole texts
    assert (fit.low, fit.high) == pytest.approx((error.low, error.high), rel=1e-4)
    assert (fit.low, fit.high) != pytest.approx((alone.low, alone.high), rel=1e-3)
    few = align(*models, data=texts(), options=replace(options, train=60, test=30, layers=(1, 2)))
    assert few.data["sentences"] == 90  # no more texts are read than rows are asked for
    with pytest.raises(StratoscopeError, match=r"at least 5 texts .* got 4"):
        align(*models, data=texts(6, seed=2), options=replace(options, train=40, test=10))


def test_inversion_is_judged_on_the_rows_judged_on() -> None:
    rng = np.random.default_rng(0)
    x, tx = (torch.from_numpy(rng.normal(size=(60, 5)) * np.logspace(0, -6, 5)) for _ in range(2))
    turn = torch.from_numpy(rng.normal(size=(5, 5)))
    part = fit_rows(x, x @ turn, tx, tx @ turn, {"methods": ["linreg"], "seed": 0, "paper": False})
    g = fit_map(x, x @ turn, method="linreg")
    assert float(part["inversion.linreg"]) == inversion_error(g, tx, g(tx)) != inversion_error(g, x, g(x))


def test_resampled_nuclear_norms_are_those_of_repeated_rows() -> None:
    rows, texts = np.random.default_rng(0).normal(size=(12, 5)) + 3, np.repeat(np.arange(4), 3)
    both = torch.arange(6), torch.arange(6, 12)
    shared = {"rows": MemoryRows([torch.from_numpy(rows)]), "train": both[0], "test": both[1], "texts": texts}
    norms = nuclear_norm(shared, {"layer": 0, "seed": 3})["norm"].numpy()
    for found, weight in zip(norms[1:], resamples(12, texts=texts, seed=3, number=len(norms) - 1), strict=True):
        again = np.repeat(rows, weight.astype(int), axis=0)
        expected = np.linalg.svd(again - again.mean(0), compute_uv=False).sum() / math.sqrt(len(again))
        assert found == pytest.approx(expected, abs=1e-6)


def test_the_floor_is_no_better_than_the_mean_and_saved_results_come_back(found: Alignment, tmp_path: Path) -> None:
    floor = [f.fit.error.value for f in found.of(SHUFFLED)]
    best = [f.fit.error.value for f in found.of("ridge")]
    assert len(floor) == tiny.LAYERS + 1
    assert min(floor) > 0.9
    assert max(best[:2]) < 0.8  # near the words; above, two random models share nothing that 160 rows could show
    found.save(tmp_path)
    again = ss.load(tmp_path)
    assert plain(again) == plain(found)
    assert [s.verdict in (HOLDS, FAILS, OPEN) for s in found.statements]
    with pytest.raises(StratoscopeError, match="layer=K"):
        _ = found.map


def test_one_layer_keeps_its_map(checkpoints: Path, tmp_path: Path) -> None:
    models = [checkpoints / "base", checkpoints / "tuned"]
    result = ss.align(*models, data=texts(), layer=3, method="inn", train=160, test=80, workers=1, out=tmp_path / "run")
    assert {"inn", "linreg", "ridge", "shrunk", SHUFFLED, IDENTITY} == set(
        result.methods
    )  # linear maps are always beside it
    g, x = ss.load(tmp_path / "run").map, torch.randn(5, tiny.HIDDEN, generator=torch.Generator().manual_seed(0))
    assert g.method == "inn"
    torch.testing.assert_close(g(x), result.map(x))
    assert float((g.inverse(g(x)) - x).norm() / x.norm()) < 1e-4
    assert next(result.of("inn")).fit.inversion < 1e-4
    g.save(tmp_path / "map")
    torch.testing.assert_close(ss.load(tmp_path / "map")(x), g(x), rtol=0, atol=0)


def test_seeds_before_and_after_and_a_sample_of_pairs(checkpoints: Path, tmp_path: Path) -> None:
    tiny.checkpoint("bert", tmp_path / "third", seed=3)
    tuned = [ModelSpec(str(p), name=n) for p, n in
             ((checkpoints / "base", "a"), (checkpoints / "tuned", "b"), (tmp_path / "third", "c"))]  # fmt: skip
    before = [ModelSpec(str(checkpoints / "base"), name=n) for n in ("old-1", "old-2")]
    result = align(*tuned, before=before, data=texts(), options=AlignOptions(**QUICK))
    assert len({(f.x.model, f.y.model) for f in result.fits if f.group == "models"}) == 3
    lowers = next(s for s in result.statements if s.id.startswith("ren2023-tuning-lowers-alignment"))
    assert lowers.verdict == HOLDS  # the two before are the same model
    assert lowers.numbers["before"] < 1e-3
    some = align(*tuned, data=texts(), options=AlignOptions(**QUICK, pairs=2))
    assert len({(f.x.model, f.y.model) for f in some.fits}) == 2


def test_another_seed_of_the_last_model_is_the_ceiling(checkpoints: Path, tmp_path: Path) -> None:
    """Aligned with the last model alone, without floors; the map that is kept is that of the models asked about."""
    models = [checkpoints / "base", checkpoints / "tuned"]
    seed = ModelSpec(str(checkpoints / "tuned"), name="seed")
    result = align(*models, ceiling=[seed], data=texts(), out=tmp_path, options=AlignOptions(**QUICK))
    every = [f for f in result.fits if f.group == "ceiling"]
    assert {(f.x.model, f.y.model, f.fit.method) for f in every} == {("seed", "tuned", "ridge")}
    assert max(f.fit.error.value for f in every) < 1e-3  # the same model
    assert min(f.fit.error.value for f in result.of("ridge")) > 0.05
    (errors,) = [p for s in sections(result).sections for p in s.pictures if p.id == "errors-models"]
    assert [line.name for line in errors.lines if line.dashed] == [
        "ridge on shuffled pairs", "identity", "ridge from another seed"
    ]  # fmt: skip
    one = align(*models, ceiling=[seed], data=texts(), options=AlignOptions(**QUICK, layer=2))
    alone = align(*models, data=texts(), options=AlignOptions(**QUICK, layer=2))
    assert torch.equal(one.map.weight, alone.map.weight)


def test_attention_is_aligned_between_word_pairs(checkpoints: Path, tmp_path: Path) -> None:
    """Rows are the sampled word pairs, columns the heads of a block, as the text read alone has them."""
    models = [ModelSpec(str(checkpoints / "base"), name=n) for n in "ab"]
    before = [ModelSpec(str(checkpoints / n), name=f"old-{n}") for n in ("base", "tuned")]
    options = AlignOptions(**QUICK, unit="attention")
    result = align(*models, before=before, data=texts(), out=tmp_path, options=options)
    assert result.layers() == tuple(range(1, tiny.LAYERS + 1))
    assert result.data["unit"] == "attention"
    assert not result.norms
    assert max(f.fit.error.value for f in result.of("ridge")) < 1e-3  # one model, twice
    assert min(f.fit.error.value for f in result.of("ridge", "before")) > 0.05
    stays = {s.id.partition(":")[0]: s.verdict for s in result.statements}
    assert stays["ren2023-attention-stays-alignable"] == HOLDS
    assert "ren2023-tuning-lowers-alignment" not in stays
    plan = plan_attention(models, texts(), AttentionOptions(), Silent())
    pairs = sample_pairs(plan.lengths, 240, seed=0)
    with RunFolder.open(tmp_path / "rows") as folder:
        rows = read_pairs(plan, pairs, Run(folder))
    assert len(pairs.text) == len(gather(rows, 0)) >= 240
    text, (words,) = next(iter(pairs.places)), [plan.words.rows]
    alone = Corpus("one", (texts().sentences[text],), (0,))
    model = open_model(models[0])
    encoded = encode_for(model.encoder, alone.sentences, ["word"])
    own = words.word[words.sentence == text]
    reader = AttentionReader(encoded, Rows("", alone.fingerprint, "word", np.zeros_like(own), own, {}))
    read(model, encoded, [reader])
    heads = plan.heads[0]
    expected = reader.texts[0].values.reshape(tiny.LAYERS, heads, len(own), len(own))
    for k, place in enumerate(pairs.places[text]):
        source, target = divmod(int(place), len(own))
        np.testing.assert_allclose(gather(rows, 1)[k], expected[1, :, source, target], atol=1e-6)


def test_word_pairs_are_a_seeded_sample_of_bounded_size() -> None:
    lengths = np.array([1, 3, 100, 2, 0, 50])
    every = sample_pairs(lengths, 10**6, seed=0)
    assert {t: len(p) for t, p in every.places.items()} == {1: 9, 2: 32, 3: 4, 5: 32}
    assert all(len(set(p.tolist())) == len(p) and p.max() < lengths[t] ** 2 for t, p in every.places.items())
    assert max(every.places[2]) > 100  # from all of the text
    assert len(sample_pairs(lengths, 5, seed=1).places) < 4
    for number, texts_each in ((60, (60, 1)), (320, (80, 4)), (3000, (100, 30)), (9000, (100, 32))):
        many = sample_pairs(np.full(100, 9), number, seed=0)  # as many texts as there are, and few pairs of each
        assert (len(many.places), {len(p) for p in many.places.values()}) == (texts_each[0], {texts_each[1]})
    assert {len(p) for p in sample_pairs(np.full(2000, 9), 1200, seed=0).places.values()} == {3}  # 400 texts will do
    past = sample_pairs(lengths, 10**6, seed=0, causal=True)
    assert {t: len(p) for t, p in past.places.items()} == {1: 6, 2: 32, 3: 3, 5: 32}
    for t, places in past.places.items():
        source, target = np.divmod(places, lengths[t])
        assert (target <= source).all()


def test_a_killed_run_resumes_pair_by_pair(
    checkpoints: Path, tmp_path: Path, found: Alignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, options = [checkpoints / "base", checkpoints / "tuned"], AlignOptions(**QUICK)
    with pytest.raises(KilledError):
        align(*models, data=texts(), out=tmp_path, options=options, progress=killing("fitting maps", 2))
    fitted: list[Any] = []
    monkeypatch.setattr(study, "fit_layers", lambda shared, item: fitted.append(item) or fit_layers(shared, item))
    result = align(*models, data=texts(), out=tmp_path, options=options)
    assert len(fitted) == tiny.LAYERS + 1 - 2
    assert [f.fit.error.value for f in result.of("ridge")] == [f.fit.error.value for f in found.of("ridge")]


def test_other_widths_depths_and_constant_layers(checkpoints: Path) -> None:
    models = [checkpoints / "base", checkpoints / "other"]  # 32 and 48 wide, 3 and 2 blocks
    result = align(*models, data=texts(), options=AlignOptions(**QUICK))
    assert result.layers() == (0, 1, 2)
    assert IDENTITY not in result.methods
    twin = align(
        ModelSpec(str(models[1]), name="twin"), models[1], data=texts(), options=AlignOptions(**QUICK, layer=1)
    )
    one, same = (next(r.of("ridge", layer=1)).fit for r in (result, twin))  # per feature of the second space
    assert one.mse.value / one.error.value == pytest.approx(same.mse.value / same.error.value)
    cls = align(checkpoints / "base", checkpoints / "tuned", data=texts(), options=AlignOptions(**QUICK, unit="cls"))
    assert 0 not in cls.layers()  # the first token is the same in every text before the first block
    assert any("ridge is missing for 1 of 4 pairs of layers: a layer that does not vary" in w for w in cls.warnings)


def test_a_method_that_the_rows_rule_out_is_missing_with_its_reason(checkpoints: Path) -> None:
    options = AlignOptions(**QUICK | {"method": ("cca", "svcca", "inn", "ridge"), "train": 40, "test": 30})
    models = [checkpoints / "base", checkpoints / "other"]
    result = align(*models, data=texts(70), options=replace(options, layers=(1, 2)))
    assert {"linreg", "ridge"} < set(result.methods)
    assert result.warnings[0].startswith("cca")  # before what is said of the rows: a console shows the first
    notes = {w.split()[0]: w for w in result.warnings}
    assert "missing for 2 of 2 pairs of layers: cca needs more rows than directions" in notes["cca"]
    assert "a bijection needs spaces of one width, got 32 and 48" in notes["inn"]
    assert "40 rows of up to 48 features" in notes["maps"]


def test_what_cannot_be_aligned_is_refused(checkpoints: Path) -> None:
    base, other = checkpoints / "base", checkpoints / "tuned"
    for models, options, word in [
        ([base], AlignOptions(**QUICK), "at least two models"),
        ([base, other], AlignOptions(layer=1, layers=(1, 2)), "one of --layer and --layers"),
        ([base, other], AlignOptions(method=("rdige",)), "did you mean 'ridge'"),
        ([base, other], AlignOptions(method=()), "at least one --method"),
        ([base, other], AlignOptions(method=("ridge", "cca"), paper=True), "got --method ridge cca; add inn or mlp"),
        ([base, other], AlignOptions(unit="attenton"), "did you mean 'attention'"),
        ([base, checkpoints / "other"], AlignOptions(**QUICK | {"method": ("inn",)}), "one width, got 32 and 48"),
    ]:
        with pytest.raises(StratoscopeError, match=word):
            align(*models, data=texts(), options=options)
    with pytest.raises(StratoscopeError, match=r"at least two models --before, .* got 1"):
        align(base, other, before=[base], data=texts(), options=AlignOptions(**QUICK))
    few = AlignOptions(**QUICK | {"method": ("cca",), "train": 40, "test": 30}, layers=(1, 2))
    with pytest.raises(StratoscopeError, match="no map could be fitted: cca is missing for 2 of 2 pairs"):
        align(base, checkpoints / "other", data=texts(70), options=few)
    with pytest.raises(StratoscopeError, match="at least 20 rows to fit maps on, got 16 of the 24 there are"):
        align(base, other, data=texts(24), options=AlignOptions(**QUICK))
    with pytest.raises(StratoscopeError, match="at least 10 rows to judge them on, got 6 of the 26 there are"):
        align(base, other, data=texts(26), options=AlignOptions(**QUICK | {"train": 400, "test": 100}))


def test_words_of_one_sentence_stay_on_one_side() -> None:
    sentence = np.repeat(np.arange(50), 4)
    train, test = (set(sentence[s.numpy()].tolist()) for s in split_rows(sentence, 80, 60, seed=1))
    assert not train & test
    assert len(train) == 20
    assert len(test) == 15
    few = split_rows(np.arange(30), 160, 80, seed=0)
    assert [len(s) for s in few] == [20, 10]


def test_the_identity_into_itself_reproduces_the_accuracy_exactly(
    learnt: tuple[Finetuned, ...], tmp_path: Path
) -> None:
    task, model = classification(), learnt[0].folder
    result = inject(model, model, task, out=tmp_path / "in", options=InjectOptions(method=("linreg", "procrustes")))
    own = result.own[1].value
    assert result[IDENTITY] == own
    assert result["linreg"] == own
    assert own.value > 0.9
    assert result[RANDOM_LABELS].value == pytest.approx(0.5, abs=0.1)
    assert abs(result[RANDOM_HEAD].value - 0.5) < 0.45
    kept = [s for s in result.statements if s.id.startswith("ren2023-injection-keeps-accuracy")]
    assert {s.about["method"] for s in kept} == {"linreg", "procrustes"}
    assert all(s.verdict == HOLDS for s in kept)
    assert plain(ss.load(tmp_path / "in")) == plain(result)
    assert result.task["bag_of_words"] == bag_of_words(task)
    assert any("bag of words" in w for w in result.warnings) == (own.value < bag_of_words(task))


def test_a_head_reads_the_mapped_state_of_another_seed(
    learnt: tuple[Finetuned, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f.folder for f in learnt)
    vectors: list[torch.Tensor] = []
    read_by = injecting.head_scores
    monkeypatch.setattr(injecting, "head_scores", lambda m, v, **how: vectors.append(v) or read_by(m, v, **how))
    result = inject(first, second, classification(), out=tmp_path, options=InjectOptions(method=("ridge", "cca")))
    assert result["ridge"].value > 0.9
    assert result[SHUFFLED].value < 0.9
    *_, identity, _, own = vectors[:6]  # two maps, the floor, the first model's states as they are; then the second's
    assert identity.shape == own.shape
    assert not torch.equal(identity, own)
    assert result.task["rows"] == len(classification().train)
    assert {i.name for i in result.injected if i.baseline} == {SHUFFLED, IDENTITY, RANDOM_LABELS, RANDOM_HEAD}
    assert [m.name for m in result.models] == [i.name for i in result.own]


def test_only_the_rows_that_maps_are_fitted_on_are_read(
    learnt: tuple[Finetuned, ...], tmp_path: Path, reads: Reads
) -> None:
    first, second = (f.folder for f in learnt)
    task, options = classification(80), InjectOptions(method=("ridge",), train=40)
    result = inject(first, second, task, out=tmp_path, options=options)
    assert result.task["rows"] == 40
    assert [counted.total() for counted in reads.texts.values()] == [40 + 80] * 2


def test_the_choices_of_one_example_are_held_out_and_drawn_together() -> None:
    """Each choice the same: three say no more than one."""
    rng = np.random.default_rng(0)
    x, tx = (torch.from_numpy(rng.normal(size=(n, 20))) for n in (60, 40))
    turn = torch.from_numpy(rng.normal(size=(20, 4)))
    y, ty = (rows @ turn + 3 * torch.from_numpy(rng.normal(size=(len(rows), 4))) for rows in (x, tx))
    one, three = (
        _mapped(_States(*(rows.repeat_interleave(k, 0) for rows in (x, y, tx, ty)), k, False, 0), {"method": "ridge"})
        for k in (1, 3)
    )
    torch.testing.assert_close(three["rows"][::3], one["rows"], rtol=0, atol=1e-9)
    torch.testing.assert_close(three["numbers"], one["numbers"], rtol=1e-9, atol=0, equal_nan=True)


def test_an_injection_that_no_method_can_make_is_one_sentence(learnt: tuple[Finetuned, ...], tmp_path: Path) -> None:
    few = replace(classification(), train=classification().train[:12])
    first, second = (f.folder for f in learnt)
    with pytest.raises(StratoscopeError, match=r"no map could be fitted .* at least 20 paired rows .* got 12") as e:
        inject(first, second, few, out=tmp_path, options=InjectOptions(method=("ridge", "cca")), draw=write_report)
    assert "\n" not in str(e.value)
    with pytest.raises(
        StratoscopeError, match="cca is left out"
    ):  # as many directions as rows: the floor alone is left
        inject(first, second, distinct(), out=tmp_path / "b", options=InjectOptions(method=("cca",)))


def test_recovery_of_a_known_bijection(tmp_path: Path) -> None:
    result = ss.recovery(dim="3", train=300, test=200, method=["ridge", "inn"], workers=1, out=tmp_path)
    ridge, inn = (result.of(m, 3)[0] for m in ("ridge", "inn"))
    assert inn.error.value < ridge.error.value / 3
    assert inn.inversion < 1e-9
    assert not math.isnan(result.of(SHUFFLED, 3)[0].error.value)
    assert [(s.about, s.verdict) for s in result.statements] == [({"features": "3"}, HOLDS)]


def test_recovery_maps_the_rows_of_a_layer_for_every_truth(checkpoints: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"dim": "4", "train": 100, "test": 60, "method": ["ridge"], "workers": 1}
    result = ss.recovery(checkpoints / "base", texts(160), layer=2, truths=2, out=tmp_path / "run", **how)
    assert result.data["rows"] == "base:2"
    plan = make_plan([checkpoints / "base"], texts(160), comparing(AlignOptions(**QUICK)), Silent())
    with RunFolder.open(tmp_path / "rows") as folder:
        x = principal_components(gather(read_plan(plan, Run(folder)), 2), 4)
    for truth, fit in enumerate(result.of("ridge", 4)):
        y = random_bijection(4, seed=truth)(x)
        g = fit_map(x[:100], y[:100], method="ridge")
        error = float((g(x[100:]) - y[100:]).square().sum() / (y[100:] - y[100:].mean(0)).square().sum())
        assert fit.error.value == pytest.approx(error, rel=1e-5)
    few = ss.recovery(checkpoints / "base", texts(160), layer=2, truths=2, **how | {"train": "50,100"})
    assert few.sizes == (50, 100)
    assert [plain(f) for f in few.of("ridge", 4)] == [plain(f) for f in result.of("ridge", 4)]
    y = random_bijection(4, seed=1)(x)
    g = fit_map(x[:50], y[:50], method="ridge")
    error = float((g(x[100:]) - y[100:]).square().sum() / (y[100:] - y[100:].mean(0)).square().sum())
    assert few.of("ridge", 4, 50)[1].error.value == pytest.approx(error, rel=1e-5)
    assert [p.id for s in recovery_sections(few).sections for p in s.pictures] == ["recovery", "rows-4"]
    last = ss.recovery(checkpoints / "base", texts(160), **how)
    assert last.data["rows"] == f"base:{tiny.LAYERS}"


def test_recovery_refuses_what_it_cannot_map() -> None:
    with pytest.raises(StratoscopeError, match="both --model and --data"):
        ss.recovery(data="x.txt")
    with pytest.raises(StratoscopeError, match="at least 2"):
        ss.recovery(dim="1")
    with pytest.raises(StratoscopeError, match="--train of at least 40, got 30"):
        ss.recovery(train="30,100")
    with pytest.raises(StratoscopeError, match="such as '8,32,128'"):
        ss.recovery(dim="8,x")
