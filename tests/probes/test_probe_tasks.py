"""Baselines, control tasks and description length."""

from __future__ import annotations

import math

import numpy as np
import torch
from probe_cases import features_of

from stratoscope.probes.codelength import online_code
from stratoscope.probes.objective import Penalties, accuracy, code_length
from stratoscope.probes.solve import solve
from stratoscope.probes.tasks import by_word, control_tags, majority, number_types


def test_baselines_by_hand() -> None:
    train, test = np.array([1, 1, 0, 2, 0]), np.array([1, 0, 2, 1])
    assert majority(train, test).tolist() == [False, True, False, False]  # 0 and 1 are equally common: the first
    for one, y, other, z, want in (
        ("aabbc", train, "abcz", [1, 0, 0, 0], [True, True, True, True]),
        ("a", [1], "ab", [0, 1], [False, True]),
        ("aaab", [2, 2, 0, 1], "aab", [2, 0, 2], [True, False, False]),
        ("ab", [1, 0], "ab", [-1, 0], [False, True]),  # -1: a tag that training does not have
    ):
        known: dict[str, int] = {}
        numbers = [number_types(iter(words), len(words), known) for words in (one, other)]
        assert by_word(numbers[0], np.array(y), numbers[1], np.array(z)).tolist() == want


def test_common_tag_of_a_word_is_that_of_a_slow_count() -> None:
    generator = np.random.default_rng(0)
    train_types, test_types = (generator.integers(30, size=n).astype(np.int32) for n in (400, 200))
    train, test = generator.integers(4, size=400).astype(np.int16), generator.integers(-1, 4, size=200)
    train_types[train_types == 7] = 8  # only in test
    best = {w: min(range(4), key=lambda t: (-(train[train_types == w] == t).sum(), t)) for w in set(train_types)}
    rest = np.bincount(train).argmax()
    want = [best.get(w, rest) == t for w, t in zip(test_types, test, strict=True)]
    assert by_word(train_types, train, test_types, test).tolist() == want


def test_types_are_numbered_as_they_come() -> None:
    known = {"b": 0}
    assert number_types(iter(["a", "b", "a", "c"]), 4, known).tolist() == [1, 0, 1, 2]
    assert list(known) == ["b", "a", "c"]


def test_control_tags_are_one_per_word_drawn_from_the_distribution() -> None:
    words = [f"w{k}" for k in range(4000)] * 2
    shares = np.array([0.7, 0.2, 0.1])
    tags = control_tags(words, shares, seed=3)
    assert np.array_equal(tags[:4000], tags[4000:])
    assert np.allclose(np.bincount(tags) / len(tags), shares, atol=0.03)
    assert np.array_equal(control_tags(words[:5], shares, seed=3), tags[:5])  # whatever the other words are
    assert not np.array_equal(control_tags(words, shares, seed=4), tags)
    assert control_tags(["a"], np.array([0.0, 1.0, 0.0]), seed=0).tolist() == [1]


def test_on_noise_selectivity_is_zero_within_its_interval() -> None:
    """A word's vector says nothing of its tag: probe and control do alike (tags and control drawn per word type)."""
    generator = np.random.default_rng(0)
    types = generator.integers(400, size=6000)
    words = [f"w{k}" for k in types]
    shares = np.array([0.6, 0.3, 0.1])
    tag_of = generator.choice(3, size=400, p=shares)
    x = torch.from_numpy(generator.normal(size=(6000, 20)).astype(np.float32))
    tags = {"task": tag_of[types], "control": control_tags(words, shares, seed=0)}
    right = {}
    for name, y in tags.items():
        y_ = torch.from_numpy(y)
        train, test = (features_of(x[a:b], y_[a:b], 3) for a, b in ((0, 4000), (4000, 6000)))
        fit = solve(train, Penalties.one(1e-3, 1e-3))
        right[name] = float(accuracy(test, fit.weight, fit.bias)[0]) - float(
            (y[4000:] == np.bincount(y).argmax()).mean()
        )
    selectivity = right["task"] - right["control"]
    assert abs(selectivity) < 1.96 * math.sqrt(2 * 0.25 / 2000)


def test_description_length_is_short_for_what_is_there_and_uniform_for_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 6, generator=generator)
    told, noise = (x[:, 0] > 0).long(), torch.randint(2, (3000,), generator=generator)
    bits = {
        k: online_code(features_of(x, y, 2), Penalties.one(1e-4, 1e-4)) for k, y in (("told", told), ("noise", noise))
    }
    assert bits["told"] < 0.3 * 3000
    assert 0.98 * 3000 < bits["noise"] < 1.1 * 3000
    first = online_code(features_of(x[:1], told[:1], 2), Penalties.one(1e-4, 1e-4))
    assert first == math.log2(2)


def test_code_of_a_block_is_mixed_with_one_uniform_row() -> None:
    x, y = torch.tensor([[0.0], [0.0]]), torch.tensor([0, 1])
    bias = torch.tensor([[0.0], [-200.0], [0.0], [0.0]])  # the second tag never, the others alike
    got = code_length(features_of(x, y, 4), torch.zeros(1, 4, 1), bias, trained_on=9)
    want = -math.log2((9 / 3 + 1 / 4) / 10) - math.log2((0 + 1 / 4) / 10)
    assert abs(got - want) < 1e-6
