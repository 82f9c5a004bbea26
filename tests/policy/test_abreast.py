"""Caches of all layers and sizes at once: touch by touch what the plain objects do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.policy.abreast import RULES, hits, next_uses, static_hits
from moesim.policy.cache import RankedCache, make_cache
from moesim.policy.cache_rules import Belady
from moesim.policy.reuse import NONE, lru_hit_rates

EXPERTS = 6
logs = st.lists(
    st.tuples(st.integers(-1, EXPERTS - 1), st.integers(-1, EXPERTS - 1)), max_size=50
)


def plain(name, sequence, size, popularity=None):
    """Return whether each touch hits, by the object that has one layer and size."""
    if name == "belady_bypass":
        cache = RankedCache(size, Belady(sequence, bypass=True))
    else:
        cache = make_cache(name, size, future=sequence, popularity=popularity)
    return [cache.touch(key).hit for key in sequence]


@pytest.mark.parametrize("name", sorted(RULES))
@given(logs)
def test_they_hit_when_the_plain_cache_does(name, log):
    check(np.array(log, np.int64).reshape(-1, 2), name)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("seed", range(5))
def test_in_long_logs_too(name, seed):
    rng = np.random.default_rng(seed)
    check(rng.integers(-1, EXPERTS, (400, 2)), name)


def check(touches, name):
    """Compare hits touch by touch."""
    sizes = [1, 2, 3, 5, EXPERTS]

    found = hits(touches, EXPERTS, sizes, name)

    for layer, lane in enumerate(touches.T):
        there = lane != NONE
        assert not found[~there, layer].any()
        for place, size in enumerate(sizes):
            wanted = plain(name, lane[there].tolist(), size)
            assert found[there, layer, place].tolist() == wanted


@given(logs, st.lists(st.integers(0, 3), min_size=EXPERTS, max_size=EXPERTS))
def test_static_ones_too(log, popularity):
    touches = np.array(log, np.int64).reshape(-1, 2)
    found = static_hits(touches, np.array([popularity] * 2, float), [1, 3])
    known = dict(enumerate(popularity))

    for layer, lane in enumerate(touches.T):
        there = lane != NONE
        assert not found[~there, layer].any()
        for place, size in enumerate([1, 3]):
            wanted = plain("static", lane[there].tolist(), size, known)
            assert found[there, layer, place].tolist() == wanted


@given(logs)
def test_lru_agrees_with_stack_distances(log):
    touches = np.array(log, np.int64).reshape(-1, 2)
    sizes = [1, 2, 4]
    found = hits(touches, EXPERTS, sizes, "lru").sum(axis=0)
    rates = lru_hit_rates(touches, EXPERTS, sizes)
    total = (touches != NONE).sum(axis=0)[:, None]

    np.testing.assert_allclose(found, np.nan_to_num(rates) * total)


@given(logs)
def test_no_cache_beats_its_bound(log):
    touches = np.array(log, np.int64).reshape(-1, 2)
    sizes = [1, 2, 4]
    total = {name: hits(touches, EXPERTS, sizes, name).sum(axis=0) for name in RULES}

    for name in ("lru", "lfu", "fifo", "lifo"):
        assert (total[name] <= total["belady"]).all()
    assert (total["belady"] <= total["belady_bypass"]).all()


def test_the_next_use_is_the_next_or_never():
    touches = np.array([[0, 1], [1, 1], [0, NONE], [1, 0]])

    assert next_uses(touches, 2).tolist() == [[2, 1], [3, 4], [4, 4], [4, 4]]


@pytest.mark.parametrize("name", sorted(RULES))
def test_layers_do_not_touch_each_other(name):
    """A layer's hits are those it has alone."""
    rng = np.random.default_rng(3)
    touches = rng.integers(-1, EXPERTS, (200, 4))
    both = hits(touches, EXPERTS, [2, 3], name)
    alone = hits(touches[:, 2:3], EXPERTS, [2, 3], name)

    assert (both[:, 2:3] == alone).all()
