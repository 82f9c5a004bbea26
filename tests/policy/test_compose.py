"""The roles that place requests and choose stages."""

import numpy as np
import pytest

from moesim.policy.compose import (
    ArrivalOrder,
    LeastKv,
    LeastTokens,
    RoundRobin,
    SmallestKeys,
)
from moesim.policy.view import BatchView, RankView, View, WaitingView


def ranks(tokens, blocks):
    return RankView(np.array(tokens), np.array(blocks))


def test_round_robin_deals_requests_in_turn():
    view = ranks([9, 0, 0], [0, 0, 0])

    assert [RoundRobin().rank(q, view) for q in range(5)] == [0, 1, 2, 0, 1]


def test_least_tokens_takes_the_first_least_loaded():
    assert LeastTokens().rank(0, ranks([5, 2, 2], [0, 9, 8])) == 1


def test_least_kv_takes_the_first_emptiest_pool():
    assert LeastKv().rank(0, ranks([0, 9, 8], [5, 2, 2])) == 1


def test_arrival_order_is_the_order_of_waiting():
    waiting = WaitingView(*(np.array([4, 2, 9]) for _ in range(4)))

    assert ArrivalOrder().sequence(waiting, View(0.0, np.zeros(1))).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("width", "rows"), [(0, [2, 1, 0]), (1, [2]), (2, [2, 1]), (9, [2, 1, 0])]
)
def test_the_smallest_keys_run_and_equal_ones_by_age(width, rows):
    """Rows 0 and 1 tie; row 1 was admitted first."""
    nothing = np.zeros((1, 1))
    ready = [
        BatchView(number, 0, "experts", 1, 0.0, 0.0, nothing, nothing)
        for number in (8, 3, 5)
    ]

    found = SmallestKeys(width).stage(ready, np.array([2.0, 2.0, 1.0]))

    assert list(found) == rows
