"""Orders compute the keys they promise, from what they may know and nothing else."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.clock import PS_PER_S
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.order import (
    Fifo,
    Oldest,
    PerLayer,
    fill_unknown,
    stage_bottlenecks,
)
from moesim.policy.predict import guess_for
from moesim.policy.view import BatchView, View
from worlds import batch_of, random_cost, tiny_system

NAN = float("nan")
NOW = View(100.0, np.array([5.0, 1.0]))
ATTENTION = np.array([[1.0, 2.0], [4.0, 3.0], [0.5, 0.5]])
EXPERTS = np.array([[10.0, 30.0], [20.0, 5.0], [NAN, NAN]])


def view(layer, stage, experts=EXPERTS, number=7, oldest=0.0):
    return BatchView(number, layer, stage, 64, 3.0, oldest, ATTENTION, experts)


@pytest.mark.parametrize(
    ("layer", "stage", "path"),
    [
        (0, "attention", [2, 30, 4, 20, 0.5, 25]),
        (0, "experts", [30, 4, 20, 0.5, 25]),
        (1, "attention", [4, 20, 0.5, 25]),
        (2, "experts", [25]),
        (2, "lm_head", [0]),
    ],
)
def test_the_path_to_come_is_the_busiest_gpu_of_each_stage(layer, stage, path):
    """Attention and experts in turn; an unknown layer is the mean of the known."""
    assert stage_bottlenecks(view(layer, stage)).tolist() == path


def test_what_is_unknown_is_the_mean_of_the_known():
    assert fill_unknown(np.array([1.0, NAN, 5.0])).tolist() == [1.0, 3.0, 5.0]
    assert fill_unknown(np.array([NAN, NAN])).tolist() == [0.0, 0.0]
    assert fill_unknown(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_fifo_gives_everyone_the_same_key():
    keys = {Fifo().key(view(0, "attention", number=n, oldest=n), NOW) for n in range(3)}

    assert len(keys) == 1


def test_oldest_orders_by_admission():
    """The number of the micro-batch, at whatever stage and layer."""
    early, late = view(2, "experts", number=3), view(0, "attention", number=4)

    assert Oldest().key(early, NOW) < Oldest().key(late, NOW)


@pytest.mark.parametrize(
    ("layer", "stage", "key"),
    [(0, "attention", 2), (0, "experts", 30), (1, "experts", 20), (2, "lm_head", 0)],
)
def test_per_layer_is_the_bottleneck_of_this_stage(layer, stage, key):
    assert PerLayer().key(view(layer, stage), NOW) == key


@pytest.mark.parametrize(
    ("layer", "stage", "remaining"),
    [(0, "attention", 81.5), (0, "experts", 79.5), (1, "experts", 45.5)],
)
def test_cross_layer_is_all_that_remains(layer, stage, remaining):
    """Without ageing: shortest remaining bottleneck first."""
    assert CrossLayer(ageing=0.0).key(view(layer, stage), NOW) == remaining


def test_age_outweighs_work():
    """An ageing of 0.5 lets one second of age outweigh half a second of work."""
    order = CrossLayer(ageing=0.5)
    old, young = (view(0, "experts", oldest=oldest) for oldest in (2.0, 5.0))

    assert order.key(young, NOW) - order.key(old, NOW) == pytest.approx(1.5)


def test_no_key_depends_on_when_it_is_asked():
    """Keys of queued jobs are never computed anew, so the clock may not matter."""
    later = View(1000.0, np.array([0.0, 9.0]))
    for order in (Fifo(), Oldest(), PerLayer(), CrossLayer()):
        seen = view(0, "experts")

        assert order.key(seen, NOW) == order.key(seen, later)


def test_orders_have_the_parameters_they_promise():
    assert (PerLayer().knowledge, PerLayer().wait_budget_s) == ("present", inf)
    cross = CrossLayer()
    assert (cross.knowledge, cross.ageing, cross.wait_budget_s) == (
        "predicted",
        0.5,
        50e-3,
    )


SYSTEM = tiny_system(4, 8, 4)
ORDERS = {
    "per_layer": PerLayer,
    "cross_layer": CrossLayer,
}
stages = st.sampled_from(["attention", "experts"])


def two_futures(seed, layer, stage):
    """Return two costs that agree on all routing that has happened, and on no other."""
    rng = np.random.default_rng(seed)
    cost = random_cost(rng, SYSTEM, empty=0.0)
    other = random_cost(rng, SYSTEM, empty=0.0)
    gated = layer + (stage == "experts")
    other.attention[:] = cost.attention
    other.experts[:gated] = cost.experts[:gated]
    other.experts[gated:] += 100
    return cost, other


def key_of(order, cost, layer, stage, predicted=None):
    truth = cost.experts.sum(axis=1) / PS_PER_S
    guess = guess_for(order.knowledge, truth, predicted)
    batch = batch_of(cost, 3, 10**6, guess)
    return order.key(batch.view(layer, stage), View(1.0, np.zeros(4)))


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), layer=st.integers(0, 3), stage=stages)
def test_the_present_does_not_peek(name, seed, layer, stage):
    """Whatever routing is to come, the key is the same."""
    order = ORDERS[name]("present")
    cost, other = two_futures(seed, layer, stage)

    assert key_of(order, cost, layer, stage) == key_of(order, other, layer, stage)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), layer=st.integers(0, 3), stage=stages)
def test_a_prediction_does_not_peek_either(name, seed, layer, stage):
    """The key follows the prediction, not the truth to come."""
    order = ORDERS[name]("predicted")
    cost, other = two_futures(seed, layer, stage)
    predicted = np.full((4, 4), 2.0)

    key = key_of(order, cost, layer, stage, predicted)

    assert key == key_of(order, other, layer, stage, predicted)
    if name == "cross_layer" and layer + (stage == "experts") < 4:
        assert key < key_of(order, cost, layer, stage, predicted + 1.0)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), layer=st.integers(0, 2), stage=stages)
def test_an_oracle_sees_the_routing_to_come(seed, layer, stage):
    """More work to come is a larger key."""
    cost, other = two_futures(seed, layer, stage)
    order = CrossLayer("oracle")

    assert key_of(order, cost, layer, stage) < key_of(order, other, layer, stage)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), layer=st.integers(0, 3))
def test_the_present_sees_the_routing_that_has_happened(seed, layer):
    """At its experts, a batch's own routing in this layer counts."""
    cost, other = two_futures(seed, layer, "attention")

    for order in (PerLayer(), CrossLayer("present")):
        assert key_of(order, cost, layer, "experts") < key_of(
            order, other, layer, "experts"
        )
