"""The event engine keeps its rules, whatever meets whatever at an instant."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.lockstep.stage import exchange
from moesim.policy.bundle import Policy
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.order import Oldest
from reference import Reference
from worlds import batch_of, play_batches, random_cost, tiny_system


def draw_batches(rng, system, count, spread):
    admitted = np.sort(rng.integers(0, spread + 1, count)).tolist()
    costs = [random_cost(rng, system) for _ in range(count)]
    latency = costs[0].latency
    for cost in costs:
        cost.latency[:] = latency
    return [
        batch_of(c, n, a) for n, (c, a) in enumerate(zip(costs, admitted, strict=True))
    ]


worlds = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2)]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 40),
)


def build(world):
    seed, (gpus, nodes), layers, count, spread = world
    system = tiny_system(layers, 8, gpus, nodes, experts="per_expert")
    return system, draw_batches(np.random.default_rng(seed), system, count, spread)


@settings(max_examples=300, deadline=None)
@given(worlds)
def test_fifo_agrees_with_the_plain_account(world):
    """Every micro-batch ends at the same tick, and every expert's job waits as long."""
    seed, (gpus, nodes), layers, count, spread = world
    system = tiny_system(layers, 8, gpus, nodes, experts="per_expert")
    batches = draw_batches(np.random.default_rng(seed), system, count, spread)
    plain = Reference(gpus)

    done, recorder = play_batches(system, batches)

    assert done == plain.play(batches)
    assert int(recorder.waits.total.sum()) == sum(plain.waits)


@settings(max_examples=300, deadline=None)
@given(worlds, st.integers(1, 30))
def test_priorities_and_budget_agree_with_the_plain_account(world, budget):
    """Keys, then the wait budget, then age: as the plain account has it."""
    seed, (gpus, nodes), layers, count, spread = world
    system = tiny_system(layers, 8, gpus, nodes, experts="per_expert")
    batches = draw_batches(np.random.default_rng(seed), system, count, spread)
    keys = np.random.default_rng(seed).integers(0, 3, (count, 2 * layers + 1))
    plain = Reference(gpus, budget, lambda b, segment: float(keys[b.number, segment]))

    done, _ = play_batches(system, batches, Policy(order=Table(keys, budget * 1e-12)))

    assert done == plain.play(batches)


class Table:
    """An order whose keys are given."""

    def __init__(self, keys, wait_budget_s):
        self.keys, self.wait_budget_s = keys, wait_budget_s

    def key(self, batch, view):
        after = {"attention": 0, "experts": 1, "lm_head": 2}[batch.stage]
        return float(self.keys[batch.batch, 2 * batch.layer + after])


@settings(max_examples=100, deadline=None)
@given(worlds)
def test_no_budget_at_all_is_fifo(world):
    """With a wait budget of 0 every job is overdue at once, so age alone decides."""
    system, batches = build(world)

    fifo, _ = play_batches(system, batches)
    cross, _ = play_batches(
        system, batches, Policy(order=CrossLayer("oracle", 0.5, wait_budget_s=0.0))
    )

    assert cross == fifo


def alone(cost, start=0):
    """Return when a pass that meets no other ends: the closed form, tick by tick."""
    layers, gpus = cost.attention.shape
    ready, free = np.full(gpus, start), np.zeros((2, gpus), np.int64)
    for layer in range(layers):
        computing = (cost.attention[layer], cost.experts[layer].sum(axis=0))
        for phase, compute in enumerate(computing):
            ports = cost.tx[layer, phase], cost.rx[layer, phase], cost.latency
            ready, free = exchange(ready + compute, *ports, free)
    return int((ready + cost.tail).max())


@settings(max_examples=200, deadline=None)
@given(worlds)
def test_a_pass_alone_takes_the_closed_form(world):
    """Uncontended, the event engine equals the closed form to the tick."""
    system, batches = build(world)

    done, _ = play_batches(system, batches[:1])

    assert done == [alone(batches[0].cost, batches[0].admitted)]


@pytest.mark.parametrize("policy", ["fifo", "oldest", "per_layer", "cross_layer"])
@pytest.mark.parametrize("seed", range(10))
def test_an_order_changes_waiting_but_never_work(policy, seed):
    """Whatever the order, each GPU serves the same picoseconds, each expert as many."""
    system, batches = build((seed, (4, 2), 3, 4, 20))

    _, base = play_batches(system, batches)
    _, other = play_batches(system, batches, policy)

    assert (base.slot_service == other.slot_service).all()
    assert (base.parts[:3] == other.parts[:3]).all()
    assert (base.port_busy == other.port_busy).all()


def test_the_oldest_goes_first_everywhere():
    """A job of micro-batch 0 passes those of micro-batch 1 that wait."""
    system = tiny_system(1, 8, 1, experts="per_expert")
    rng = np.random.default_rng(1)
    costs = [random_cost(rng, system, empty=0.0) for _ in range(2)]
    costs[0].attention[:] = 5
    costs[1].attention[:] = 1
    batches = [batch_of(costs[1], 1, 0), batch_of(costs[0], 0, 0)]

    (young, old), _ = play_batches(system, batches, Policy(order=Oldest()))

    assert old < young
