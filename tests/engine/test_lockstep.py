"""Lockstep runs one joint stage after another, as a plain account has it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.clock import FORM, Clock
from moesim.engine.event.engine import EventEngine
from moesim.engine.lockstep.engine import LockstepEngine
from moesim.engine.lockstep.stage import exchange
from moesim.engine.microbatch import TickCost
from moesim.measure.columns import PARTS, Recorder
from moesim.policy.bundle import Policy
from moesim.policy.compose import SmallestKeys
from worlds import batch_of, play_batches, random_cost, requests_of, tiny_system

ATTENTION, EXPERTS, LM_HEAD, QUEUE, STRAGGLER, DISPATCH, COMBINE = range(len(PARTS))


class Table:
    """An order whose keys are given for each micro-batch and layer."""

    def __init__(self, keys):
        self.keys = keys

    def key(self, batch, view):
        return float(self.keys[batch.batch][batch.layer])


def all_to_all(post, tx, rx, latency):
    """Return when each GPU has received: sender by sender, receiver by receiver."""
    gpus = len(post)
    ready = [max(post)] * gpus
    for port, delay in enumerate(latency):
        senders = [g for g in range(gpus) if tx[port][g]]
        if not senders:
            continue
        first = min(post[g] for g in senders)
        last = max(post[g] + tx[port][g] for g in range(gpus))
        for g in range(gpus):
            ready[g] = max(ready[g], last + delay)
            if rx[port][g]:
                ready[g] = max(ready[g], first + delay + rx[port][g])
    return ready


class Plain:
    """Plays micro-batches stage by stage, GPU by GPU, with nothing vectorised."""

    def __init__(self, keys, width, grouped):
        self.keys, self.width, self.grouped = keys, width, grouped
        self.done, self.waits = {}, []

    def play(self, batches):
        self.gpus = batches[0].cost.attention.shape[1]
        self.spent = {b.number: np.zeros((7, self.gpus), int) for b in batches}
        self.at = {b.number: 0 for b in batches}
        self.gated = {b.number: False for b in batches}
        self.ready = {}
        self.since = {b.number: b.admitted for b in batches}
        left, now = list(batches), 0
        while left:
            now = max(now, min(b.admitted for b in left))
            ready = [b for b in left if b.admitted <= now]
            for b in ready:
                if not self.gated[b.number]:
                    self.ready[b.number] = now
            rank = lambda b: (self.key(b), self.ready[b.number], b.number)  # noqa: E731
            chosen = sorted(ready, key=rank)
            chosen = chosen[: self.width] if self.width else chosen
            now = self.stage(now, ready, chosen)
            for b in chosen:
                self.at[b.number] += 1
                self.gated[b.number] = False
                if self.at[b.number] == len(b.cost.attention):
                    self.done[b.number] = now
                    left.remove(b)
        return [self.done[b.number] for b in batches]

    def key(self, batch):
        return self.keys[batch.number][self.at[batch.number]]

    def stage(self, now, ready, chosen):
        entering = [b for b in ready if not self.gated[b.number]]
        gpus, at = range(self.gpus), self.at
        attended = [
            now + sum(int(b.cost.attention[at[b.number], g]) for b in entering)
            for g in gpus
        ]
        received = all_to_all(attended, *self.ports(chosen, 0))
        computed = [
            received[g]
            + sum(int(b.cost.experts[at[b.number], :, g].sum()) for b in chosen)
            for g in gpus
        ]
        returned = all_to_all(computed, *self.ports(chosen, 1))
        ending = [b for b in chosen if at[b.number] + 1 == len(b.cost.attention)]
        finished = [
            returned[g] + sum(int(b.cost.tail[g]) for b in ending) for g in gpus
        ]
        end = max(finished)
        for b in entering:
            self.gated[b.number] = True
            for g in gpus:
                self.spent[b.number][ATTENTION, g] += b.cost.attention[at[b.number], g]
        for g in gpus:
            self.note_waits(now, chosen, g)
            moving = {
                DISPATCH: received[g] - max(attended),
                COMBINE: returned[g] - max(computed),
                STRAGGLER: max(attended)
                - attended[g]
                + max(computed)
                - computed[g]
                + end
                - finished[g],
            }
            for b in chosen:
                spent = self.spent[b.number]
                spent[EXPERTS, g] += b.cost.experts[at[b.number], :, g].sum()
                spent[LM_HEAD, g] += b.cost.tail[g] * (b in ending)
                for part, time in moving.items():
                    spent[part, g] += time
        return end

    def ports(self, chosen, phase):
        tx = sum(b.cost.tx[self.at[b.number], phase] for b in chosen).tolist()
        rx = sum(b.cost.rx[self.at[b.number], phase] for b in chosen).tolist()
        return tx, rx, chosen[0].cost.latency.tolist()

    def note_waits(self, now, chosen, gpu):
        """Write down how long each expert's job waited: passed over, then in turn."""
        before = 0
        for b in chosen:
            services = b.cost.experts[self.at[b.number], :, gpu].tolist()
            start = before
            for slot, service in enumerate(services):
                if service:
                    wait = start if self.grouped else before
                    wait += now - self.ready[b.number]
                    self.waits.append((self.at[b.number], slot, gpu, wait))
                before += service

    def parts(self, batch):
        """Return ``(7, G)``: queueing is what nothing else explains."""
        parts = self.spent[batch.number].copy()
        duration = self.done[batch.number] - batch.admitted
        parts[QUEUE] = duration - parts.sum(axis=0)
        return parts


def system_of(world, kernel):
    _, (gpus, nodes), layers, _, _ = world
    return tiny_system(layers, 8, gpus, nodes, experts=kernel)


def batches_of(world, system):
    seed, _, _, count, spread = world
    rng = np.random.default_rng(seed)
    admitted = np.sort(rng.integers(0, spread + 1, count)).tolist()
    costs = [random_cost(rng, system) for _ in range(count)]
    for cost in costs:
        cost.latency[:] = costs[0].latency
    return [batch_of(costs[n], n, admitted[n]) for n in range(count)]


worlds = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2)]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 60),
)
kernels = st.sampled_from(["per_expert", "grouped"])


@settings(max_examples=300, deadline=None)
@given(worlds, kernels, st.integers(0, 3))
def test_stages_agree_with_the_plain_account(world, kernel, width):
    """Ends, parts on every GPU and every job's wait, for any order and width."""
    system = system_of(world, kernel)
    batches = batches_of(world, system)
    keys = np.random.default_rng(world[0]).integers(0, 3, (4, 3)).tolist()
    plain = Plain(keys, width, kernel == "grouped")
    policy = Policy(order=Table(keys), select=SmallestKeys(width))

    done, recorder = play_batches(system, batches, policy, LockstepEngine)

    assert done == plain.play(batches)
    assert (recorder.parts == sum(plain.parts(b) for b in batches)).all()
    assert_waits(recorder, plain, system)


def assert_waits(recorder, plain, system):
    shape = recorder.slot_service.shape
    count, total, maximum = (np.zeros(shape, int) for _ in range(3))
    for layer, slot, gpu, wait in plain.waits:
        # The recorder's cells are (layer, GPU, slot).
        count[layer, slot, gpu] += 1
        total[layer, slot, gpu] += wait
        maximum[layer, slot, gpu] = max(maximum[layer, slot, gpu], wait)
    waits = recorder.waits
    for found, expected in (
        (waits.count, count),
        (waits.total, total),
        (waits.maximum, maximum),
    ):
        assert (found == expected.transpose(0, 2, 1).ravel()).all()


def bound_receiving(batches, slack):
    """Let no port receive longer than `slack` latencies over the longest sending."""
    for batch in batches:
        cost = batch.cost
        longest = cost.tx.max(axis=-1, keepdims=True)
        limit = longest + slack * cost.latency[:, None]
        np.minimum(cost.rx, limit, out=cost.rx)
    return batches


def play_alone(world, kernel, slack):
    """Return (end, recorder) of one micro-batch, queued and in lockstep."""
    system = system_of(world, kernel)
    batches = bound_receiving(batches_of(world, system)[:1], slack)
    return [
        play_batches(system, batches, "fifo", engine)
        for engine in (EventEngine, LockstepEngine)
    ]


def assert_same(queued, joint):
    (end, events), (other, stages) = queued, joint

    assert other == end
    assert (stages.parts == events.parts).all()
    assert (stages.waits.total == events.waits.total).all()
    assert (stages.waits.maximum == events.waits.maximum).all()
    assert stages.passes == events.passes


@settings(max_examples=200, deadline=None)
@given(worlds, kernels)
def test_a_micro_batch_alone_does_not_feel_the_coupling(world, kernel):
    """Queued and lockstep agree to the tick, part by part and job by job.

    All GPUs leave an exchange together if the last sender ends it for all of them.
    """
    assert_same(*play_alone(world, kernel, slack=0))


@settings(max_examples=200, deadline=None)
@given(worlds, kernels)
def test_one_layer_alone_is_the_same_even_if_receiving_lasts(world, kernel):
    """With one layer there is no barrier that the exchange is not."""
    seed, cluster, _, count, spread = world

    assert_same(*play_alone((seed, cluster, 1, count, spread), kernel, slack=1))


@settings(max_examples=200, deadline=None)
@given(worlds, kernels)
def test_alone_a_barrier_can_only_delay(world, kernel):
    """A GPU that has its results waits in lockstep for the last that receives."""
    (queued, _), (joint, _) = play_alone(world, kernel, slack=1)

    assert joint >= queued


@settings(max_examples=100, deadline=None)
@given(worlds, kernels, st.integers(0, 2))
def test_the_coupling_changes_waiting_but_never_work(world, kernel, width):
    """Compute, jobs, useful time and time on the ports are the same in both."""
    system = system_of(world, kernel)
    batches = batches_of(world, system)

    _, events = play_batches(system, batches, "fifo", EventEngine)
    policy = Policy(select=SmallestKeys(width))
    _, stages = play_batches(system, batches, policy, LockstepEngine)

    assert (stages.parts[:QUEUE] == events.parts[:QUEUE]).all()
    assert (stages.slot_service == events.slot_service).all()
    assert (stages.waits.count == events.waits.count).all()
    assert (stages.port_busy == events.port_busy).all()
    assert (stages.useful == events.useful).all()


def simple(attention, experts, layers=1):
    """Return the cost of equal layers on one GPU that sends nothing."""
    full = np.zeros((layers, 8, 1), np.int64)
    full[:, 0, 0] = experts
    nothing = np.zeros((layers, 2, 2, 1), np.int64)
    each = np.full((layers, 1), attention)
    latency = np.array([1, 1])
    tail = np.zeros(1, np.int64)
    return TickCost(each, each, full, nothing, nothing, tail, latency)


def test_one_at_a_time_runs_in_the_order_of_keys():
    """Width 1: attention of all, then experts of the smallest key alone."""
    system = tiny_system(1, 8, 1)
    batches = [batch_of(simple(2, experts), n) for n, experts in enumerate((5, 3, 1))]
    policy = Policy(order=Table([[2.0], [0.0], [1.0]]), select=SmallestKeys(1))

    done, recorder = play_batches(system, batches, policy, LockstepEngine)

    assert done == [15, 9, 10]
    assert recorder.waits.total.sum() == 9 + 10  # passed over, once and twice


def test_equal_keys_go_by_age():
    """The micro-batch admitted first goes first, whatever the order of submission."""
    system = tiny_system(1, 8, 1)
    batches = [batch_of(simple(1, 4), number) for number in (1, 0)]
    policy = Policy(select=SmallestKeys(1))

    done, _ = play_batches(system, batches, policy, LockstepEngine)

    assert done == [10, 6]


def test_a_micro_batch_joins_at_the_next_barrier():
    """It queues until then, even though its GPU would be free earlier."""
    system = tiny_system(2, 8, 1)
    batches = [batch_of(simple(2, 3, 2), 0, 0), batch_of(simple(1, 1, 2), 1, 1)]

    done, recorder = play_batches(system, batches, "fifo", LockstepEngine)

    # Stages: 0 alone (0-5), 0 and 1 together (5-12), 1 alone (12-14).
    assert done == [12, 14]
    assert [row[6 + QUEUE] for row in recorder.passes] == [2, 9]


def test_a_micro_batch_that_comes_at_a_barrier_joins_there():
    """All that arrives at an instant is heard before the next stage is chosen."""
    system = tiny_system(2, 8, 1)
    batches = [batch_of(simple(2, 3, 2), 0, 0), batch_of(simple(1, 1, 2), 1, 5)]

    done, _ = play_batches(system, batches, "fifo", LockstepEngine)

    assert done == [12, 14]


def test_a_micro_batch_formed_at_a_barrier_joins_there():
    """What the end of one pass lets form is heard before the next stage is chosen."""
    system = tiny_system(1, 8, 1)
    first, second, third = (batch_of(simple(2, 3), n) for n in range(3))
    policy = Policy(select=SmallestKeys(1))

    assert play_follow_up(system, [first, second], third, policy) == [7, 12, 15]


def play_follow_up(system, batches, follower, policy):
    """Return the ends if `follower` is formed when the first of the batches ends."""
    clock = Clock()
    recorder = Recorder(system, requests_of([0.0], 1, 1))
    engine = LockstepEngine(clock, system, policy, recorder)
    done = {}

    def end(batch):
        done[batch.number] = clock.now
        if batch is batches[0]:
            late = replace(follower, admitted=clock.now)
            clock.settle(FORM, lambda _: engine.admit(late, end))

    for batch in batches:
        engine.admit(batch, end)
    clock.run()
    return [done[number] for number in sorted(done)]


class Watcher:
    """An order that remembers what it was asked about."""

    def __init__(self):
        self.seen = []

    def key(self, batch, view):
        self.seen.append((batch.layer, batch.stage))
        return 0.0


@pytest.mark.parametrize(
    ("engine", "seen"),
    [
        (
            EventEngine,
            [
                (0, "attention"),
                (0, "experts"),
                (1, "attention"),
                (1, "experts"),
                (1, "lm_head"),
            ],
        ),
        (LockstepEngine, [(0, "experts"), (1, "experts")]),
    ],
)
def test_a_policy_is_asked_once_for_each_stage(engine, seen):
    """Queued: when the first GPU enters the stage. Lockstep: before each joint stage."""
    system = tiny_system(2, 8, 4)
    cost = random_cost(np.random.default_rng(0), system, empty=0.0)
    order = Watcher()

    play_batches(system, [batch_of(cost)], Policy(order=order), engine)

    assert order.seen == seen


@pytest.mark.parametrize("engine", [EventEngine, LockstepEngine])
@pytest.mark.parametrize("samples", [0, 3])
def test_a_pass_is_charged_what_it_costs(engine, samples):
    """Useful: its own attention and experts, and the LM head where it samples."""
    system = tiny_system(2, 8, 4, 2)
    cost = random_cost(np.random.default_rng(1), system, empty=0.1)
    batch = batch_of(cost)
    load = replace(batch.load, sequences=np.array([0, samples, 0, 0]))
    batch = replace(batch, load=load)

    _, recorder = play_batches(system, [batch], "fifo", engine)

    head = np.array([0, cost.tail[1] if samples else 0, 0, 0])
    own = cost.useful.sum(axis=0) + cost.experts.sum(axis=(0, 1))
    assert (recorder.useful == own + head).all()
    assert (recorder.slot_service == cost.experts).all()
    ports = np.stack([cost.tx.sum(axis=0), cost.rx.sum(axis=0)])
    assert (recorder.port_busy == ports).all()


@pytest.mark.parametrize(
    ("tx", "rx", "expected"),
    [
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]], [7, 7]),
        ([[4, 0], [0, 0]], [[0, 2], [0, 0]], [10, 10]),
        ([[4, 1], [0, 0]], [[9, 2], [0, 0]], [15, 11]),
        ([[0, 0], [0, 6]], [[0, 0], [1, 0]], [18, 18]),
        ([[4, 0], [0, 6]], [[0, 30], [1, 0]], [18, 36]),
    ],
)
def test_an_exchange_ends_with_its_slowest_port(tx, rx, expected):
    """GPUs post at 3 and 7; latencies 3 and 5. The last sender counts everywhere.

    Receiving overlaps sending: it may begin a latency after the first byte is sent.
    """
    ports = np.array(tx), np.array(rx), np.array([3, 5])
    received = exchange(np.array([3, 7]), *ports, np.zeros((2, 2), np.int64))

    assert received.ready.tolist() == expected
