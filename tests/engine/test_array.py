"""The array engine gives what the event engine gives, to the tick."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from moesim.engine.array.engine import ArrayEngine, refusal
from moesim.engine.event.engine import EventEngine
from moesim.measure.columns import Recorder
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.order import Fifo, Oldest, PerLayer
from reference import Reference
from worlds import batch_of, play_batches, random_cost, tiny_system

SIZES = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2)]
SEEDS = 80


class Table:
    """An order whose keys are few, so that many tie; it remembers when it was asked."""

    def __init__(self, wait_budget_s):
        self.wait_budget_s = wait_budget_s
        self.asked = []

    def key(self, batch, view):
        self.asked.append((batch.batch, batch.layer, batch.stage, view.now_s))
        return float((7 * batch.batch + 3 * batch.layer + len(batch.stage)) % 3)


POLICIES = {
    "fifo": lambda: Policy(order=Fifo()),
    "oldest": lambda: Policy(order=Oldest()),
    "per_layer": lambda: Policy(order=PerLayer("present")),
    "cross_layer": lambda: Policy(order=CrossLayer("oracle")),
    "cross_layer, budget": lambda: Policy(order=CrossLayer("oracle", 0.5, 9e-12)),
    "ties": lambda: Policy(order=Table(np.inf)),
    "ties, budget": lambda: Policy(order=Table(5e-12)),
}
policies = pytest.mark.parametrize("policy", POLICIES)


class Detailed(Recorder):
    """A recorder that keeps whole records, in order of number."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.whole = {}

    def end_pass(self, record):
        self.whole[record.number] = record
        super().end_pass(record)


@pytest.fixture(autouse=True)
def _keep_records(monkeypatch):
    monkeypatch.setattr(worlds, "Recorder", Detailed)


def heavy(rng, durations):
    """Return durations of which few take most of the time; none stays none."""
    tail = np.ceil(5 * rng.pareto(0.7, durations.shape)).astype(np.int64) + 1
    return np.where(durations > 0, tail, 0)


def draw_cost(rng, system, kind):
    """Return a coarse grid full of ties, a heavy tail, or a straggler."""
    empty = float(rng.choice([0.0, 0.2, 0.6, 0.9]))
    cost = random_cost(rng, system, int(rng.choice([2, 6, 30])), empty)
    if kind == "straggler":
        cost.attention[:, 0] *= 7
        cost.experts[:, :, 0] *= 5
    if kind != "heavy":
        return cost
    attention = heavy(rng, cost.attention)
    return replace(
        cost,
        attention=attention,
        useful=attention // 2,
        experts=heavy(rng, cost.experts),
        tx=heavy(rng, cost.tx),
        rx=heavy(rng, cost.rx),
        tail=heavy(rng, cost.tail),
    )


def draw(seed):
    """Return a system and up to six micro-batches that meet in it."""
    rng = np.random.default_rng(seed)
    gpus, nodes = SIZES[rng.integers(len(SIZES))]
    kernel = str(rng.choice(["grouped", "per_expert"]))
    experts = int(rng.choice([8, 16]))
    system = tiny_system(int(rng.integers(1, 4)), experts, gpus, nodes, experts=kernel)
    count = int(rng.integers(1, 7))
    kind = str(rng.choice(["ties", "heavy", "straggler"]))
    admitted = rng.integers(0, rng.choice([1, 4, 40, 200]), count).tolist()
    costs = [draw_cost(rng, system, kind) for _ in range(count)]
    for cost in costs:
        cost.latency[:] = costs[0].latency
    numbers = rng.permutation(count).tolist()
    numbers = numbers if rng.random() < 0.3 else sorted(numbers)
    drawn = zip(costs, numbers, admitted, strict=True)
    return system, [batch_of(*one) for one in drawn]


def assert_same(system, batches, policy):
    """Play with both engines; ends, parts, waits and questions are all the same."""
    mine, yours = POLICIES[policy](), POLICIES[policy]()
    done, fast = play_batches(system, batches, mine, ArrayEngine)
    expected, plain = play_batches(system, batches, yours, EventEngine)

    assert done == expected
    for number, record in plain.whole.items():
        assert (fast.whole[number].parts == record.parts).all()
    assert (fast.waits.histogram == plain.waits.histogram).all()
    assert (fast.waits.total == plain.waits.total).all()
    assert (fast.waits.maximum == plain.waits.maximum).all()
    if len(set(done)) == len(done):
        assert fast.digest() == plain.digest()
    if isinstance(mine.order, Table):
        assert sorted(mine.order.asked) == sorted(yours.order.asked)
    return done, fast


@policies
def test_both_engines_agree_on_a_fixed_sweep(policy):
    """The same 80 worlds for each policy, always."""
    for seed in range(SEEDS):
        assert_same(*draw(seed), policy)


@policies
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_both_engines_agree_wherever_one_looks(policy, seed):
    """As the sweep, on worlds that nobody chose."""
    assert_same(*draw(seed), policy)


@policies
@pytest.mark.parametrize("seed", range(6))
def test_an_admission_may_come_at_any_instant_of_another_pass(policy, seed):
    """Also at the very instant at which another enters a segment, or just beside it."""
    rng = np.random.default_rng(seed)
    system = tiny_system(2, 8, 4, 2, experts="per_expert")
    first, *others = [random_cost(rng, system) for _ in range(3)]
    for cost in others:
        cost.latency[:] = first.latency
    alone = Policy(order=Table(np.inf))
    (end,), _ = play_batches(system, [batch_of(first)], alone)
    entries = {round(asked[-1] * 1e12) for asked in alone.order.asked} | {end}
    instants = {entry + beside for entry in entries for beside in (-1, 0, 1)}

    for instant in sorted(instants - {-1}):
        later = [batch_of(cost, n, instant) for n, cost in enumerate(others, 1)]
        assert_same(system, [batch_of(first), *later], policy)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_it_agrees_with_the_plain_account(seed):
    """Not only with the event engine: with the rules, read by a third reader."""
    system, batches = draw(seed)
    system = replace(system, experts="per_expert")

    done, _ = play_batches(system, batches, "fifo", ArrayEngine)

    assert done == Reference(system.topology.gpus).play(batches)


@policies
def test_the_time_of_day_does_not_matter(policy):
    """Sums of late instants overflow; what is told of the pass does not."""
    system, batches = draw(3)
    shift = 5 * 10**18
    late = [replace(batch, admitted=batch.admitted + shift) for batch in batches]

    done, fast = assert_same(system, batches, policy)
    later, slow = play_batches(system, late, POLICIES["fifo"](), ArrayEngine)
    soon, plain = play_batches(system, batches, POLICIES["fifo"](), ArrayEngine)

    assert done
    assert fast.whole
    assert [end - shift for end in later] == soon
    for number, record in plain.whole.items():
        assert (slow.whole[number].parts == record.parts).all()


def test_of_passes_that_end_together_the_first_number_is_told_first():
    """So what a run gives does not depend on the order in which they were admitted."""
    system = tiny_system(1, 8, 2, experts="grouped")
    cost = random_cost(np.random.default_rng(0), system, empty=0.0)
    none = replace(cost, **{name: getattr(cost, name) * 0 for name in WORK})
    batches = [batch_of(none, number) for number in (2, 0, 1)]

    done, recorder = play_batches(system, batches, "fifo", ArrayEngine)

    assert done == [0, 0, 0]
    assert [row[0] for row in recorder.passes] == [0, 1, 2]


WORK = ("attention", "useful", "experts", "tx", "rx", "tail")


class Nosy:
    """An order that reads the backlog of the instant."""

    needs = "global_instant"

    def key(self, batch, view):
        return float(view.backlog_s.sum())


def test_it_refuses_who_looks_at_any_instant():
    """The reason names the policy, so that a message can be made of it."""
    nosy = make_policy(Nosy())

    assert "'Nosy'" in refusal(nosy)


@policies
def test_it_refuses_no_barrier_local_policy(policy):
    assert refusal(POLICIES[policy]()) == ""


def test_backlog_is_not_shown():
    """What could only be known event by event is NaN rather than wrong."""
    system, batches = draw(5)
    seen = []

    class Reader:
        def key(self, batch, view):
            seen.append(view.backlog_s)
            return 0.0

    play_batches(system, batches, Policy(order=Reader()), ArrayEngine)

    assert np.isnan(seen).all()
    assert np.shape(seen)[1] == system.topology.gpus
