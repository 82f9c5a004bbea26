"""Warm-up is found where it ends; a run's own interval knows that neighbours are alike."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.measure.intervals import student_interval
from moesim.measure.steady import batch_means_interval, mser5


def by_definition(values):
    """MSER-5 as it is written down: a sum of squares for every cut."""
    batches = [np.mean(values[i : i + 5]) for i in range(0, len(values) - 4, 5)]
    scores = [
        np.sum((batches[d:] - np.mean(batches[d:])) ** 2) / (len(batches) - d) ** 2
        for d in range(len(batches) // 2 + 1)
    ]
    return scores, len(batches)


@given(st.lists(st.integers(-1000, 1000), min_size=10, max_size=120))
def test_mser5_is_its_definition(values):
    """The cut has the least score of all, and is within the first half."""
    scores, batches = by_definition(np.array(values, float))
    cut = mser5(values)

    assert cut % 5 == 0
    assert cut // 5 <= batches // 2
    assert scores[cut // 5] <= min(scores) + 1e-6


def autocorrelated(rng, n, phi, start=0.0):
    noise = rng.standard_normal(n)
    values = np.empty(n)
    last = start
    for i in range(n):
        last = phi * last + noise[i]
        values[i] = last
    return values


def test_mser5_drops_a_warm_up():
    """A start 50 standard deviations off fades with 0.95 a step: gone after 100."""
    rng = np.random.default_rng(1)
    cuts = [mser5(autocorrelated(rng, 2000, 0.95, start=150.0)) for _ in range(20)]

    assert 40 <= np.median(cuts) <= 160


def test_mser5_keeps_nearly_all_of_a_steady_run():
    rng = np.random.default_rng(2)
    cuts = [mser5(rng.standard_normal(2000)) for _ in range(20)]

    assert np.median(cuts) <= 100


@pytest.mark.parametrize("values", [[], [1.0] * 9])
def test_mser5_needs_two_batches(values):
    assert mser5(values) == 0


def test_batch_means_of_whole_batches():
    """Four batches of five, the odd value at the start dropped."""
    values = [1e9, *np.repeat([1.0, 2.0, 3.0, 4.0], 5)]

    expected = student_interval([1.0, 2.0, 3.0, 4.0])
    assert batch_means_interval(values, batches=4) == pytest.approx(expected)


def test_batch_means_cover_where_single_values_do_not():
    """Neighbours alike by 0.9: 20 batches of 250 steps each forget one another."""
    rng = np.random.default_rng(3)
    runs = [autocorrelated(rng, 5000, 0.9)[1000:] for _ in range(200)]

    def share(interval):
        return np.mean([low <= 0 <= high for low, high in map(interval, runs)])

    assert 0.88 <= share(batch_means_interval) <= 0.99
    assert share(student_interval) < 0.5


def test_batches_of_one_give_no_interval():
    assert all(isnan(end) for end in batch_means_interval(np.arange(39.0)))
