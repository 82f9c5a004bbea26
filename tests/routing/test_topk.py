"""Top-k draws are Plackett and Luce's law, exactly."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from moesim.routing import topk
from moesim.routing.counter import root, token_keys
from moesim.routing.topk import Cells, PlackettLuce, distinct

DRAWS = 120_000
WEIGHTS = np.array([[1.0, 2, 3, 4, 10]])


def cells_of(count, row=0):
    start = token_keys(root(5, "test"), np.zeros(count, int), np.arange(count))
    return Cells(start, np.full(count, row, np.uint64))


def plackett_luce(weights, k):
    """Return the probability of each ordered choice of k, by enumeration."""
    law = {}
    for order in permutations(range(len(weights)), k):
        left, chance = weights.sum(), 1.0
        for expert in order:
            chance *= weights[expert] / left
            left -= weights[expert]
        law[order] = chance
    return law


def p_value(ids, law):
    """Return the chi-square probability of ``(k, C)`` ids under a law of orders."""
    names, shares = list(law), np.array(list(law.values()))
    place = {name: number for number, name in enumerate(names)}
    seen = np.zeros(len(names))
    for order, times in zip(*np.unique(ids.T, axis=0, return_counts=True), strict=True):
        seen[place[tuple(order.tolist())]] = times
    return stats.chisquare(seen, shares * ids.shape[1]).pvalue


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_ordered_choices_follow_the_enumerated_law(k):
    """Every order of k out of five experts is as frequent as it should be."""
    ids = distinct(PlackettLuce.of(WEIGHTS), cells_of(DRAWS), k)

    assert p_value(ids, plackett_luce(WEIGHTS[0], k)) > 1e-3


@pytest.mark.parametrize("attempts", [1, 2])
def test_the_race_that_settles_unlucky_cells_has_the_same_law(monkeypatch, attempts):
    """Fewer draws before the race change nothing, not even one."""
    monkeypatch.setattr(topk, "ATTEMPTS", attempts)
    ids = distinct(PlackettLuce.of(WEIGHTS), cells_of(DRAWS), 3)

    assert p_value(ids, plackett_luce(WEIGHTS[0], 3)) > 1e-3


def test_a_forced_expert_comes_first_and_the_rest_is_drawn_among_the_others():
    """Given expert 4, slots 1 and 2 are Plackett-Luce on experts 0 to 3."""
    forced = np.where(np.arange(DRAWS) % 2, 4, -1)
    ids = distinct(PlackettLuce.of(WEIGHTS), cells_of(DRAWS), 3, forced[None])
    rest = plackett_luce(WEIGHTS[0, :4], 2)

    assert p_value(ids[:, 1::2], {(4, *order): p for order, p in rest.items()}) > 1e-3
    assert p_value(ids[:, ::2], plackett_luce(WEIGHTS[0], 3)) > 1e-3


def test_forced_experts_may_be_fewer_in_some_cells_than_in_others():
    """Two, one or none given: the free slots are Plackett-Luce on what is left."""
    forced = np.array([[1, 1, -1], [4, -1, -1]])
    ids = distinct(
        PlackettLuce.of(WEIGHTS), cells_of(DRAWS), 3, np.tile(forced, DRAWS // 3)
    )
    left = np.array([1.0, 0, 3, 4, 10])
    one = {(1, *order): p for order, p in plackett_luce(left, 2).items() if p > 0}

    assert p_value(ids[:, ::3], {(1, 4, e): left[e] / 8 for e in (0, 2, 3)}) > 1e-3
    assert p_value(ids[:, 1::3], one) > 1e-3
    assert p_value(ids[:, 2::3], plackett_luce(WEIGHTS[0], 3)) > 1e-3


def test_each_cell_is_drawn_by_its_own_row():
    """Two rows of opposite weights, drawn in one call."""
    rows = np.array([[1000.0, 1, 1], [1, 1, 1000.0]])
    cells = Cells(cells_of(2000).start, np.arange(2000, dtype=np.uint64) % np.uint64(2))
    first = distinct(PlackettLuce.of(rows), cells, 1)[0]

    assert (first[::2] == 0).mean() > 0.98
    assert (first[1::2] == 2).mean() > 0.98


@pytest.mark.parametrize("experts", [1, 2, 64, 300])
@pytest.mark.parametrize("exponent", [0.0, 10.0])
def test_all_experts_can_be_chosen_however_unlike_their_weights(experts, exponent):
    """k = E ends, and gives each expert once."""
    weights = np.arange(1.0, experts + 1)[None] ** -exponent
    ids = distinct(PlackettLuce.of(weights), cells_of(50), experts)

    assert (np.sort(ids, axis=0) == np.arange(experts)[:, None]).all()


def test_the_most_popular_of_very_unlike_experts_come_in_order():
    """Weights falling by 10**6 each leave hardly any choice."""
    weights = 10.0 ** -(6 * np.arange(5))[None]
    ids = distinct(PlackettLuce.of(weights), cells_of(100), 4)

    assert (ids == np.arange(4)[:, None]).all()
