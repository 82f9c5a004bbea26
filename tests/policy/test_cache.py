"""Expert caches: textbook cases, and laws that no sequence of touches may break."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.policy.cache import (
    CACHES,
    RULES,
    RankedCache,
    count_hits,
    make_cache,
)
from moesim.policy.cache_rules import Belady
from moesim.policy.reuse import (
    NEVER,
    NONE,
    lru_hit_rates,
    stack_distances,
    touches_of_batches,
    touches_of_tokens,
)
from moesim.streams import stream

TEXTBOOK = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]
ANOMALY = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
LATER = [(1, 9), (0, 5), (1, 2), (0, 7)]
EXPERTS = [(0, 5), (1, 9), (0, 5), (1, 2), (0, 7), *LATER, (1, 9)]
sequences = st.lists(st.integers(0, 7), max_size=60)
capacities = st.integers(0, 8)


def hits(name, sequence, capacity, **options):
    """Return the hits of a cache that may know all it needs."""
    if name == "belady":
        options["future"] = sequence
    if name == "static":
        options["popularity"] = {
            key: sequence.count(key) for key in sorted(set(sequence))
        }
    return count_hits(make_cache(name, capacity, **options), sequence)


def best(sequence, capacity):
    """Return the hits of the bound for caches that may refuse a key."""
    rule = Belady(sequence, bypass=True)
    return count_hits(RankedCache(capacity, rule), sequence)


@pytest.mark.parametrize(("name", "faults"), [("lru", 12), ("fifo", 15), ("belady", 9)])
def test_the_textbook_string(name, faults):
    """Oracle D01."""
    assert len(TEXTBOOK) - hits(name, TEXTBOOK, 3) == faults


@pytest.mark.parametrize(
    ("capacity", "fifo", "lru", "belady"), [(3, 9, 10, 7), (4, 10, 8, 6), (5, 5, 5, 5)]
)
def test_belady_s_anomaly(capacity, fifo, lru, belady):
    """Oracle D02: with a slot more FIFO misses more; the others cannot."""
    found = [
        len(ANOMALY) - hits(n, ANOMALY, capacity) for n in ("fifo", "lru", "belady")
    ]

    assert found == [fifo, lru, belady]


def test_cyclic_use_of_more_than_fits_defeats_lru():
    """Oracle D03: 8 keys in turn over 6 slots."""
    cycle = list(range(8)) * 50

    assert hits("lru", cycle, 6) == 0
    assert hits("fifo", cycle, 6) == 0
    assert hits("belady", cycle, 6) == 280
    assert hits("lifo", cycle, 6) == 49 * 5  # the first five stay
    assert hits("static", cycle, 6) == 50 * 6


@pytest.mark.parametrize(("name", "found"), [("lru", 1), ("fifo", 4), ("belady", 5)])
def test_a_trace_of_experts(name, found):
    """Oracle D04: LRU is not always better."""
    assert hits(name, EXPERTS, 3) == found


def zipf(count=8):
    share = 1 / np.arange(1, count + 1)
    return share / share.sum()


def test_independent_zipf_touches():
    """Oracle D05: LRU 0.535615 exactly (King 1971), the top three 0.674551."""
    share, slots = zipf(), 3
    exact = 0.0
    for order in itertools.permutations(share, slots):
        left = 1 - np.concatenate([[0.0], np.cumsum(order)[:-1]])
        exact += np.prod(order / left) * sum(order)
    assert exact == pytest.approx(0.535615335901961, rel=1e-12)

    rng = stream(5, "touches")
    touches = rng.choice(8, size=(50_000, 20), p=share)
    rates = lru_hit_rates(touches, 8, [slots], warmup=1000)[:, 0]
    error = rates.std(ddof=1) / np.sqrt(len(rates))
    assert error < 0.0035 * exact
    assert abs(rates.mean() - exact) <= 4 * error

    popularity = dict(enumerate(share))
    kept = make_cache("static", slots, popularity=popularity).resident
    assert share[kept].sum() == pytest.approx(0.6745510293473501, rel=1e-12)


def test_ties_of_lfu_go_to_the_least_recently_used():
    """a and b were both used twice, a longer ago."""
    cache = make_cache("lfu", 2)
    for key in "abab":
        cache.touch(key)

    assert cache.touch("c").evicted == "a"
    assert cache.touch("c").hit  # twice now, as b, and more recently
    assert cache.touch("d").evicted == "b"


def test_lfu_counts_also_what_was_away():
    """a was used twice before it left, so it outlives d."""
    cache = make_cache("lfu", 1)
    for key in "aab":
        cache.touch(key)
    assert cache.touch("a").evicted == "b"
    cache = make_cache("lfu", 2)
    outcomes = [cache.touch(key).evicted for key in "aabbca"]
    assert outcomes[-2:] == ["a", "c"]


def test_keys_that_are_never_used_again_leave_by_their_order():
    """Belady ranks them alike."""
    cache = make_cache("belady", 2, future="bacd")
    evicted = [cache.touch(key).evicted for key in "bacd"]

    assert evicted == [None, None, "a", "b"]


def test_static_takes_the_most_popular_and_the_smaller_of_equals():
    cache = make_cache("static", 3, popularity={"d": 1, "c": 2, "b": 1, "a": 0.5})

    assert cache.resident == ["b", "c", "d"]
    assert [cache.touch(key).hit for key in "abcd"] == [False, True, True, True]
    assert not cache.touch("a").kept
    pinned = make_cache("static", 2, popularity={"d": 1, "c": 2}, pinned="a")
    assert pinned.resident == ["a", "c"]


def test_a_cache_without_slots_keeps_nothing():
    for name in RULES:
        cache = make_cache(name, 0)
        assert not cache.touch(1).kept
        assert cache.resident == []


def test_the_future_must_come_true():
    cache = make_cache("belady", 1, future=[1, 2])
    cache.touch(1)

    with pytest.raises(ValueError, match="touch 1 is 3"):
        cache.touch(3)
    cache = make_cache("belady", 1, future=[])
    with pytest.raises(ValueError, match="touch 0"):
        cache.touch(0)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("lruu", 3), {}, "did you mean 'lru'"),
        (("x?", 3), {}, "not one of lru, lfu, fifo, lifo, static, belady"),
        (("static", 3), {}, "static needs popularity"),
        (("belady", 3), {}, "belady needs future"),
        (("lru", -1), {}, "cannot hold -1"),
        (("lru", 1), {"pinned": "ab"}, "2 pinned experts do not fit into a cache of 1"),
    ],
)
def test_senseless_caches_are_refused(arguments, options, said):
    with pytest.raises(InputError, match=said):
        make_cache(*arguments, **options)


@given(sequences, capacities)
def test_nobody_beats_the_bound(sequence, capacity):
    """Belady's against all that admit every miss; with bypass against static too."""
    bound = hits("belady", sequence, capacity)

    for name in RULES:
        assert hits(name, sequence, capacity) <= bound
    assert bound <= best(sequence, capacity)
    # What a static cache was filled with had to be moved as well.
    filled = min(capacity, len(set(sequence)))
    assert hits("static", sequence, capacity) - filled <= best(sequence, capacity)


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 3))
def test_the_bound_is_the_best_that_any_choice_reaches(sequence, capacity):
    """By trying every eviction: with admission, and with the choice to refuse."""

    def tried(at, held, may_refuse):
        if at == len(sequence):
            return 0
        key = sequence[at]
        if key in held:
            return 1 + tried(at + 1, held, may_refuse)
        if len(held) < capacity:
            options = [held | {key}]
        else:
            options = [held - {victim} | {key} for victim in sorted(held)]
        options += [held] * may_refuse
        return max(tried(at + 1, option, may_refuse) for option in options)

    assert hits("belady", sequence, capacity) == tried(0, frozenset(), False)
    assert best(sequence, capacity) == tried(0, frozenset(), True)


@given(
    st.sampled_from(CACHES), sequences, st.integers(0, 5), st.sets(st.integers(0, 7))
)
def test_what_is_told_is_what_happens(name, sequence, room, pinned):
    """Capacity holds, the pinned stay, hits are hits, and evictions are told."""
    capacity = room + len(pinned)
    options = {"popularity": dict.fromkeys(range(8), 1.0), "future": sequence}
    cache = make_cache(name, capacity, pinned=pinned, **options)
    there = set(cache.resident)
    assert pinned <= there

    for key in sequence:
        touch = cache.touch(key)
        assert touch.hit == (key in there)
        assert touch.evicted is None or touch.evicted in there - pinned
        assert touch.kept == (key in cache.resident)
        there = (there - {touch.evicted}) | ({key} if touch.kept else set())
        assert cache.resident == sorted(there)
        assert len(there) <= capacity


@given(sequences, st.integers(1, 7))
def test_a_larger_lru_holds_all_that_a_smaller_one_does(sequence, capacity):
    """The stack property, which FIFO lacks."""
    small, large = make_cache("lru", capacity), make_cache("lru", capacity + 1)

    for key in sequence:
        small.touch(key)
        large.touch(key)
        assert set(small.resident) <= set(large.resident)


@given(st.sampled_from(["lru", "lfu", "fifo", "lifo"]), sequences, capacities)
def test_names_of_keys_do_not_matter_where_nothing_ties(name, sequence, capacity):
    renamed = [7 - key for key in sequence]

    assert hits(name, sequence, capacity) == hits(name, renamed, capacity)


@given(
    st.lists(st.tuples(*[st.integers(-1, 5)] * 3), min_size=1, max_size=40),
    st.integers(0, 7),
)
def test_distances_give_the_hits_of_the_plain_object(rows, capacity):
    """Layer by layer, with touches missing here and there."""
    touches = np.array(rows, np.int64)
    distances = stack_distances(touches, 6)
    rates = lru_hit_rates(touches, 6, [capacity])

    for layer in range(3):
        column = touches[:, layer]
        keys = column[column != NONE].tolist()
        cache = make_cache("lru", capacity)
        found = [cache.touch(key).hit for key in keys]
        mine = distances[column != NONE, layer]
        assert (mine <= capacity).tolist() == found
        assert (distances[column == NONE, layer] == 0).all()
        first = [keys.index(key) == at for at, key in enumerate(keys)]
        assert (mine == NEVER).tolist() == first
        if keys:
            assert rates[layer, 0] == sum(found) / len(keys)
        else:
            assert np.isnan(rates[layer, 0])


def test_touches_of_a_batch_are_its_different_experts():
    """Two tokens, two layers, then the odd one."""
    ids = np.array([[[3, 1], [0, 2]], [[1, 0], [2, 0]], [[2, 3], [1, 3]]], np.uint8)

    together = touches_of_batches(ids, 2, 4)
    assert together.T.tolist() == [[0, 1, 3, 2, 3], [0, 2, NONE, 1, 3]]
    alone = touches_of_tokens(ids)
    assert alone.T.tolist() == [[3, 1, 1, 0, 2, 3], [0, 2, 2, 0, 1, 3]]
    assert touches_of_batches(ids[:0], 2, 4).shape == (0, 2)


def test_uniform_touches_hit_in_proportion_to_capacity():
    """Independent uniform use gains nothing from any cache: c / N."""
    touches = stream(1, "uniform").integers(0, 32, (20_000, 4))

    rates = lru_hit_rates(touches, 32, [8, 16, 32], warmup=1000).mean(axis=0)
    assert rates == pytest.approx([0.25, 0.5, 1.0], abs=0.01)


@pytest.mark.skipif("MOESIM_DATA" not in os.environ, reason="no real log")
def test_a_real_log_repeats_itself_more_than_chance():
    """DeepSeek-V2-Lite: LRU of 40 % of the experts beats 40 %, checked by the object."""
    path = Path(os.environ["MOESIM_DATA"]) / "routing" / "deepseek-v2-lite_intent.npz"
    with np.load(path) as log:
        ids = log["expert_ids"][:600]
    touches = touches_of_tokens(ids)

    rates = lru_hit_rates(touches, 64, [26])[:, 0]
    assert rates.mean() > 0.45
    for layer in (0, 25):
        keys = touches[:, layer].tolist()
        assert rates[layer] == hits("lru", keys, 26) / len(keys)
        assert rates[layer] <= hits("belady", keys, 26) / len(keys)
