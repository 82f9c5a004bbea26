"""Inclusion probabilities are those of the draws themselves, by enumeration."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.routing.inclusion import group_inclusion, group_sets, inclusion
from moesim.routing.source import TokenKeys, count
from moesim.routing.synthetic import Lognormal


def enumerated(weights, k):
    """Return how probable each item is among the first k of a Plackett-Luce order."""
    found = np.zeros(len(weights))
    for order in permutations(range(len(weights)), k):
        left, chance = weights.sum(), 1.0
        for item in order:
            chance *= weights[item] / left
            left -= weights[item]
        found[list(order)] += chance
    return found


def enumerated_in_groups(weights, k, groups, top_groups):
    size = len(weights) // groups
    mass = weights.reshape(groups, size).sum(axis=1)
    found = np.zeros(len(weights))
    for order in permutations(range(groups), top_groups):
        left, chance = mass.sum(), 1.0
        for group in order:
            chance *= mass[group] / left
            left -= mass[group]
        inside = np.concatenate([np.arange(g * size, (g + 1) * size) for g in order])
        found[inside] += chance * enumerated(weights[inside], k)
    return found


def weights_of(seed, rows, experts, sigma):
    rng = np.random.default_rng(seed)
    return np.exp(sigma * rng.standard_normal((rows, experts)))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    experts=st.integers(1, 7),
    k=st.integers(1, 4),
    sigma=st.sampled_from([0.0, 0.3, 1.0, 3.0, 8.0]),
)
def test_probabilities_equal_an_enumeration(seed, experts, k, sigma):
    """To 1e-7, however uneven the weights; rows sum to k exactly."""
    weights, k = weights_of(seed, 2, experts, sigma), min(k, experts)

    found = inclusion(weights, k)

    expected = np.stack([enumerated(row, k) for row in weights])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.sum(axis=1), k)


@pytest.mark.parametrize(
    ("experts", "k", "groups", "top_groups"),
    [
        (6, 2, 3, 2),
        (8, 3, 4, 2),
        (8, 4, 4, 2),
        (6, 3, 2, 2),
        (8, 1, 4, 1),
        (8, 3, 2, 1),
    ],
)
@pytest.mark.parametrize("sigma", [0.0, 1.0, 3.0])
def test_groups_are_drawn_before_their_experts(experts, k, groups, top_groups, sigma):
    """The mean over all sets of groups, each by its own probability."""
    weights = weights_of(experts + k, 3, experts, sigma)

    found = inclusion(weights, k, groups, top_groups)

    expected = [enumerated_in_groups(row, k, groups, top_groups) for row in weights]
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-7)


def test_sets_of_groups_share_all_probability():
    """Seventy sets of four of eight groups, and each group's part of them."""
    mass = weights_of(1, 5, 8, 1.0)

    sets = group_sets(mass, 4)

    assert len(sets) == 70
    np.testing.assert_allclose(sum(sets.values()), 1.0)
    own = sum(chance for chosen, chance in sets.items() if 3 in chosen)
    np.testing.assert_allclose(group_inclusion(mass, 8, 4)[:, 3], own)
    np.testing.assert_allclose(group_inclusion(mass, 8, 4).sum(axis=1), 4)


def test_equal_weights_give_equal_probabilities():
    """k of E, in groups or not."""
    ones = np.ones((2, 64))

    np.testing.assert_allclose(inclusion(ones, 6), 6 / 64)
    np.testing.assert_allclose(inclusion(ones, 6, 8, 3), 6 / 64)


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (8, 4)])
def test_routed_tokens_use_experts_as_often(groups, top_groups):
    """The tokens of a source are within noise of its own probabilities."""
    source = Lognormal(2, 64, 6, groups, top_groups, seed=5)
    tokens = np.arange(60_000)
    ids = source.route(TokenKeys(tokens, 0 * tokens, 0 * tokens))

    weights = source.weights
    chance = inclusion(weights, 6, groups, top_groups)

    spread = np.sqrt(chance * (1 - chance) / len(tokens))
    z = (count(ids, 64) / len(tokens) - chance) / spread
    assert np.abs(z).max() < 4.2
    assert 0.7 < z.std() < 1.3
