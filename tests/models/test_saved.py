"""Activations saved elsewhere: read sentence by sentence, matched with the corpus, refused where they do not match."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.open.loading import ModelSpec
from stratoscope.models.read.hidden import read_rows
from stratoscope.models.saved.files import is_saved, open_files, paths_of
from stratoscope.models.saved.source import open_source, survey_source
from stratoscope.models.saved.write import Hdf5Writer, JsonWriter, check_target
from stratoscope.models.text.rows import plan_rows

TEXTS = ("the cat sat", "yes", "the cat sat", "a dog , too , ran", "birds sing")
LAYERS, WIDTH = 3, 4
Arrays = list[np.ndarray]


@pytest.fixture
def vectors() -> Arrays:
    """One (layers, words, features) per text; those of the repeated text differ."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((LAYERS, len(t.split()), WIDTH)).astype(np.float32) for t in TEXTS]


def hdf5(path: Path, arrays: Arrays, texts: tuple[str, ...] = TEXTS) -> Path:
    """Written as AllenNLP's `elmo` command and contextual-repr-analysis do."""
    index: dict[str, str] = {}
    with h5py.File(path, "w") as f:
        for k, (text, array) in enumerate(zip(texts, arrays, strict=True)):
            times = texts[:k].count(text) + 1
            index[text if times == 1 else f"{text} (Occurrence {times})"] = str(k)
            f.create_dataset(str(k), array.shape, dtype=array.dtype, data=array)
        kept = f.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        kept[0] = json.dumps(index)
    return path


def neurox(path: Path, arrays: Arrays) -> Path:
    """Written as NeuroX's JSON writer does; layers in any order."""
    with path.open("w") as f:
        for k, (text, array) in enumerate(zip(TEXTS, arrays, strict=True)):
            features = [
                {
                    "token": w,
                    "layers": [{"index": i, "values": array[i, j].tolist()} for i in reversed(range(len(array)))],
                }
                for j, w in enumerate(text.split())
            ]
            f.write(json.dumps({"linex_index": k, "features": features}) + "\n")
    return path


def split(write: Callable[[Path, Arrays], Path]) -> Callable[[Path, Arrays], Path]:
    def by_layer(path: Path, arrays: Arrays) -> Path:
        for k in range(LAYERS):
            write(path.with_name(f"{path.stem}-layer{k}{path.suffix}"), [a[[k]] for a in arrays])
        return path

    return by_layer


FORMATS = {
    "hdf5": (hdf5, "saved.hdf5"),
    "h5": (hdf5, "saved.h5"),
    "json": (neurox, "saved.json"),
    "hdf5 by layer": (split(hdf5), "saved.hdf5"),
    "json by layer": (split(neurox), "saved.json"),
}


@pytest.fixture(params=FORMATS)
def saved(request: pytest.FixtureRequest, tmp_path: Path, vectors: Arrays) -> Path:
    write, name = FORMATS[request.param]
    return write(tmp_path / name, vectors)


def corpus_of(*texts: str, **more: Any) -> Corpus:
    sentences = tuple(Sentence(t, tuple(t.split()), **more) for t in texts)
    return Corpus("texts", sentences, tuple(range(len(texts))))


def rows_of(path: Path, corpus: Corpus, **how: Any) -> list[torch.Tensor]:
    seen = survey_source(ModelSpec(str(path)))
    rows = plan_rows(corpus, [seen.encoder], "word")
    return read_rows(open_source(seen.spec, surveyed=seen), corpus, rows, **how)


def test_every_format_gives_every_word_at_every_layer(saved: Path, vectors: Arrays) -> None:
    """In the order of the corpus, whatever that of the file; a sentence that repeats is read where it came first."""
    corpus = corpus_of(TEXTS[4], TEXTS[3], TEXTS[0], TEXTS[1], TEXTS[2])
    for batch in (None, 1):
        layers = rows_of(saved, corpus, batch_tokens=batch)
        assert len(layers) == LAYERS
        for k, x in enumerate(layers):
            np.testing.assert_array_equal(x, np.concatenate([vectors[i][k] for i in (4, 3, 0, 1, 0)]))


def test_what_is_known_without_reading(saved: Path) -> None:
    seen = survey_source(ModelSpec(str(saved)))
    assert (seen.layers, seen.width, seen.dtype, seen.family.name) == (LAYERS, WIDTH, "float32", "saved")
    assert [n for n in seen.notes if "layer 0" in n and "first layer that was saved" in n]
    assert [n for n in seen.notes if n.startswith("1 sentences") and "repeat" in n]


def test_one_layer_without_its_axis(tmp_path: Path, vectors: Arrays) -> None:
    path = hdf5(tmp_path / "one.hdf5", [a[1] for a in vectors])
    (layer,) = rows_of(path, corpus_of(*TEXTS[:2]))
    np.testing.assert_array_equal(layer, np.concatenate([vectors[0][1], vectors[1][1]]))


def test_layers_come_in_the_order_of_their_numbers(tmp_path: Path, vectors: Arrays) -> None:
    for k, layer in ((2, 0), (10, 1), (9, 2)):
        hdf5(tmp_path / f"x-layer{k}.hdf5", [a[[layer]] for a in vectors])
    assert [p.name for p in paths_of(str(tmp_path / "x.hdf5"))] == ["x-layer2.hdf5", "x-layer9.hdf5", "x-layer10.hdf5"]
    layers = rows_of(tmp_path / "x.hdf5", corpus_of(TEXTS[0]))
    for x, layer in zip(layers, (0, 2, 1), strict=True):
        np.testing.assert_array_equal(x, vectors[0][layer])
    alone = rows_of(tmp_path / "x-layer9.hdf5", corpus_of(TEXTS[0]))
    assert len(alone) == 1


def test_half_precision_counts_as_rounding(tmp_path: Path, vectors: Arrays) -> None:
    found = {
        dtype: survey_source(ModelSpec(str(hdf5(tmp_path / f"{dtype}.hdf5", [a.astype(dtype) for a in vectors])))).dtype
        for dtype in ("float16", "float32", "float64")
    }
    assert found == {"float16": "float16", "float32": "float32", "float64": "float32"}


def test_the_fingerprint_is_of_the_content(tmp_path: Path, vectors: Arrays) -> None:
    one, two = (survey_source(ModelSpec(str(neurox(tmp_path / n, vectors)))).fingerprint for n in ("a.json", "b.json"))
    vectors[0][0, 0, 0] += 1
    other = survey_source(ModelSpec(str(neurox(tmp_path / "c.json", vectors)))).fingerprint
    assert one == two != other


def test_reading_holds_one_sentence(tmp_path: Path, vectors: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence of a batch is read alone and once."""
    seen = survey_source(ModelSpec(str(hdf5(tmp_path / "x.hdf5", vectors))))
    reads: list[int] = []
    own = type(seen.encoder.file).read  # type: ignore[attr-defined]

    def counted(self: Any, k: int) -> Any:
        reads.append(k)
        return own(self, k)

    monkeypatch.setattr(type(seen.encoder.file), "read", counted)  # type: ignore[attr-defined]
    corpus = corpus_of(*TEXTS[1:])
    read_rows(open_source(seen.spec, surveyed=seen), corpus, plan_rows(corpus, [seen.encoder], "word"))
    assert sorted(reads) == [0, 1, 3, 4]


# --- what does not match --------------------------------------------------------------------------------------------


def test_other_sentences_are_refused(saved: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"holds \d sentences, but not 'the cat ran'; compare it on the text"):
        rows_of(saved, corpus_of("the cat sat", "the cat ran"))


def test_other_words_are_refused(tmp_path: Path, vectors: Arrays) -> None:
    vectors[3] = vectors[3][:, :5]
    path = hdf5(tmp_path / "x.hdf5", vectors)
    with pytest.raises(StratoscopeError, match=r"holds 5 vectors for a sentence of 6 words \('a dog , too , ran'\)"):
        rows_of(path, corpus_of(*TEXTS))


def test_sentences_of_another_shape_are_refused(tmp_path: Path, vectors: Arrays) -> None:
    vectors[3] = vectors[3][:2]
    path = hdf5(tmp_path / "x.hdf5", vectors)
    with pytest.raises(StratoscopeError, match="has 2 layers of 4 features, other sentences 3 of 4"):
        rows_of(path, corpus_of(*TEXTS))


@pytest.mark.parametrize("unit", ["cls", "mean", "token"])
def test_other_units_are_refused(saved: Path, unit: str) -> None:
    seen = survey_source(ModelSpec(str(saved)))
    with pytest.raises(StratoscopeError, match="holds vectors of words, not of other units; use unit 'word'"):
        plan_rows(corpus_of(*TEXTS), [seen.encoder], unit)


def test_truncated_texts_and_pairs_are_refused(saved: Path) -> None:
    encoder = survey_source(ModelSpec(str(saved))).encoder
    with pytest.raises(StratoscopeError, match="not of truncated texts"):
        plan_rows(corpus_of(*TEXTS), [encoder], "word", truncate=8)
    with pytest.raises(StratoscopeError, match="holds single sentences, got a pair of texts"):
        plan_rows(corpus_of(*TEXTS, pair="more"), [encoder], "word")


def test_random_weights_are_refused(saved: Path) -> None:
    with pytest.raises(StratoscopeError, match="holds activations and has no weights to draw"):
        survey_source(ModelSpec(str(saved), random_init=True))


def test_values_that_are_not_finite_are_refused(tmp_path: Path, vectors: Arrays) -> None:
    vectors[1][2, 0, 1] = np.nan
    with pytest.raises(StratoscopeError, match=r"not finite at layer 2, sentence 1, word 0 \('yes'\)"):
        rows_of(hdf5(tmp_path / "x.hdf5", vectors), corpus_of(*TEXTS))


def test_layers_of_other_sentences_do_not_go_together(tmp_path: Path, vectors: Arrays) -> None:
    hdf5(tmp_path / "x-layer0.hdf5", [a[[0]] for a in vectors])
    hdf5(tmp_path / "x-layer1.hdf5", [a[[1]] for a in vectors], tuple(reversed(TEXTS)))
    with pytest.raises(StratoscopeError, match=r"x-layer0.hdf5 and .*x-layer1.hdf5 hold other sentences"):
        open_files(paths_of(str(tmp_path / "x.hdf5")))


def test_damaged_files(tmp_path: Path, vectors: Arrays) -> None:
    def refused(path: Path, words: str) -> None:
        with pytest.raises(StratoscopeError, match=words):
            rows_of(path, corpus_of(*TEXTS))

    (tmp_path / "text.hdf5").write_text("no")
    refused(tmp_path / "text.hdf5", "cannot be read as HDF5")
    with h5py.File(tmp_path / "bare.hdf5", "w") as f:
        f.create_dataset("0", data=vectors[0])
    refused(tmp_path / "bare.hdf5", "'sentence_to_index', which says where each sentence is, is missing")
    with h5py.File(tmp_path / "index.hdf5", "w") as f:
        f.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())[0] = "[1]"
    refused(tmp_path / "index.hdf5", "no JSON object of numbers")
    with h5py.File(hdf5(tmp_path / "lost.hdf5", vectors), "a") as f:
        del f["3"]
    refused(tmp_path / "lost.hdf5", "data set '3' is missing")
    refused(hdf5(tmp_path / "empty.hdf5", [], ()), "holds no sentence")
    (tmp_path / "bad.json").write_text('{"features": [{"word": "x"}]}\n')
    refused(tmp_path / "bad.json", "a line is no object with features of tokens")
    refused(tmp_path / "none.hdf5", r"no activations at .*none\.hdf5.*none-layer0\.hdf5")


def test_which_sources_are_activations(tmp_path: Path) -> None:
    (tmp_path / "folder.hdf5").mkdir()
    assert all(is_saved(s) for s in ("elmo.hdf5", "a/b.H5", "x.json"))
    assert not any(is_saved(s) for s in ("bert-base", "m.gguf", tmp_path / "folder.hdf5"))


# --- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("writer", "name"), [(Hdf5Writer, "x.hdf5"), (JsonWriter, "x.json")])
def test_what_is_written_is_read_back(writer: Any, name: str, tmp_path: Path, vectors: Arrays) -> None:
    kept = writer(tmp_path / name)
    for text, array in zip(TEXTS, vectors, strict=True):
        kept.add(text.split(), array)
    kept.close()
    file = open_files([tmp_path / name])
    assert file.repeats == 1
    for k in (0, 1, 3, 4):
        assert file.index[TEXTS[k]] == k
        np.testing.assert_array_equal(file.read(k), vectors[k])
    np.testing.assert_array_equal(file.read(2), vectors[2])


def test_hdf5_is_as_others_read_it(tmp_path: Path, vectors: Arrays) -> None:
    kept = Hdf5Writer(tmp_path / "x.hdf5")
    for text, array in zip(TEXTS, vectors, strict=True):
        kept.add(text.split(), array)
    kept.close()
    with h5py.File(tmp_path / "x.hdf5") as f, h5py.File(hdf5(tmp_path / "theirs.hdf5", vectors)) as g:
        assert f["sentence_to_index"].shape == g["sentence_to_index"].shape == (1,)
        assert json.loads(f["sentence_to_index"][0]) == json.loads(g["sentence_to_index"][0])
        assert set(f) == set(g)
        assert f["3"].shape == g["3"].shape == (LAYERS, 6, WIDTH)


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("")
    check_target(tmp_path / "there.json", overwrite=True)
    for path, words in (
        (tmp_path / "there.json", "exists already.*--overwrite"),
        (tmp_path / "x.npz", "to end in .hdf5, .h5, .json, got"),
        (tmp_path / "no" / "x.json", "folder of .* does not exist"),
    ):
        with pytest.raises(StratoscopeError, match=words):
            check_target(path, overwrite=False)
