"""Experts that are not all in device memory: laws that hold whatever meets whatever."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.residency import cpu_s
from moesim.engine.clock import Clock
from moesim.engine.event.engine import EventEngine
from moesim.engine.microbatch import TickCost
from moesim.engine.residency.gpu import GpuExperts
from moesim.engine.residency.host import Tier
from moesim.engine.residency.port import Load, Port, Verdict
from moesim.engine.residency.residents import Residents
from moesim.measure.columns import Recorder
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.cache import RankedCache, count_hits, make_cache
from moesim.policy.cache_rules import Belady
from moesim.spec.catalogue import load_model
from moesim.spec.placement import contiguous
from moesim.spec.residency import HostSpec, PrefetchSpec, ResidencySpec
from moesim.spec.system import Precision
from moesim.spec.topology import Topology
from worlds import (
    GPU,
    batch_of,
    durations,
    play_batches,
    random_cost,
    requests_of,
    tiny_system,
)

SIZE = 3 * 64 * 128 * 2.0
"""Bytes of an expert of the tiny model."""


def spec_of(system, copies, **options):
    layers, slots = len(system.placement.phy2log), system.placement.slots_per_gpu
    given = {
        "pinned": np.zeros((layers, slots, system.topology.gpus), np.int64),
        "popularity": np.zeros((0, 0)),
    }
    return ResidencySpec(copies, **(given | options))


def with_residency(system, copies, ticks=4, **options):
    """Return the system with so many experts in memory, each `ticks` on the port."""
    gpu = replace(GPU, host_bandwidth=SIZE / (ticks * 1e-12) if ticks else inf)
    topology = replace(system.topology, gpu=gpu)
    return replace(
        system, topology=topology, residency=spec_of(system, copies, **options)
    )


def cost_of(rng, system, largest=6):
    """Return a random cost without ports: every GPU on its own."""
    layers, gpus = len(system.model.moe_layers), system.topology.gpus
    slots = system.placement.slots_per_gpu
    batch = batch_of(_empty(layers, slots, gpus))
    return replace(
        batch.cost,
        attention=durations(rng, (layers, gpus), largest),
        experts=durations(rng, (layers, slots, gpus), largest),
        tail=durations(rng, (gpus,), largest),
    )


def _empty(layers, slots, gpus):
    ports = np.zeros((layers, 2, 2, gpus), np.int64)
    flat = np.zeros((layers, gpus), np.int64)
    return TickCost(
        attention=flat,
        useful=flat,
        experts=np.zeros((layers, slots, gpus), np.int64),
        tx=ports,
        rx=ports,
        tail=np.zeros(gpus, np.int64),
        latency=np.ones(2, np.int64),
    )


def draw(seed, system, count, spread):
    rng = np.random.default_rng(seed)
    admitted = np.sort(rng.integers(0, spread + 1, count)).tolist()
    costs = [random_cost(rng, system) for _ in range(count)]
    for cost in costs:
        cost.latency[:] = costs[0].latency
    return [batch_of(c, n, admitted[n]) for n, c in enumerate(costs)]


worlds = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 60),
    st.sampled_from(["grouped", "per_expert"]),
)
options = st.fixed_dictionaries(
    {
        "scope": st.sampled_from(["layer", "gpu"]),
        "cache": st.sampled_from(["lru", "lfu", "fifo", "lifo", "static"]),
        "on_miss": st.sampled_from(["load", "cpu", "cheaper"]),
        "prefetch": st.builds(
            PrefetchSpec,
            st.sampled_from(["none", "next_layer", "path"]),
            st.sampled_from([0.0, 0.5, 1.0]),
            st.integers(0, 2),
        ),
        "sync_s": st.sampled_from([0.0, 3e-12]),
        "host_experts": st.sampled_from([0, 1, 5]),
        "host": st.builds(
            HostSpec,
            st.sampled_from([SIZE / 2e-12, SIZE / 40e-12]),
            st.just(1e30),
            st.just(SIZE / 7e-12),
        ),
    }
)


def world_of(world):
    seed, (gpus, nodes), layers, count, spread, kernels = world
    system = tiny_system(layers, 8, gpus, nodes, experts=kernels)
    return system, draw(seed, system, count, spread)


class ShortestQueue:
    """An order that looks at all GPUs at the instant at which a segment begins."""

    needs = "global_instant"

    def key(self, batch, view):
        return float(view.backlog_s.sum())


@settings(max_examples=60)
@given(worlds, st.sampled_from(["fifo", "oldest", "per_layer", "shortest_queue"]))
def test_with_all_experts_there_nothing_changes(world, name):
    """To the tick, waits and digest included."""
    shortest = Policy(order=ShortestQueue())
    policy = shortest if name == "shortest_queue" else make_policy(name)
    system, batches = world_of(world)
    every = system.placement.slots_per_gpu * len(system.placement.phy2log)
    plain, first = play_batches(system, batches, policy)

    done, second = play_batches(with_residency(system, every), batches, policy)

    assert done == plain
    assert second.digest() == first.digest()
    assert second.residency.misses.sum() == 0


@settings(max_examples=60)
@given(worlds, options)
def test_loads_that_take_no_time_are_hits(world, given):
    system, batches = world_of(world)
    plain, first = play_batches(system, batches)
    given = given | {"sync_s": 0.0, "host_experts": 0}

    done, second = play_batches(with_residency(system, 3, 0, **given), batches)

    assert done == plain
    assert second.digest() == first.digest()
    assert second.residency.loads.sum() == second.residency.misses.sum() == 0


def watched_play(system, batches):
    """Play, and look at every GPU's memory after every event."""
    clock = Clock()
    recorder = Recorder(system, requests_of([0.0], 1, 1))
    engine = EventEngine(clock, system, make_policy("fifo"), recorder)
    done = {}
    for batch in batches:
        clock.after(
            batch.admitted,
            lambda event: engine.admit(
                event._value, lambda b: done.setdefault(b.number, clock.now)
            ),
            batch,
        )
    while clock._queue:
        clock.step()
        for gpu in engine.residents.gpus:
            look(gpu, system.residency)
    return done, engine.residents, recorder


def look(gpu, spec):
    caches = list({id(cache): cache for cache in gpu.caches}.values())
    here = [key for cache in caches for key in cache.resident]
    assert len(here) <= spec.copies
    assert all(len(cache.resident) <= cache.capacity for cache in caches)
    assert set(gpu.locks) <= set(here)
    assert min(gpu.locks.values(), default=1) > 0
    begun = {key for key, load in gpu.loads.items() if load.begun}
    assert len(begun) <= 1
    assert begun <= set(gpu.locks)
    there = set(zip(*(axis.tolist() for axis in np.nonzero(gpu.there)), strict=True))
    assert there == set(here) - begun
    if isinstance(gpu.supply, Tier):
        cache = gpu.supply.cache
        assert len(cache.resident) <= spec.host_experts
        assert all(n > 0 for n in gpu.supply.locks.values())
        for load in gpu.loads.values():
            expert = gpu.supply._expert(load.place[:2], gpu.gpu)
            assert expert in cache or expert in gpu.supply.reads


@settings(max_examples=250)
@given(worlds, options, st.integers(0, 9), st.integers(1, 9))
def test_memory_holds_locks_let_go_and_everybody_ends(world, given, more, ticks):
    """No more experts than fit at any instant, no deadlock, and no work is lost."""
    system, batches = world_of(world)
    layers, slots = len(system.placement.phy2log), system.placement.slots_per_gpu
    copies = min(layers + more, layers * slots)
    system = with_residency(system, copies, ticks, **given)

    done, residents, recorder = watched_play(system, batches)

    log, gpus = recorder.residency, residents.gpus
    assert sorted(done) == [batch.number for batch in batches]
    active = sum((b.cost.experts > 0).sum(axis=1) for b in batches)
    assert ((log.hits + log.misses) == active).all()
    jobs = sum(int((b.cost.experts > 0).sum()) for b in batches)
    assert recorder.waits.count.sum() == jobs - log.on_cpu.sum()
    counted = log.useful + log.late + log.wasted
    assert (counted + [len(gpu.unused) for gpu in gpus] == log.prefetches).all()
    assert (log.busy == log.loads * ticks).all()
    for gpu in gpus:
        held = [*gpu.locks, *gpu.awaited, *gpu.asked, *residents.stays]
        assert not held
        assert not any(load.urgent for load in gpu.loads.values())
        start = sum(residents_at_start(system, gpu.gpu))
        now = sum(len(c.resident) for c in {id(c): c for c in gpu.caches}.values())
        assert now - start == log.loads[gpu.gpu] - log.evictions[gpu.gpu]
    if given["on_miss"] == "load":
        assert log.on_cpu.sum() == 0
        assert recorder.slot_service.sum() == sum(b.cost.experts.sum() for b in batches)


def residents_at_start(system, gpu):
    caches = Residents(Clock(), system, system.residency).gpus[gpu].caches
    return [len(c.resident) for c in {id(c): c for c in caches}.values()]


@settings(max_examples=60)
@given(worlds, options, st.integers(1, 9))
def test_the_order_of_arrivals_within_an_instant_decides_nothing(world, given, ticks):
    """Batches are handed over in the other order: the same ticks."""
    system, batches = world_of(world)
    system = with_residency(system, 4, ticks, **given)
    for batch in batches:
        object.__setattr__(batch, "admitted", 5)

    forth, _, first = watched_play(system, batches)
    back, _, second = watched_play(system, batches[::-1])

    assert forth == back
    assert first.residency.loads.tolist() == second.residency.loads.tolist()
    assert first.residency.hits.tolist() == second.residency.hits.tolist()


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from(["lru", "fifo"]))
def test_alone_on_one_gpu_the_hits_are_the_pure_cache_s(seed, size, name):
    """One micro-batch at a time: its touches, hits first, fed to the plain object."""
    rng = np.random.default_rng(seed)
    system = tiny_system(2, 8, 1)
    batches = [
        batch_of(cost_of(rng, system), number, 10_000 * number) for number in range(12)
    ]
    _, recorder = play_batches(with_residency(system, 2 * size, cache=name), batches)

    expected = np.zeros((2, 1), np.int64)
    for layer in range(2):
        cache = make_cache(name, size)
        for slot in reversed(range(size)):
            cache.touch((layer, slot))
        for batch in batches:
            needed = np.flatnonzero(batch.cost.experts[layer, :, 0]).tolist()
            found = [slot for slot in needed if (layer, slot) in cache]
            for slot in found + [slot for slot in needed if slot not in found]:
                cache.touch((layer, slot))
            expected[layer, 0] += len(found)
    if name == "lru" or all_fit(batches, size):
        assert recorder.residency.hits.tolist() == expected.tolist()


def all_fit(batches, size):
    """Tell whether no layer ever needs more than fits: what is in use never leaves."""
    return all((b.cost.experts > 0).sum(axis=1).max() <= size // 2 for b in batches)


def test_transfer_times_of_real_experts():
    """Mixtral's in bf16 6.406 ms, DeepSeek-V3's in fp8 0.8007 ms, at 55 GB/s."""
    for name, form, milliseconds in (
        ("mixtral-8x7b", "bf16", 6.406),
        ("deepseek-v3", "fp8", 0.8007),
    ):
        model = load_model(name)
        placement = contiguous(len(model.moe_layers), model.experts, 8, 0)
        system = replace(
            tiny_system(),
            model=model,
            placement=placement,
            topology=Topology(replace(GPU, host_bandwidth=55e9), 1, 8),
            precision=Precision(experts=form),
        )
        system = replace(system, residency=spec_of(system, 70, host_experts=9))
        residents = Residents(Clock(), system, system.residency)

        assert residents.gpus[0].port.service / 1e9 == pytest.approx(
            milliseconds, rel=1e-3
        )
        drive = residents.hosts[0].port.service / residents.gpus[0].port.service
        assert drive == pytest.approx(55 / 6, rel=1e-6)


def one_batch(layers=1, attention=5, experts=((0, 0, 3, 0),), tail=2, number=0, at=0):
    """Return a micro-batch for one GPU; `experts` by layer and slot."""
    cost = replace(
        _empty(layers, len(experts[0]), 1),
        attention=np.full((layers, 1), attention),
        experts=np.array(experts)[:, :, None],
        tail=np.array([tail]),
    )
    return batch_of(cost, number, at)


def one_gpu(copies, ticks=10, layers=1, **options):
    return with_residency(tiny_system(layers, 4, 1), copies, ticks, **options)


def test_one_miss_by_hand():
    """Attention 5, load 10, expert 3, head 2; the rest is hit, 4 behind attention."""
    there = one_batch(experts=((4, 0, 0, 0),))
    absent = one_batch()
    both = one_batch(experts=((4, 0, 3, 0),))

    assert play_batches(one_gpu(1), [there])[0] == [5 + 4 + 2]
    done, recorder = play_batches(one_gpu(1), [absent])
    assert done == [5 + 10 + 3 + 2]
    assert recorder.residency.stalled.tolist() == [10]
    assert recorder.parts[3].tolist() == [10]  # the part queue
    done, recorder = play_batches(one_gpu(2), [both])
    assert done == [5 + 10 + 3 + 2]
    assert recorder.residency.stalled.tolist() == [10 - 4]
    # With one place the load waits until the expert that is there has run.
    done, recorder = play_batches(one_gpu(1), [both])
    assert done == [5 + 4 + 10 + 3 + 2]
    assert recorder.residency.stalled.tolist() == [10]


def test_the_price_of_a_miss_is_paid_once_a_layer():
    batch = one_batch(experts=((0, 2, 3, 0),))

    done, recorder = play_batches(one_gpu(2, sync_s=7e-12), [batch])

    # Slot 1 is there and runs meanwhile.
    assert done == [5 + 7 + 10 + 3 + 2]
    both = one_batch(experts=((0, 0, 3, 3),))
    done, recorder = play_batches(one_gpu(2, sync_s=7e-12), [both])
    assert done == [5 + 7 + 20 + 3 + 2]
    assert recorder.residency.stalled.tolist() == [7 + 10 + 7]


def test_a_drive_before_the_port():
    """Slots 0 and 1 are in host memory; 2 is read first, in 7 ticks."""
    host = HostSpec(nvme_bandwidth=SIZE / 7e-12)
    system = one_gpu(1, host_experts=2, host=host)

    done, recorder = play_batches(system, [one_batch()])

    assert done == [5 + 7 + 10 + 3 + 2]
    assert recorder.residency.reading.tolist() == [7]
    done, recorder = play_batches(system, [one_batch(experts=((0, 3, 0, 0),))])
    assert done == [5 + 10 + 3 + 2]
    assert recorder.residency.read_bytes.sum() == 0


def test_the_processor_computes_what_is_absent():
    """Reading the weights takes 21, rows 1 each way; the GPU does not compute it."""
    host = HostSpec(SIZE / 21e-12, 1e30)
    system = one_gpu(2, on_miss="cpu", host=host)

    done, recorder = play_batches(system, [one_batch(experts=((4, 0, 3, 3),))])

    assert done == [5 + 1 + 21 + 21 + 1 + 2]
    log = recorder.residency
    assert log.on_cpu.tolist() == [2]
    assert log.computing.tolist() == [42]
    assert log.stalled.tolist() == [1 + 21 + 21 + 1 - 4]
    assert log.loads.tolist() == [0]
    assert recorder.slot_service.sum() == 4
    assert recorder.parts.sum() == done[0]


@pytest.mark.parametrize(("ticks", "on_cpu"), [(10, 1), (11, 0), (21, 0)])
def test_the_cheaper_way_is_taken(ticks, on_cpu):
    """Load 10 and compute 3, against 1 + 10 or more + 1 on the processor."""
    host = HostSpec(SIZE / (ticks * 1e-12), 1e30)
    system = one_gpu(1, on_miss="cheaper", host=host)

    _, recorder = play_batches(system, [one_batch()])

    assert recorder.residency.on_cpu.tolist() == [on_cpu]


def test_the_cheaper_way_knows_what_waits():
    """Two are absent: the second would wait for the first at the port."""
    host = HostSpec(SIZE / 15e-12, 1e30)
    system = one_gpu(2, on_miss="cheaper", host=host)

    done, recorder = play_batches(system, [one_batch(experts=((0, 0, 3, 3),))])

    assert recorder.residency.on_cpu.tolist() == [1]
    assert done == [5 + 1 + 15 + 1 + 2]


def test_the_cheaper_way_knows_what_the_processor_has_to_do():
    """1 + 15 + 1 and 15 more are less than 40 + 3; with 30 more they are not."""
    host = HostSpec(SIZE / 15e-12, 1e30)
    system = one_gpu(1, 40, on_miss="cheaper", host=host)

    _, recorder = play_batches(system, [one_batch(experts=((0, 3, 3, 3),))])

    assert recorder.residency.on_cpu.tolist() == [2]
    assert recorder.residency.loads.tolist() == [1]


def test_what_the_processor_computes_is_not_loaded_as_well():
    """One guess is on the wire and is waited for; the other is dropped."""
    host = HostSpec(SIZE / 21e-12, 1e30)
    guess = PrefetchSpec("path", lookahead=0)
    system = one_gpu(2, on_miss="cpu", prefetch=guess, host=host)

    _, recorder = play_batches(system, [one_batch(experts=((0, 0, 3, 3),))])

    assert recorder.residency.on_cpu.tolist() == [1]
    assert recorder.residency.loads.tolist() == [1]


def test_a_shared_expert_among_the_routed_ones_is_never_absent():
    """It is the one after the slots: it runs for 20 while slot 2 is loaded."""
    system = replace(one_gpu(1), shared_experts="fused")

    done, recorder = play_batches(system, [one_batch(experts=((0, 0, 3, 0, 20),))])

    assert done == [5 + 20 + 3 + 2]
    log = recorder.residency
    assert (log.hits.sum(), log.misses.sum(), log.stalled.sum()) == (0, 1, 0)


def test_the_processor_is_bound_by_weights_or_by_arithmetic():
    host = HostSpec(memory_bandwidth=1e9, flops=1e12)
    system = one_gpu(1, host=host)

    few, many = cpu_s(np.array([1, 10**6]), system)

    assert few == pytest.approx(SIZE / 1e9)
    assert many == pytest.approx(2 * 1e6 * (SIZE / 2) / 1e12)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_what_is_fetched_ahead_in_time_costs_nothing(lookahead):
    """The true path, as early as attention: as if everything were there."""
    rows = ((0, 0, 3, 0), (0, 0, 0, 3), (0, 0, 4, 0))
    batch = one_batch(3, attention=30, experts=rows)
    guess = PrefetchSpec("path", lookahead=lookahead)
    system = one_gpu(3, layers=3, prefetch=guess)

    done, recorder = play_batches(system, [batch])

    plain, _ = play_batches(tiny_system(3, 4, 1), [batch])
    assert done == plain
    log = recorder.residency
    assert log.misses.sum() == 0
    assert log.prefetches.tolist() == log.useful.tolist() == [3]


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2), st.integers(1, 3))
def test_a_fast_port_and_the_true_path_equal_full_memory(seed, lookahead, layers):
    """One pass, loads of one tick behind attention of many, and enough places."""
    rng = np.random.default_rng(seed)
    system = tiny_system(layers, 8, 2)
    cost = cost_of(rng, system)
    cost.attention[:] = rng.integers(20, 40, cost.attention.shape)
    cost.experts[:, 3] = 0
    batch = batch_of(cost)
    guess = PrefetchSpec("path", lookahead=lookahead)

    done, recorder = play_batches(
        with_residency(system, 3 * layers, 1, prefetch=guess), [batch]
    )

    assert done == play_batches(system, [batch])[0]
    assert recorder.residency.misses.sum() == 0


def test_who_is_waited_for_goes_first_and_a_guess_is_promoted():
    """The guess for layer 1 waits; a pass that comes to layer 0 then goes before it."""
    rows = ((0, 0, 3, 0), (0, 0, 3, 3))
    guess = PrefetchSpec("path", lookahead=1)
    system = one_gpu(4, layers=2, prefetch=guess)

    done, recorder = play_batches(system, [one_batch(2, 1, rows)])

    # At 0 three guesses; at 1 layer 0's, on the wire already, is needed. It comes at 10
    # and runs to 13; attention to 14. Slot 2 of layer 1 comes at 20, slot 3 at 30.
    assert done == [30 + 3 + 2]
    log = recorder.residency
    assert log.prefetches.tolist() == [2]  # slot 3 had a pass waiting as it began
    assert log.late.tolist() == [2]  # both were waited for
    assert log.useful.tolist() == [0]
    assert log.misses.sum() == 3


def test_a_wrong_guess_is_dropped_once_the_truth_is_known():
    """All guesses are wrong: one is on the wire as the pass arrives, the others go."""
    rows = ((3, 0, 0, 0), (3, 0, 0, 0))
    guess = PrefetchSpec("next_layer", 0.0, 1)
    system = one_gpu(4, layers=2, prefetch=guess)

    _, recorder = play_batches(system, [one_batch(2, 1, rows)])

    log = recorder.residency
    assert log.useful.sum() == 0
    assert log.prefetches.sum() == log.loads.sum() <= 1
    assert log.misses.sum() == 0


def test_a_guess_takes_no_place_from_what_would_stay_longer():
    """LFU: slots 0 and 1 were used, so the guess would be the first to leave."""
    rows = ((3, 3, 0, 0),)
    guess = PrefetchSpec("next_layer", 0.0, 0)
    system = one_gpu(2, cache="lfu", prefetch=guess)

    _, recorder = play_batches(
        system, [one_batch(1, 100, rows, number=n, at=1000 * n) for n in range(3)]
    )

    assert recorder.residency.loads.sum() == 0
    assert recorder.residency.hits.sum() == 6


def test_pinned_experts_never_leave():
    pinned = np.zeros((1, 4, 1), np.int64)
    pinned[0, 3] = 1
    system = one_gpu(2, pinned=pinned)
    rows = [((0, 3, 0, 0),), ((0, 0, 3, 0),), ((0, 0, 0, 3),)]

    _, recorder = play_batches(
        system, [one_batch(experts=r, number=n, at=99 * n) for n, r in enumerate(rows)]
    )

    assert recorder.residency.hits.tolist() == [[1]]


def test_two_passes_share_one_load():
    """Both miss the same expert: it is loaded once, and both run in order."""
    batches = [one_batch(number=0), one_batch(number=1)]

    done, recorder = play_batches(one_gpu(1), batches)

    assert recorder.residency.loads.tolist() == [1]
    assert recorder.residency.misses.tolist() == [[2]]
    # Both queue at 15; the head of the first queues at 18, behind the second's expert.
    assert done == [15 + 3 + 3 + 2, 15 + 3 + 3 + 2 + 2]


def test_nobody_beats_who_knows_the_future():
    """An engine's own touches, given to Belady's rule from the same start."""
    rng = np.random.default_rng(3)
    system = tiny_system(1, 8, 1)
    batches = [batch_of(random_cost(rng, system), n, 10_000 * n) for n in range(40)]
    for name in ("lru", "lfu", "fifo", "lifo"):
        for size in (2, 4, 6):
            hits, touches = _touches(system, batches, name, size)
            start = [(0, slot) for slot in reversed(range(size))]
            rule = Belady(start + touches, bypass=True)
            best = count_hits(RankedCache(size, rule), start + touches)
            assert hits <= best


def _touches(system, batches, name, size):
    """Return how many hits there were, and the touches in the engine's order."""
    seen, use, miss = [], GpuExperts.use, GpuExperts.miss
    try:
        GpuExperts.use = lambda self, key: (seen.append(key), use(self, key))[1]
        GpuExperts.miss = lambda self, key: (seen.append(key), miss(self, key))[1]
        _, recorder = play_batches(with_residency(system, size, cache=name), batches)
    finally:
        GpuExperts.use, GpuExperts.miss = use, miss
    return int(recorder.residency.hits.sum()), seen


def test_a_port_knows_what_is_left_of_the_load_on_the_wire():
    """Two waited for and a guess, ten ticks each: one of the two has six left."""
    clock = Clock()
    port = Port(clock, 10, lambda _: Verdict.TAKE, lambda _: None)
    for slot, urgent in enumerate((True, True, False)):
        port.submit(Load((0, slot, 0), 0, urgent=urgent))
    found = {}
    for now in (1, 4, 9, 10, 15, 25, 30, 40):
        clock.after(now, lambda _, now=now: found.setdefault(now, port.backlog))
    assert port.backlog == 20
    while clock._queue:
        clock.step()

    assert found == {1: 19, 4: 16, 9: 11, 10: 10, 15: 5, 25: 5, 30: 0, 40: 0}


def test_the_cheaper_way_knows_what_is_left_on_the_wire():
    """The second pass comes as the first's load has 1 left of 40: 1 + 40 + 3 < 1 + 44."""
    host = HostSpec(SIZE / 43e-12, 1e30)
    system = one_gpu(2, 40, on_miss="cheaper", host=host)
    batches = [
        one_batch(1, 0, ((0, 0, 3, 0),), number=0),
        one_batch(1, 0, ((0, 0, 0, 3),), number=1, at=39),
    ]

    _, recorder = play_batches(system, batches)

    assert recorder.residency.on_cpu.tolist() == [0]
    assert recorder.residency.loads.tolist() == [2]


def test_a_guess_that_one_waits_for_is_late_though_another_then_finds_it():
    """It comes at 10; one needed it at 5 and acts at 20, the other needs it at 12."""
    guess = PrefetchSpec("path", lookahead=0)
    system = one_gpu(1, sync_s=15e-12, prefetch=guess)
    batches = [one_batch(number=0), one_batch(attention=7, number=1)]

    _, recorder = play_batches(system, batches)

    log = recorder.residency
    assert (log.hits.sum(), log.misses.sum()) == (1, 1)
    assert log.late.tolist() == log.prefetches.tolist() == [1]
    assert log.useful.tolist() == [0]


def test_what_was_absent_counts_as_used_when_it_was_needed():
    """LRU: slot 4 is needed at 5 and begins to come at 15; slot 0 is needed at 7."""
    system = with_residency(tiny_system(1, 8, 1), 3, 10)
    needs = [(3, 4), (0,), (5,), (6,), (0,)]
    batches = []
    for number, slots in enumerate(needs):
        row = [3 if slot in slots else 0 for slot in range(8)]
        at, attention = (0, 5 - 3 * number) if number < 2 else (1000 * number, 5)
        batches.append(one_batch(1, attention, (row,), number=number, at=at))

    _, recorder = play_batches(system, batches)

    # Slot 3 leaves for 5, and 4 for 6: 0 is still there.
    assert recorder.residency.hits.tolist() == [[2]]
    assert recorder.residency.loads.tolist() == [4]


def test_a_guess_that_leaves_unused_is_wasted():
    """It takes the place of what is needed, which then takes it back."""
    system = one_gpu(1, prefetch=PrefetchSpec("next_layer", 0.0, 0))

    done, recorder = play_batches(system, [one_batch(1, 100, ((3, 0, 0, 0),))])

    log = recorder.residency
    assert (log.prefetches.sum(), log.wasted.sum(), log.useful.sum()) == (1, 1, 0)
    assert log.evictions.sum() == 2
    assert done == [100 + 10 + 3 + 2]


def test_of_loads_asked_for_at_once_the_older_pass_s_goes_first():
    """Both come at 0; the second asks for the smaller slot."""
    batches = [
        one_batch(1, 0, ((0, 0, 0, 3),), number=0),
        one_batch(1, 0, ((0, 0, 3, 0),), number=1),
    ]

    done, _ = play_batches(one_gpu(2), batches)

    assert done == [10 + 3 + 2, 20 + 3 + 2]


def test_a_load_without_a_place_lets_others_go_first():
    """The first waits until slot 0 of its layer has run; the second has a place."""
    batches = [
        one_batch(2, 0, ((50, 0, 3, 0), (0, 0, 0, 0)), number=0),
        one_batch(2, 0, ((0, 0, 0, 0), (0, 0, 3, 0)), number=1),
    ]

    done, recorder = play_batches(one_gpu(2, layers=2), batches)

    # The GPU runs slot 0 until 50, then what came at 10, then its head until 55.
    assert done[1] == 50 + 3 + 2
    assert done[0] == 50 + 10 + 3 + 2
    assert recorder.residency.loads.tolist() == [2]


def test_a_guess_that_is_needed_goes_on_while_its_price_is_paid():
    """Two guesses from 0 on, ten ticks each; at 5 both are needed, at 20 acted on."""
    guess = PrefetchSpec("path", lookahead=0)
    system = one_gpu(2, sync_s=15e-12, prefetch=guess)

    done, recorder = play_batches(system, [one_batch(experts=((0, 0, 3, 3),))])

    # The second comes at 20, as the price has been paid: it is there by then.
    assert done == [20 + 3 + 3 + 2]
    log = recorder.residency
    assert log.prefetches.tolist() == log.late.tolist() == [2]
    assert log.useful.tolist() == log.wasted.tolist() == [0]
    assert log.misses.tolist() == [[2]]


def test_a_pass_stalls_only_while_nothing_of_it_is_there():
    """Two are there, a job each, until 5 + 4 + 3; the third comes at 15."""
    system = replace(one_gpu(3), experts="per_expert")

    done, recorder = play_batches(system, [one_batch(experts=((4, 3, 0, 3),))])

    assert done == [5 + 10 + 3 + 2]
    assert recorder.residency.stalled.tolist() == [15 - 12]
    # One has ended at 9, the other runs until 39: the pass is not stalled.
    both = one_batch(experts=((4, 30, 0, 3),))
    assert play_batches(system, [both])[1].residency.stalled.tolist() == [0]


def test_a_late_expert_has_the_key_of_its_segment():
    """It is decided as the pass comes to the layer, not as the expert does."""
    asked = []

    class Noting:
        def key(self, batch, view):
            asked.append((batch.stage, round(view.now_s * 1e12)))
            return 0.0

    play_batches(one_gpu(1), [one_batch()], Policy(order=Noting()))

    assert asked == [("attention", 0), ("experts", 5), ("lm_head", 5 + 10 + 3)]
