"""Rules at the edges: where phases, policies and budgets meet."""

import numpy as np
import pytest

from moesim.engine.lockstep.engine import LockstepEngine
from moesim.errors import InputError
from moesim.policy.bundle import Policy
from moesim.policy.compose import SmallestKeys
from moesim.policy.order import Fifo
from worlds import TickCost, batch_of, play_batches, tiny_system

EMPTY = np.zeros((1, 2, 2, 2), np.int64)


def cost_of(attention, experts, tx=EMPTY, rx=EMPTY):
    """Return a cost of one layer on two GPUs, one expert each."""
    jobs = np.zeros((1, 4, 2), np.int64)
    jobs[0, 0] = experts
    rows = np.array([attention])
    return TickCost(rows, rows, jobs, tx, rx, np.zeros(2, np.int64), np.array([1, 1]))


@pytest.mark.parametrize("engine", ["event", "lockstep"])
def test_a_port_receives_one_phase_after_the_other(engine):
    """Combine's bytes queue behind dispatch's where those are still coming in."""
    tx, rx = EMPTY.copy(), EMPTY.copy()
    tx[0, :, 0], rx[0, :, 0] = [1, 0], [0, 20]
    batch = batch_of(cost_of([1, 1], [1, 1], tx, rx))
    engines = {"lockstep": LockstepEngine}
    options = (engines[engine],) if engine in engines else ()

    done, _ = play_batches(tiny_system(1, 8, 2), [batch], "fifo", *options)

    assert done == [42]


def test_a_subclass_of_fifo_may_have_keys():
    """The shortcut of plain first come, first served is for it alone."""

    class Mine(Fifo):
        def key(self, batch, view):
            return -1.0 if batch.batch == 2 else 0.0

    class Same:
        def key(self, batch, view):
            return -1.0 if batch.batch == 2 else 0.0

    costs = [cost_of([4, 0], [0, 0]), cost_of([4, 0], [0, 0]), cost_of([0, 4], [4, 0])]
    batches = [batch_of(cost, number) for number, cost in enumerate(costs)]
    system = tiny_system(1, 8, 2)

    mine, _ = play_batches(system, batches, Policy(order=Mine()))
    same, _ = play_batches(system, batches, Policy(order=Same()))

    assert mine == same


def test_the_wait_budget_holds_in_lockstep_too():
    """A micro-batch passed over for the budget runs in the next stage."""

    class Last:
        wait_budget_s = 3e-12

        def key(self, batch, view):
            return float(batch.batch == 0)

    jobs = np.zeros((1, 8, 1), np.int64)
    jobs[0, 0, 0] = 1
    none, zero = np.zeros((1, 2, 2, 1), np.int64), np.zeros((1, 1), np.int64)
    cost = TickCost(zero, zero, jobs, none, none, zero[0], np.array([1, 1]))
    late = [batch_of(cost, number + 1, number) for number in range(10)]
    policy = Policy(order=Last(), select=SmallestKeys(1))

    done, _ = play_batches(
        tiny_system(1, 8, 1), [batch_of(cost, 0, 0), *late], policy, LockstepEngine
    )

    assert done[0] == 4


@pytest.mark.parametrize("key", [float("nan"), None, "early"])
def test_a_key_that_cannot_be_compared_is_refused(key):
    class Odd:
        def key(self, batch, view):
            return key

    batch = batch_of(cost_of([1, 1], [1, 1]))

    with pytest.raises(InputError, match="key"):
        play_batches(tiny_system(1, 8, 2), [batch], Policy(order=Odd()))


@pytest.mark.parametrize("rows", [[], [1], [-1], [0.5], None])
def test_a_selection_of_nobody_or_of_none_that_is_there_is_refused(rows):
    class Odd:
        def stage(self, ready, keys):
            return rows

    batch = batch_of(cost_of([1, 1], [1, 1]))

    with pytest.raises(InputError, match=r"selected|rows"):
        play_batches(
            tiny_system(1, 8, 2), [batch], Policy(select=Odd()), LockstepEngine
        )
