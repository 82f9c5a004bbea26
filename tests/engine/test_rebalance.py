"""Experts that move while an instance serves: what it costs, and what stays the same."""

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.weights import expert_bytes
from moesim.engine.clock import PS_PER_S, ticks_of
from moesim.engine.instance import Instance
from moesim.engine.microbatch import checked_key
from moesim.engine.move.carry import chunks
from moesim.engine.play import play
from moesim.engine.together.alike import lanes_of
from moesim.errors import InputError
from moesim.measure.frames import experts, links, passes
from moesim.measure.waits import WaitColumns
from moesim.policy.bundle import Policy
from moesim.policy.outlook import Outlook
from moesim.policy.place.moves import moved
from moesim.policy.rebalance import Carriage, Sglang, Still, TensorrtLlm, Vllm
from moesim.policy.view import Foresight, View
from moesim.routing.by_class import ByClass
from moesim.routing.synthetic import Uniform
from moesim.spec.placement import Placement, contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from worlds import GPU, requests_of, tiny_model, tiny_system

ENGINES = ["event", "array", "lockstep"]
LOOPS = {
    "sync": Vllm(window=8, interval=12, mode="sync"),
    "async": Vllm(window=8, interval=12),
    "sglang": Sglang(interval=10),
    "chunks": Sglang(interval=10, layers_per_chunk=2),
    "host": TensorrtLlm(2),
}


def wide_system(layers=4, redundant=4, gpu=GPU):
    """Return 4 GPUs on 2 nodes with 8 experts and copies of some."""
    plain = tiny_system(layers=layers, count=8, gpus=4, nodes=2)
    topology = replace(plain.topology, gpu=gpu)
    return System(tiny_model(layers, 8), topology, contiguous(layers, 8, 4, redundant))


def drifting(count=60, layers=4, seed=3):
    """Return routing by three classes, and requests whose class comes in waves."""
    source = ByClass(layers, 8, 2, seed=seed, classes=3, concentration=0.3)
    requests = requests_of(np.arange(count) * 2e-5, 40, 6)
    klass = (np.arange(count) // 20 % 3).astype(requests.klass.dtype)
    names = ("a", "b", "c")
    return source, replace(requests, klass=klass, class_names=names)


def at_once():
    """Return the same with all there from the start: some pass is always due."""
    source, requests = drifting(count=200)
    return source, replace(requests, arrival_s=np.zeros(len(requests)))


def instance_of(
    loop, engine="event", in_flight=1, system=None, traffic=None, policy=None
):
    source, requests = traffic or drifting()
    coupling = "lockstep" if engine == "lockstep" else "queued"
    serving = ServingSpec(
        max_num_batched_tokens=128,
        max_in_flight=in_flight,
        coupling=coupling,
        engine="auto" if engine == "lockstep" else engine,
    )
    system = system or wide_system()
    policy = policy or Policy(rebalance=loop)
    return Instance(system, serving, source, requests, policy)


def run(*given, **options):
    return play(instance_of(*given, **options))


@dataclass(frozen=True)
class Once:
    """A loop of ours: after some passes, to one placement."""

    goal: Placement
    after: int = 1
    how: Carriage = field(default_factory=lambda: Carriage("stop"))

    def carriage(self):
        return self.how

    def watch(self, system):
        return Countdown(self.goal, self.after)


@dataclass
class Countdown:
    goal: Placement
    left: int

    def observe(self, slots, placement):
        self.left -= 1

    def plan(self, placement):
        return self.goal if self.left == 0 else None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_loop_whose_time_never_comes_changes_nothing(engine, in_flight):
    still = run(Still(), engine, in_flight)

    assert run(Vllm(interval=10**6), engine, in_flight).digest() == still.digest()
    assert run(Sglang(10, threshold=0.0), engine, in_flight).digest() == still.digest()


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_the_array_engine_moves_to_the_tick_as_the_event_engine(name, in_flight):
    fast, plain = (run(LOOPS[name], e, in_flight) for e in ("array", "event"))

    assert fast.digest() == plain.digest()
    assert fast.moves.facts() == plain.moves.facts()
    assert fast.moves.facts()["rebalances"] > 1
    assert (fast.moves.busy == plain.moves.busy).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LOOPS)
def test_experts_get_the_tokens_that_they_get_without_moves(engine, name):
    """Whoever holds them: routes are pure, and what was seen is told to experts."""
    moves, still = run(LOOPS[name], engine, 2), run(Still(), engine, 2)
    mine, yours = experts(moves, 0), experts(still, 0)

    assert mine["tokens"].tolist() == yours["tokens"].tolist()
    assert len(mine) == len(yours)
    service = moves.slot_service.sum() / PS_PER_S
    assert mine["service_s"].sum() == pytest.approx(service, rel=1e-12)
    assert mine["jobs"].sum() == moves.waits.count.sum()
    used = mine["tokens"] > 0
    assert (mine["jobs"][used] > 0).all()
    assert (mine["jobs"][~used] == 0).all()


@pytest.mark.parametrize("name", LOOPS)
def test_weights_are_nobodys_tokens(name):
    """Passes, tokens and sequences are those of users; weights show beside them."""
    moves, still = run(LOOPS[name], in_flight=2), run(Still(), in_flight=2)

    assert passes(moves, 0)["tokens"].sum() == passes(still, 0)["tokens"].sum()
    numbers = sorted(moves.pass_rows[:, 0].tolist())
    assert numbers == list(range(len(numbers)))
    assert (moves.requests.generated == still.requests.generated).all()
    table = links(moves, 0)
    tokens = table[table["phase"] != "weights"]
    assert tokens["bytes"].sum() == pytest.approx(moves.bytes.sum())
    assert set(links(still, 0)["phase"]) == {"dispatch", "combine"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["sync", "async", "sglang", "chunks"])
def test_every_byte_that_is_sent_arrives_and_is_an_expert(engine, name):
    moves = run(LOOPS[name], engine, 2).moves
    size = expert_bytes(tiny_model(), "bf16")

    assert moves.bytes[0].sum() == moves.bytes[1].sum()
    assert (moves.bytes[0].sum(axis=1) == moves.bytes[1].sum(axis=1)).all()
    ended = [row for row in moves.plans if row.done >= 0]
    least = sum(row.experts for row in ended) * size
    assert least > 0
    assert moves.bytes[0].sum() == sum(row.experts for row in moves.plans) * size
    assert moves.facts()["moved_bytes"] == moves.bytes[0].sum()


def one_move():
    """Return a goal where experts 0 and 1 of layer 0 have changed places: 2 copies."""
    goal = wide_system(redundant=0).placement.phy2log.copy()
    goal[0, [0, 2]] = goal[0, [2, 0]]
    return Placement(goal, 4)


def one_more():
    """Return a goal with one expert of one layer in another slot."""
    goal = wide_system().placement.phy2log.copy()
    goal[1, 11] = 0
    return Placement(goal, 4)


def gaps(recorder):
    """Return the picoseconds from the end of each pass to the next one's start."""
    rows = recorder.pass_rows
    return rows[1:, 1] - rows[:-1, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_on_an_idle_cluster_takes_its_closed_form(engine):
    """Read, one latency, the wire, then written and copied: both ways at once."""
    system = wide_system(redundant=0)
    traffic = Uniform(4, 8, 2), requests_of([0.0], 40, 6)
    recorder = run(Once(one_move()), engine, system=system, traffic=traffic)

    size = expert_bytes(system.model, "bf16")
    read, rate = size / GPU.memory_rate, GPU.nvlink_bandwidth
    parts = np.array([read, GPU.nvlink_latency_s, size / rate, 3 * read])
    expected = int(ticks_of(parts).sum())
    waited = gaps(recorder)
    assert waited[0] == pytest.approx(expected, abs=4)
    assert (waited[1:] == 0).all()
    (row,) = recorder.moves.plans
    assert row.held == row.done - row.planned == waited[0]
    assert (row.slots, row.experts, row.bytes) == (2, 2, 2 * size)


@pytest.mark.parametrize("engine", ENGINES)
def test_making_a_plan_takes_its_time(engine):
    system = wide_system(redundant=0)
    traffic = Uniform(4, 8, 2), requests_of([0.0], 40, 6)
    slow = Once(one_move(), how=Carriage("stop", planning_s=0.25))
    quick, late = (
        gaps(run(loop, engine, system=system, traffic=traffic))[0]
        for loop in (Once(one_move()), slow)
    )

    assert late - quick == PS_PER_S // 4


@pytest.mark.parametrize("engine", ENGINES)
def test_async_never_keeps_a_pass_from_being_formed(engine):
    """All arrive at once: the next pass begins when the last one ends."""
    recorder = run(LOOPS["async"], engine, traffic=at_once())

    assert recorder.moves.facts()["rebalances"] > 1
    assert recorder.moves.facts()["rebalance_stall_s"] == 0
    assert (gaps(recorder) == 0).all()


@pytest.mark.parametrize("engine", ["event", "array"])
def test_everything_stands_still_while_sync_moves(engine):
    """No pass is in flight between a plan's hold and its end; stalls add up to gaps."""
    recorder = run(LOOPS["sync"], engine, traffic=at_once())

    held = [row.held for row in recorder.moves.plans if row.slots]
    assert sorted(held) == sorted(gaps(recorder)[gaps(recorder) > 0].tolist())


@pytest.mark.parametrize("engine", ENGINES)
def test_no_turn_is_missed_while_the_host_is_waited_for(engine):
    """Four layers, two a turn, a rest in every third pass; the host is always late."""
    system = wide_system(gpu=replace(GPU, host_bandwidth=1e8))
    recorder = run(TensorrtLlm(2), engine, system=system, traffic=at_once())

    passes = len(recorder.pass_rows)
    assert len(recorder.moves.plans) >= 2 * (passes - 2) // 3


@dataclass(frozen=True)
class TokensOnly:
    """An order and a selection that know nothing of weights, and may not see them."""

    def key(self, batch, view):
        assert batch.tokens
        return float(batch.batch)

    def stage(self, ready, keys):
        assert all(view.tokens for view in ready)
        return [int(np.argmin(keys))]


@pytest.mark.parametrize("name", LOOPS)
def test_policies_are_not_asked_about_weights(name):
    """They go first among what waits, and in lockstep with whatever is selected."""
    policy = Policy(order=TokensOnly(), select=TokensOnly(), rebalance=LOOPS[name])
    digests = []
    for engine in ENGINES:
        instance = instance_of(LOOPS[name], engine, 3, policy=policy)
        digests.append(play(instance).digest())
        assert instance.mover.log.facts()["rebalances"] >= 1

    assert digests[0] == digests[1]
    view = chunks(wide_system().placement, one_more(), Carriage(), wide_system())
    weights = view[0].batch.view(0, "attention")
    assert checked_key(policy, weights, View(0.0, np.zeros(4))) == -np.inf


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["sync", "sglang", "chunks"])
def test_weights_wait_until_nothing_is_in_flight(engine, name):
    instance = instance_of(LOOPS[name], engine, 3)
    admit, left = instance.engine.admit, []

    def watched(batch, on_done):
        if batch.weights:
            left.append(instance.in_flight)
        admit(batch, on_done)

    instance.engine.admit = watched
    play(instance)

    assert len(left) >= 2
    assert not any(left)


def test_chunks_of_layers_come_between_passes():
    """Four layers, two at a time: two stops a plan, the first a pass after it."""
    recorder = run(LOOPS["chunks"], traffic=at_once())
    whole = run(LOOPS["sglang"], traffic=at_once())

    stops = np.flatnonzero(gaps(recorder))
    plans = [row for row in recorder.moves.plans if row.done >= 0]
    assert len(stops) == 2 * len(plans)
    assert stops[:2].tolist() == [11, 12]  # planned after the eleventh pass, number 10
    assert np.flatnonzero(gaps(whole))[0] == 10


@pytest.mark.parametrize("engine", ENGINES)
def test_the_host_holds_up_a_pass_only_if_it_is_slower_than_one(engine):
    """A link to the host that is fast enough is never waited for."""
    fast, slow = (
        run(
            TensorrtLlm(2),
            engine,
            system=wide_system(gpu=replace(GPU, host_bandwidth=bandwidth)),
        ).moves.facts()
        for bandwidth in (1e15, 1e8)
    )

    assert fast["rebalances"] > 5
    assert fast["rebalance_stall_s"] == 0
    assert slow["rebalance_stall_s"] > 0
    assert slow["moved_bytes"] == slow["moved_slots"] * expert_bytes(
        tiny_model(), "bf16"
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LOOPS)
def test_every_placement_on_the_way_is_whole(engine, name):
    """After each commit every expert of every layer has a slot, and routes agree."""
    instance = instance_of(LOOPS[name], engine, 3)
    switch, seen = instance.recorder.relocate, []

    def checked(placement):
        placement.check(4, 8)
        switch(placement)
        assert instance.assembler.system.placement is placement
        assert instance.outlook.system.placement is placement
        seen.append(placement)

    instance.recorder.relocate = checked
    play(instance)

    assert len(seen) >= 2


def test_drift_is_followed_and_no_drift_gains_nothing():
    """Three classes in waves; then all experts alike, where moving is for nothing."""
    follows = run(Sglang(interval=5)).moves.facts()
    even = Uniform(4, 8, 2, seed=1), drifting()[1]
    alone = wide_system(redundant=0)
    null = run(Sglang(interval=5), system=alone, traffic=even).moves.facts()

    gained = follows["balancedness_moved"] - follows["balancedness_unmoved"]
    wasted = null["balancedness_moved"] - null["balancedness_unmoved"]
    assert gained > 0.05
    assert abs(wasted) < 0.02
    assert null["moved_experts"] > 0


def test_counts_and_lanes_leave_moves_to_others():
    """A run of a policy that moves experts is played by itself."""
    source, requests = drifting(count=4)
    moving = instance_of(Vllm(), "array", traffic=(source, requests))
    still = instance_of(Still(), "array", traffic=(source, requests))

    assert lanes_of(moving) == 1
    assert lanes_of(still) > 1


@st.composite
def journeys(draw):
    """Two placements of the same slots, and a way to go."""
    layers = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    old, new = (
        Placement(
            rng.permuted(np.tile([*range(8), 0, 1, 2, 3], (layers, 1)), axis=1), 4
        )
        for _ in range(2)
    )
    way, origin = draw(
        st.sampled_from([("stop", "peers"), ("beside", "peers"), ("behind", "host")])
    )
    return old, new, Carriage(way, origin, layers=draw(st.integers(0, 3)))


@settings(max_examples=60, deadline=None)
@given(journey=journeys())
def test_chunks_lead_from_one_placement_to_the_other(journey):
    """Each layer in one chunk; copies and slots as told; a step brings one to a GPU."""
    old, new, carriage = journey
    system = replace(wide_system(len(old.phy2log)), placement=old)
    slots, moves = old.phy2log.copy(), moved(old, new, 2)
    made = chunks(old, new, carriage, system)
    size = expert_bytes(system.model, "bf16")
    for chunk in made:
        assert (slots[chunk.layers] == old.phy2log[chunk.layers]).all()
        slots[chunk.layers] = chunk.slots
        if carriage.layers:
            assert len(chunk.layers) <= carriage.layers
        received = chunk.batch.cost.rx[:, 0]
        if carriage.way == "beside":
            longest = ticks_of(size / system.topology.bandwidth)
            assert (received.max(axis=2) <= longest).all()

    assert (slots == new.phy2log).all()
    assert sum(chunk.changed for chunk in made) == moves.changed.sum()
    crossing = moves.changed.sum() if carriage.origin == "host" else len(moves)
    assert sum(chunk.experts for chunk in made) == crossing
    carried = sum(chunk.batch.sent.sum() for chunk in made)
    assert carried == (0 if carriage.origin == "host" else len(moves) * size)


def test_a_move_in_steps_takes_as_many_bytes_as_at_once():
    """In the background or not: the same ports are busy for as long."""
    rng = np.random.default_rng(8)
    old, new = (
        Placement(rng.permuted(np.tile([*range(8), 0, 1, 2, 3], (3, 1)), axis=1), 4)
        for _ in range(2)
    )
    system = replace(wide_system(3), placement=old)
    stop, beside = (
        chunks(old, new, Carriage(way, layers=1), system) for way in ("stop", "beside")
    )

    for whole, parts in zip(stop, beside, strict=True):
        assert len(parts.batch.cost.tx) > len(whole.batch.cost.tx) == 1
        assert (parts.batch.sent == whole.batch.sent).all()
        mine, yours = (c.batch.cost.tx.sum(axis=0) for c in (parts, whole))
        assert np.abs(mine - yours).max() <= len(parts.batch.cost.tx)
        slots = (old.phy2log != new.phy2log)[whole.layers].reshape(4, -1).sum(axis=1)
        read = expert_bytes(system.model, "bf16") / GPU.memory_rate * PS_PER_S
        assert (parts.batch.cost.tail >= 2 * slots * read - 1).all()
        mine, yours = (
            c.batch.cost.attention.sum(axis=0) + c.batch.cost.tail
            for c in (parts, whole)
        )
        assert np.abs(mine - yours).max() <= 2 * len(parts.batch.cost.tx)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("there", "a plan is a placement of the same slots, (4, 12) on 4 GPUs"),
        (contiguous(4, 8, 4), "a plan is a placement of the same slots, (4, 12)"),
        (contiguous(4, 8, 2, 4), "a plan is a placement of the same slots, (4, 12)"),
        (
            Placement(np.zeros((4, 12)), 4),
            "no slot of layer 0 holds expert 1 (28 in all)",
        ),
        (Placement(np.full((4, 12), 9), 4), "slot 0 of layer 0 holds expert 9"),
    ],
)
def test_a_plan_that_is_none_is_refused(goal, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(Once(goal))


def test_waits_put_together_are_those_written_together():
    """Counts, bins, sums and maxima of cells that become one."""
    rng = np.random.default_rng(4)
    cell, wait = rng.integers(0, 6, 500), rng.integers(0, 10**7, 500)
    group = np.array([2, 0, 1, 1, 0, 2])
    apart, together = WaitColumns(6), WaitColumns(3)
    apart.extend(cell, wait)
    together.extend(group[cell], wait)

    pooled = apart.pooled(group, 3)

    assert (pooled.histogram == together.histogram).all()
    assert (pooled.total == together.total).all()
    assert (pooled.maximum == together.maximum).all()
    pooled.extend(np.array([0]), np.array([10**9]))
    assert pooled.maximum[0] == 10**9
    assert apart.maximum.max() < 10**9


def test_who_looks_ahead_looks_at_experts_where_they_are():
    """What was guessed of waiting requests is guessed anew when experts have moved."""
    source, system = drifting()[0], wide_system()
    outlook = Outlook(system, source, Foresight("oracle", look=4))
    who = np.array([0, 1]), np.array([0, 1]), np.array([30, 30])
    before = outlook.loads(*who)
    goal = replace(system, placement=Placement(system.placement.phy2log[:, ::-1], 4))
    fresh = Outlook(goal, source, Foresight("oracle", look=4)).loads(*who)

    outlook.place(goal)

    assert (outlook.loads(*who) == fresh).all()
    assert (before != fresh).any()
