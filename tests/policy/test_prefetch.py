"""What is believed to be needed, and the caches a GPU starts with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.policy.cache import RULES, RankedCache, make_cache
from moesim.policy.cache_rules import Belady
from moesim.policy.prefetch import Forecast, believed, lacking, layers_ahead, likeliest
from moesim.policy.stock import capacities, stock
from moesim.routing.source import TokenKeys
from moesim.routing.synthetic import Zipf
from moesim.spec.placement import contiguous
from moesim.spec.residency import PrefetchSpec, ResidencySpec

sequences = st.lists(st.integers(0, 7), max_size=60)


@given(st.integers(1, 9), st.integers(0, 12))
def test_every_layer_is_asked_for_once(layers, lookahead):
    asked = [
        ahead
        for layer in range(layers)
        for ahead in layers_ahead(layer, lookahead, layers)
    ]

    assert asked == list(range(layers))


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_next_layer_is_right_as_often_as_it_says(rate):
    """Over 4000 draws of one needed slot of 16; a wrong one is never the right one."""
    spec = PrefetchSpec("next_layer", rate)
    drawn = [believed(spec, [5], 16, (1, number)) for number in range(4000)]
    right = np.mean([slots == [5] for slots in drawn])

    assert right == pytest.approx(rate, abs=4 * np.sqrt(0.25 / 4000))
    assert drawn == [believed(spec, [5], 16, (1, number)) for number in range(4000)]
    assert believed(PrefetchSpec("path"), [3, 1], 16, (1, 0)) == [1, 3]
    wrong = [slots[0] for slots in drawn if slots != [5]]
    assert rate == 1.0 or set(wrong) == set(range(16)) - {5}


def test_experts_to_lack_are_those_that_are_absent():
    mean = np.array([[[np.inf, 0.0], [1.0, np.nan]]])
    there = np.array([[[True, False], [False, False]]])

    found = lacking(mean, there)

    assert found[0, 0] == pytest.approx(1 - np.exp(-1))
    assert np.isnan(found[0, 1])


def test_a_forecast_learns_what_each_class_needs():
    """Two classes share one law here; after learning the popular expert is likeliest."""
    source = Zipf(2, 8, 1, seed=3, exponent=2.0)
    forecast, placement = Forecast(source, 2), contiguous(2, 8, 1, 0)
    count = 400
    keys = TokenKeys(np.arange(count), np.arange(count) % 2, np.zeros(count, np.int64))
    for number in range(4):
        ids = forecast.watch.route(keys)
        before = forecast.depart(number, keys, placement)
        forecast.land(number)
    after = forecast.depart(5, keys, placement)

    popular = np.bincount(ids[:, 0, 0], minlength=8).argmax()
    assert after[0, :, 0].argmax() == popular
    assert before[0, :, 0].sum() == pytest.approx(count)
    assert likeliest(after[0, :, 0] / count * 1.5)[0] in range(8)


def spec_of(copies, layers, slots, **options):
    given = {
        "pinned": np.zeros((layers, slots, 1), np.int64),
        "popularity": np.zeros((0, 0)),
    }
    return ResidencySpec(copies, **(given | options))


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 8))
def test_places_are_dealt_to_layers_evenly(copies, layers, slots):
    sizes = capacities(copies, layers, slots)

    assert sum(sizes) == min(copies, layers * slots)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("scope", ["layer", "gpu"])
def test_caches_start_full_with_the_most_popular(scope):
    popularity = np.array([[1.0, 9, 5, 7], [4.0, 3, 8, 2]])
    spec = spec_of(4, 2, 4, scope=scope, popularity=popularity)
    caches = stock(spec, contiguous(2, 4, 1, 0), 0)

    found = sorted({key for cache in caches for key in cache.resident})
    if scope == "layer":
        assert found == [(0, 1), (0, 3), (1, 0), (1, 2)]
        assert caches[0].victim() == (0, 3)  # the less popular of the two
    else:
        assert found == [(0, 1), (0, 2), (0, 3), (1, 2)]
        assert caches[0] is caches[1]


@pytest.mark.parametrize("cache", [*RULES])
def test_the_least_popular_of_those_that_are_there_leaves_first(cache):
    """Under every rule: LIFO's last to come is the first to leave."""
    popularity = np.array([[1.0, 9, 5, 7]])
    spec = spec_of(3, 1, 4, cache=cache, popularity=popularity)

    (found,) = stock(spec, contiguous(1, 4, 1, 0), 0)

    assert sorted(found.resident) == [(0, 1), (0, 2), (0, 3)]
    assert found.victim() == (0, 2)


def test_static_leaves_one_place_for_those_that_pass():
    popularity = np.array([[1.0, 9, 5, 7]])
    placement = contiguous(1, 4, 1, 0)
    options = {"cache": "static", "popularity": popularity}

    (loads,) = stock(spec_of(3, 1, 4, **options), placement, 0)
    assert loads.pinned == {(0, 1), (0, 3)}
    (computes,) = stock(spec_of(3, 1, 4, on_miss="cpu", **options), placement, 0)
    assert computes.pinned == {(0, 1), (0, 2), (0, 3)}
    (every,) = stock(spec_of(4, 1, 4, **options), placement, 0)
    assert len(every.pinned) == 4


@given(st.sampled_from([*RULES]), sequences, st.integers(1, 8))
def test_the_steps_one_by_one_do_what_a_touch_does(name, sequence, capacity):
    whole, steps = make_cache(name, capacity), make_cache(name, capacity)

    for key in sequence:
        touch = whole.touch(key)
        assert steps.use(key) == touch.hit
        if not touch.hit:
            victim = None if steps.free else steps.victim()
            assert victim == touch.evicted
            if victim is not None:
                steps.evict(victim)
            steps.admit(key)
        assert steps.resident == whole.resident


@given(
    st.sampled_from([*RULES]), sequences, st.integers(1, 8), st.sets(st.integers(0, 7))
)
def test_what_is_kept_is_no_victim_and_the_next_in_line_is(name, sequence, size, kept):
    """Against the smallest rank of all that are not kept, by looking at each."""
    cache = make_cache(name, size)
    for key in sequence:
        cache.touch(key)

    others = {k: r for k, r in cache._ranks.items() if k not in kept}
    least = min(((rank, key) for key, rank in others.items()), default=(None, None))
    assert cache.victim(kept) == least[1]
    assert cache.victim(kept) == least[1]
    assert cache.victim() in (None, *cache.resident)


def test_a_heap_of_outdated_ranks_does_not_grow():
    cache = make_cache("lru", 4)
    for number in range(10_000):
        cache.touch(number % 4)

    assert len(cache._heap) < 50


def test_who_comes_in_unused_ranks_as_never_used():
    cache = make_cache("lfu", 2)
    for key in "aab":
        cache.touch(key)
    assert not cache.outranks("c", "b")
    cache.evict("b")
    cache.admit("c")
    assert cache.victim() == "c"
    assert make_cache("lru", 1).outranks is not None
    with pytest.raises(ValueError, match="no room"):
        cache.admit("d")
    with pytest.raises(ValueError, match="without a touch"):
        RankedCache(1, Belady("ab")).admit("a")
