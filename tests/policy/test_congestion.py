"""Averages over windows, work under way, and patience, each against plain arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.policy.congestion import (
    LEAST_PATIENCE,
    CongestionMap,
    MovingAverage,
    Patience,
    Underway,
)

amounts = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=12)


@given(amounts, st.sampled_from([0.25, 0.5, 1.0]), st.integers(1, 15))
def test_the_average_is_the_weighted_mean_of_full_windows(given_amounts, alpha, until):
    """Weights fall by 1 - alpha a window back, and sum to 1 over the windows seen."""
    events = sorted((w, a) for w, a in given_amounts if w < until)
    average = MovingAverage((1,), alpha, 2.0)
    for window, amount in events:
        average.add(np.array([amount]), 2.0 * window + 0.5)

    per_window = np.zeros(until)
    for window, amount in events:
        per_window[window] += amount / 2.0
    weight = (1 - alpha) ** np.arange(until)[::-1]

    found = average.rate(2.0 * until + 1.0)[0]
    assert found == pytest.approx((weight * per_window).sum() / weight.sum())


def test_what_is_in_the_open_window_does_not_count_yet():
    average = MovingAverage((1,), 0.5, 1.0)
    average.add(np.array([4.0]), 0.2)

    assert average.rate(0.9) == [0.0]
    assert average.rate(1.0) == [4.0]


def test_the_map_keeps_experts_and_gpus_apart():
    found = CongestionMap((1, 2, 1), 1.0, 1.0)
    found.land(np.array([[3, 5]]), np.array([[0.5]]), 0.0)

    assert found.experts(1.0).tolist() == [[3.0, 5.0]]
    assert found.gpus(1.0).tolist() == [[0.5]]


def test_work_ahead_fades_at_the_usual_pace():
    """Until a pass has ended all is ahead; then layer after layer goes, in order."""
    road = Underway(4, 1)
    seconds = np.array([[1.0], [2.0], [3.0], [4.0]])
    road.admit(0, 0.0, seconds)

    assert road.ahead(7.0).tolist() == seconds.tolist()
    road.land(0, 8.0)
    assert not road.ahead(8.0).any()
    road.admit(1, 10.0, seconds)
    assert road.ahead(13.0)[:, 0].tolist() == [0.0, 1.0, 3.0, 4.0]
    assert not road.ahead(18.0).any()


def test_patience_halves_while_queues_grow_and_comes_back_slowly():
    patience = Patience(0.5, 1.0)
    shares = [patience.look(length, t) for t, length in enumerate([0, 3, 5, 5, 2])]

    assert shares == pytest.approx([1.0, 0.5, 0.25, 0.30, 0.35])
    assert patience.look(99, 4.9) == shares[-1]


def test_patience_never_ends_nor_exceeds_one():
    patience = Patience(0.5, 1.0)

    assert [patience.look(t, float(t)) for t in range(40)][-1] == LEAST_PATIENCE
    assert [patience.look(0, 40.0 + t) for t in range(40)][-1] == 1.0


def test_factor_one_is_no_feedback():
    patience = Patience(1.0, 1.0)

    assert [patience.look(t, float(t)) for t in range(9)] == [1.0] * 9
