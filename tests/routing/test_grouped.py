"""Group-limited routing: the constraint exactly, the rule exactly, the law exactly."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from moesim.routing.catalogue import SOURCES
from moesim.routing.counter import root, token_keys
from moesim.routing.grouped import GroupLimited, group_limited_topk
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Cells, distinct

EXTRA = {"rush_hour": {"hot": ((0, 3), (1, 60)), "probability": 1.0}}


def brute_force(scores, groups, top_groups, k):
    """Return DeepSeek-V3's choice for one token, in plain Python."""
    size = len(scores) // groups
    value = {
        g: sum(sorted(scores[g * size : (g + 1) * size])[-2:]) for g in range(groups)
    }
    best = sorted(value, key=lambda g: (-value[g], g))[:top_groups]
    inside = [e for e in range(len(scores)) if e // size in best]
    return sorted(inside, key=lambda e: (-scores[e], e))[:k]


@settings(max_examples=200)
@given(st.data())
def test_top_k_of_the_top_groups_is_the_published_rule(data):
    """Small whole scores, so that ties are frequent, against plain Python."""
    groups, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    top_groups = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(1, top_groups * size))
    whole = st.integers(-4, 4).map(float)
    scores = data.draw(hnp.arrays(float, (3, groups * size), elements=whole))
    chosen = group_limited_topk(scores, groups, top_groups, k)

    assert chosen.tolist() == [
        brute_force(token, groups, top_groups, k) for token in scores.tolist()
    ]


def test_a_group_counts_by_its_two_best_not_by_its_best():
    """0.9 alone loses against 0.6 and 0.5."""
    scores = np.array([0.9, 0.0, 0.6, 0.5])

    assert group_limited_topk(scores, 2, 1, 2).tolist() == [2, 3]


def enumerated(weights, groups, top_groups, k):
    """Return the probability of each ordered choice: groups first, then experts."""
    size = len(weights) // groups
    mass, law = weights.reshape(groups, size).sum(axis=1), {}
    for chosen in permutations(range(groups), top_groups):
        of_groups = sequence_chance(mass, chosen)
        inside = [g * size + i for g in chosen for i in range(size)]
        only = np.zeros_like(weights)
        only[inside] = weights[inside]
        for order in permutations(inside, k):
            law[order] = law.get(order, 0) + of_groups * sequence_chance(only, order)
    return law


def sequence_chance(weights, order):
    left, chance = weights.sum(), 1.0
    for place in order:
        chance *= weights[place] / left
        left -= weights[place]
    return chance


@pytest.mark.parametrize(("top_groups", "k"), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 2)])
def test_ordered_choices_follow_the_enumerated_law(top_groups, k):
    """Six experts in three groups: every order is as frequent as it should be."""
    weights, draws = np.array([5.0, 1, 2, 2, 1, 3]), 100_000
    start = token_keys(root(1, "test"), np.zeros(draws, int), np.arange(draws))
    law = GroupLimited.of(weights[None], 3, top_groups)
    ids = distinct(law, Cells(start, np.zeros(draws, np.uint64)), k)
    expected = enumerated(weights, 3, top_groups, k)
    orders, times = np.unique(ids.T, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, orders.tolist()), times.tolist(), strict=True))

    assert seen.keys() <= expected.keys()
    found = [seen.get(order, 0) for order in expected]
    shares = np.array(list(expected.values()))
    assert stats.chisquare(found, shares * draws).pvalue > 1e-3


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"log"}))
def test_no_token_uses_more_groups_than_the_model_allows(name):
    """Distinct experts of at most three of eight groups, and of three in most cells."""
    source = SOURCES[name](4, 64, 6, groups=8, top_groups=3, **EXTRA.get(name, {}))
    token = np.arange(3000)
    ids = source.route(TokenKeys(token // 50, token % 3, token % 50))
    groups = np.sort(ids // 8, axis=2)
    used = 1 + (np.diff(groups, axis=2) > 0).sum(axis=2)

    assert used.max() == 3
    assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()


def test_a_rush_brings_its_group_with_it():
    """All tokens use the hot expert of the layer, and still three groups only."""
    source = SOURCES["rush_hour"](
        4, 64, 6, groups=8, top_groups=3, **EXTRA["rush_hour"]
    )
    token = np.arange(2000)
    ids = source.route(TokenKeys(token, token, token))

    assert (ids[:, 0] == 3).any(axis=1).all()
    assert (ids[:, 1] == 60).any(axis=1).all()
    assert (ids[:, 2] == 3).any(axis=1).mean() < 0.2


def test_all_experts_of_the_allowed_groups_can_be_chosen():
    """k = m E / M ends, however unlike the weights."""
    source = SOURCES["zipf"](2, 64, 16, groups=8, top_groups=2, exponent=10.0)
    token = np.arange(40)
    ids = source.route(TokenKeys(token, token, token))

    assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()
