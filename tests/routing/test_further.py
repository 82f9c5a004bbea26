"""Next experts: those that a longer draw would have named."""

import numpy as np
import pytest

from moesim.routing.catalogue import SOURCES
from moesim.routing.further import further
from moesim.routing.source import TokenKeys

NAMES = ["uniform", "zipf", "lognormal", "by_class", "latent"]


def source_of(name, top_k=2, experts=16, **more):
    return SOURCES[name](layers=3, experts=experts, top_k=top_k, seed=5, **more)


def keys_of(count):
    number = np.arange(count)
    return TokenKeys(number // 7, number % 3, number % 7)


def cells_of(source, keys):
    token, layer = np.divmod(np.arange(len(keys) * 3), 3)
    return (token, layer), source.route(keys)[token, layer].T


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_they_are_new_and_allowed(name, groups):
    """Distinct, none that the token has, and of its groups; at most all there are."""
    source = source_of(name, groups=groups[0], top_groups=groups[1])
    keys = keys_of(200)
    where, has = cells_of(source, keys)

    found = further(source, keys, where, has, 99)

    reachable = 16 * groups[1] // groups[0]
    assert found.shape == (reachable - 2, 600)
    every = np.sort(np.concatenate([has, found]), axis=0)
    assert (np.diff(every.astype(int), axis=0) > 0).all()
    size = 16 // groups[0]
    used = [len(set((column // size).tolist())) for column in every.T]
    assert set(used) == {groups[1]}


@pytest.mark.parametrize("name", ["zipf", "by_class"])
def test_the_next_one_is_drawn_as_the_next_slot_would_be(name):
    """Third choices of top 3, and next ones of top 2, are named as often."""
    keys = keys_of(40_000)
    longer = source_of(name, top_k=3).route(keys)[:, 0, 2]
    source = source_of(name)
    zero = np.zeros(len(keys), int)
    has = source.route(keys)[:, 0].T

    found = further(source, keys, (np.arange(len(keys)), zero), has, 1)[0]

    one, two = (np.bincount(ids, minlength=16) for ids in (longer, found))
    # Both are multinomial: a difference of 5 standard errors has a chance of 1e-5.
    error = np.sqrt(np.maximum(one + two, 1))
    assert (np.abs(one - two) < 5 * error).all()


def test_they_do_not_depend_on_the_batch():
    """A cell's next experts are its own, whoever is asked with it."""
    source, keys = source_of("zipf"), keys_of(100)
    (token, layer), has = cells_of(source, keys)
    some = np.arange(0, 300, 7)

    whole = further(source, keys, (token, layer), has, 4)
    part = further(source, keys, (token[some], layer[some]), has[:, some], 4)

    np.testing.assert_array_equal(part, whole[:, some])
