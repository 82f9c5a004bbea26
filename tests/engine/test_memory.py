"""Memory while serving: nothing over the limit, nothing lost, nothing held twice."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moesim
from moesim.cost.footprint import Footprint
from moesim.engine.array.engine import ArrayEngine
from moesim.engine.batch.seats import GONE
from moesim.engine.event.engine import EventEngine
from moesim.engine.instance import Instance
from moesim.engine.lockstep.engine import LockstepEngine
from moesim.engine.memory.ledger import Ledger
from moesim.engine.play import play
from moesim.measure.columns import FAILED, FINISHED, REJECTED, UNFINISHED, Recorder
from moesim.measure.memory import MemoryLog, Reserved
from moesim.policy.bundle import make_policy
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.spec.memory import MemorySpec

SMALL = """
model: seed-8x32
cluster: {gpu: h100, nodes: 1, gpus_per_node: 4}
routing: {name: zipf, exponent: 0.8}
workload:
  num_prompts: 24
  arrivals: {type: poisson, request_rate: 4000}
  input_len: {type: uniform, min: 1, max: 40}
  output_len: {type: uniform, min: 1, max: 24}
serving: {max_num_batched_tokens: 32, block_size: 4, kv_blocks: 18}
"""
TWO_A_RANK = {
    "cluster.gpus_per_node": 2,
    "workload.num_prompts": 4,
    "workload.arrivals": "batch",
    "workload.input_len": 16,
    "workload.output_len": 9,
    "serving.kv_blocks": 9,
    "serving.max_num_batched_tokens": 64,
    "serving.padding": "none",
}
ENGINES = {"event": EventEngine, "array": ArrayEngine, "lockstep": LockstepEngine}
RULES = {
    "plain": {},
    "swap": {"preemption": "swap"},
    "little host": {"preemption": "swap", "swap_space_bytes": 2e6},
    "longest": {"kv_allocator": "contiguous", "max_model_len": 64},
    "powers": {"kv_allocator": "contiguous", "reserve": "pow2"},
    "oracle": {"kv_allocator": "contiguous", "reserve": "exact"},
}


@cache
def parts_of(changes):
    return build(load_text(SMALL).with_(json.loads(changes)), 0)


def instance_of(rules, room=None, changes=None, engine="array", rate=None):
    """Return an instance; `room` is what micro-batches may take, in bytes of a GPU."""
    parts = parts_of(json.dumps(changes or {}))
    memory = None if rules is None else MemorySpec(**rules)
    coupling = "lockstep" if engine == "lockstep" else "queued"
    choice = "auto" if engine == "lockstep" else engine
    serving = replace(parts.serving, memory=memory, engine=choice, coupling=coupling)
    system = parts.system
    if rate is not None:
        gpu = replace(system.topology.gpu, host_bandwidth=rate)
        system = replace(system, topology=replace(system.topology, gpu=gpu))
    made = Instance(system, serving, parts.source, parts.requests, parts.policy)
    if room is not None:
        log = made.memory.log
        log.reserved = replace(log.reserved, limit=log.reserved.total + room)
    return made


def check_owners(instance):
    """Every block is a seat's, the host's or nobody's; nobody is in two places."""
    batcher = instance.batcher
    seats = batcher.seats.table[:, batcher.seats.flight != GONE]
    held = np.bincount(seats[1], seats[4], batcher.ranks)
    assert (held + batcher.pool.free == batcher.pool.blocks).all()
    assert (batcher.pool.free >= 0).all()
    waiting = [q for line in batcher.waiting.lines for q in line.tolist()]
    assert len(set(waiting)) == len(waiting)
    assert not set(waiting) & set(seats[0].tolist())
    places = batcher.places
    if places.swap:
        away = places.swap.kept
        assert set(away) <= set(waiting)
        used = [0] * batcher.ranks
        for kept in away.values():
            used[kept.rank] += kept.bytes
        assert used == places.swap.used
        assert max(used) <= places.swap.space
    if places.stretches:
        for rank, holes in enumerate(places.stretches.ranks):
            mine = seats[:, seats[1] == rank]
            lengths = {q: length for q, (_, length) in holes.held.items()}
            assert lengths == dict(zip(mine[0].tolist(), mine[4].tolist(), strict=True))


def check_requests(instance):
    """Who has arrived has ended in one way, waits, or runs."""
    status = instance.recorder.requests.status[: instance.entered]
    ended = [int((status == way).sum()) for way in (FINISHED, REJECTED, FAILED)]
    left = 0
    if not instance.dead:
        left = len(instance.batcher.waiting) + int(instance.batcher.running.sum())
    assert instance.entered == sum(ended) + left
    assert left == int((status == UNFINISHED).sum())
    assert instance.ended == sum(ended)


def watched(instance):
    """Play an instance event by event, with a look at everything after each."""
    log, ledger = instance.memory.log, instance.memory.ledger
    bound = log.reserved.limit - log.reserved.total
    while instance.ended < len(instance.requests):
        instance.clock.step()
        check_owners(instance)
        check_requests(instance)
        if instance.memory.spec.over_capacity != "ignore":
            assert ledger.level.sum(axis=0).max() <= bound
    return instance.finish()


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("flights", [1, 3])
def test_nothing_is_lost_and_nothing_is_held_twice(rules, flights):
    instance = instance_of(RULES[rules], changes={"serving.max_in_flight": flights})
    recorder = watched(instance)

    assert (recorder.requests.status != FAILED).all()
    assert (instance.batcher.pool.free == instance.batcher.pool.blocks).all()
    assert not instance.memory.ledger.held
    assert not instance.memory.ledger.level.any()
    assert not instance.batcher.outstanding.any()
    swap = instance.batcher.places.swap
    assert not swap or not any(swap.used)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from(["wait", "fail", "ignore"]),
    st.integers(0, 1_500_000),
    st.integers(1, 4),
    st.sampled_from(["array", "event", "lockstep"]),
)
def test_no_gpu_is_ever_over_its_limit(rules, way, room, flights, engine):
    instance = instance_of(
        RULES[rules] | {"over_capacity": way},
        room,
        {"serving.max_in_flight": flights, "workload.num_prompts": 12},
        engine,
    )
    recorder = watched(instance)
    log = recorder.memory
    failed = recorder.requests.status == FAILED

    assert failed.any() == (log.oom is not None)
    assert way != "ignore" or log.oom is None
    if log.oom:
        assert sum(log.oom.parts) > log.oom.limit
        assert (recorder.requests.last[failed] >= log.oom.at).all()
        assert str(log.oom).startswith("out of memory at ")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("policy", ["fifo", "oldest"])
@pytest.mark.parametrize("room", [None, 700_000])
def test_the_engine_makes_no_difference(rules, policy, room):
    found = []
    for engine in ("event", "array"):
        changes = {"serving.max_in_flight": 3, "policy": policy}
        instance = instance_of(RULES[rules], room, changes, engine)
        assert type(instance.engine) is ENGINES[engine]
        found.append(play(instance))
    one, other = found

    assert one.passes == other.passes
    assert one.requests.last.tolist() == other.requests.last.tolist()
    assert one.memory.facts() == other.memory.facts()
    assert one.digest() == other.digest()


def test_rules_that_do_nothing_change_nothing():
    """Watching, a limit never met, and a host never used cost no tick."""
    ample = {"serving.kv_blocks": 500, "serving.max_in_flight": 2}
    plain = play(instance_of(None, changes=ample))
    for rules in (
        {},
        {"over_capacity": "ignore", "capacity": 0.001},
        {"preemption": "swap"},
        {"kv_allocator": "contiguous", "reserve": "exact"},
    ):
        other = play(instance_of(rules, changes=ample))
        assert other.digest() == plain.digest()
        assert other.memory.peak.tolist() == plain.memory.peak.tolist()
    tight = play(instance_of({}))
    assert tight.digest() == play(instance_of(None)).digest()
    assert tight.requests.preemptions.any()


def computed_tokens(recorder):
    return sum(row[4] for row in recorder.passes)


def test_swapped_tokens_are_never_computed_again():
    """With room on the host each token is computed once; recomputing costs more."""
    anew = play(instance_of({}))
    swapped = play(instance_of({"preemption": "swap"}))
    some = play(instance_of({"preemption": "swap", "swap_space_bytes": 2e6}))
    given = swapped.requests.requests
    served = swapped.requests.status == FINISHED
    least = int((given.input_tokens + given.output_tokens - 1)[served].sum())

    assert anew.requests.preemptions.sum() > 0
    assert swapped.memory.swaps == swapped.requests.preemptions.sum() > 0
    assert computed_tokens(swapped) == least
    assert computed_tokens(anew) > computed_tokens(some) > least
    assert 0 < some.memory.swaps < some.requests.preemptions.sum()
    assert some.memory.host_peak <= 2e6


def test_slow_hosts_hold_passes_back_and_fast_ones_do_not():
    rules = {"preemption": "swap"}
    runs = [play(instance_of(rules, rate=rate)) for rate in (float("inf"), 1e12, 1e8)]
    waits = [run.memory.swap_waited for run in runs]

    assert waits[0] == 0
    assert runs[0].memory.swaps > 0
    assert 0 < waits[1] < waits[2]
    assert runs[0].span < runs[2].span


def test_a_pass_with_a_swapped_request_begins_when_it_is_back():
    """Ranks with two requests that cannot both go on: the younger leaves, and returns."""
    instance = instance_of({"preemption": "swap"}, changes=TWO_A_RANK, rate=1e8)
    recorder = play(instance)
    weight = recorder.memory.swapped_bytes / 4

    rows = recorder.passes
    moved = round(weight / 1e8 * 1e12)
    blocks = 4  # of the nine: 16 tokens of the younger, before it needs a fifth
    assert recorder.memory.swaps == 2
    assert weight == blocks * recorder.memory.reserved.kv_pool / 9
    # The ninth block lasts for four tokens; then one of the four has to have left.
    assert [later[1] - row[2] for row, later in pairwise(rows)] == [
        *[0] * 4,
        rows[0][2] + moved - rows[4][2],
        *[0] * 3,
        moved,
        *[0] * 7,
    ]
    assert rows[5][1] == rows[0][2] + moved > rows[4][2]


def test_waiting_passes_begin_in_turn_as_others_land():
    changes = {"serving.max_in_flight": 3, "serving.kv_blocks": 500}
    free = play(instance_of({"over_capacity": "ignore"}, changes=changes))
    most = int(free.memory.peak.max())
    alone = play(instance_of({}, changes=changes | {"serving.max_in_flight": 1}))
    room = (int(alone.memory.peak.max()) + most) // 2
    waiting = instance_of({}, room, changes)
    while waiting.ended < 24:
        waiting.clock.step()
        assert len(waiting.memory.waiting) <= 1
    held = waiting.finish()

    assert held.memory.oom is None
    assert held.memory.waits > 0
    assert held.memory.waited > 0
    assert held.memory.peak.max() <= room < most
    assert [row[0] for row in sorted(held.passes, key=lambda row: row[1])] == list(
        range(len(held.passes))
    )
    assert (held.requests.status == FINISHED).all()
    broken = play(instance_of({"over_capacity": "fail"}, room, changes))
    assert broken.memory.oom is not None


def test_peaks_are_those_of_all_that_is_in_flight(monkeypatch):
    """Against sums over everything that had begun and not landed, begin by begin."""
    seen, inside, begin = [], {}, Ledger.begin

    def note(self, number, now, need):
        inside[number] = need.bytes
        total = np.sum(list(inside.values()), axis=0)
        seen.append((now, number, total, need.layer))
        begin(self, number, now, need)

    monkeypatch.setattr(Ledger, "begin", note)
    land = Ledger.land
    monkeypatch.setattr(
        Ledger, "land", lambda self, n: (inside.pop(n), land(self, n))[1]
    )
    log = play(instance_of({}, changes={"serving.max_in_flight": 4})).memory

    for gpu in range(4):
        totals = [int(total[:, gpu].sum()) for _, _, total, _ in seen]
        now, number, parts, layer = seen[totals.index(max(totals))]
        assert log.peak[gpu] == max(totals)
        assert log.parts[:, gpu].tolist() == parts[:, gpu].tolist()
        assert (log.at[gpu], log.batch[gpu]) == (now, number)
        assert log.layer[gpu] == layer[gpu]


def test_of_equal_peaks_the_first_is_kept():
    ledger = Ledger(MemoryLog(Reserved(100, 100, 0, 0, 0), 1))
    need = Footprint(np.array([[3], [4]]), np.array([2]))
    for number, now in ((5, 10), (6, 20)):
        ledger.begin(number, now, need)
        ledger.land(number)

    assert (ledger.log.peak[0], ledger.log.at[0], ledger.log.batch[0]) == (7, 10, 5)
    assert ledger.log.layer[0] == 2
    assert ledger.excess(need).tolist() == [7 - 100]


def test_an_instance_that_dies_fails_all_and_serves_nobody_after():
    instance = instance_of({"over_capacity": "fail"}, 1, {"serving.max_in_flight": 2})
    recorder = play(instance)
    rows = recorder.requests

    assert (rows.status == FAILED).all()
    assert recorder.passes == []
    assert recorder.memory.oom.at == rows.arrival[0]
    assert (rows.last >= rows.arrival).all()
    assert rows.last.max() == recorder.span
    assert (rows.rank[1:] == -1).all()


def test_what_is_in_flight_ends_nowhere_when_the_instance_dies(monkeypatch):
    """The second micro-batch does not fit beside the first, which never lands."""
    found, excess = [], Ledger.excess

    def note(self, need):
        found.append(excess(self, need))
        return found[-1]

    changes = {
        "serving.max_in_flight": 3,
        "serving.kv_blocks": 500,
        "workload.arrivals.request_rate": 300,
    }
    alone = play(instance_of({}, changes=changes | {"serving.max_in_flight": 1}))
    monkeypatch.setattr(Ledger, "excess", note)
    instance = instance_of(
        {"over_capacity": "fail"}, int(alone.memory.peak.max()), changes
    )
    recorder = watched(instance)
    oom, rows = recorder.memory.oom, recorder.requests

    assert oom is not None
    assert instance.memory.ledger.held
    assert oom.gpu == int(found[-1].argmax())
    assert sum(oom.parts) - oom.limit == int(found[-1].max())
    assert all(row[2] <= oom.at for row in recorder.passes)
    late = rows.arrival > oom.at
    assert late.any()
    assert (rows.status[late] == FAILED).all()
    assert (rows.last[late] == rows.arrival[late]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_of_passes_that_never_end_no_wait_is_told(monkeypatch, engine):
    """As many waits as the passes that ended had jobs; three engines, one record."""
    jobs, end = [], Recorder.end_pass

    def note(self, record):
        jobs.append(int((record.slot_service > 0).sum()))
        end(self, record)

    monkeypatch.setattr(Recorder, "end_pass", note)
    changes = {
        "serving.max_in_flight": 3,
        "serving.kv_blocks": 500,
        "workload.arrivals.request_rate": 300,
    }
    room = int(play(instance_of({}, changes=changes)).memory.peak.max()) * 9 // 10
    jobs.clear()
    instance = instance_of({"over_capacity": "fail"}, room, changes, engine)
    recorder = play(instance)

    assert recorder.memory.oom is not None
    assert instance.memory.ledger.held
    assert recorder.waits.count.sum() == sum(jobs) > 0


def test_closed_loops_end_when_the_instance_dies():
    changes = {"workload.max_concurrency": 3, "workload.arrivals": "batch"}
    recorder = play(instance_of({"over_capacity": "fail"}, 1, changes))

    assert (recorder.requests.status == FAILED).all()


@pytest.mark.parametrize("policy", ["cross_layer", "blind"])
def test_policies_that_look_ahead_meet_memory_too(policy):
    for rules in ("swap", "powers"):
        instance = instance_of(
            RULES[rules], 700_000, {"policy": policy, "serving.max_in_flight": 3}
        )
        watched(instance)


def test_replications_that_are_watched_run_one_by_one():
    from moesim.engine.together.alike import lanes_of, refusal

    assert "memory" in refusal(instance_of({}))
    assert lanes_of(instance_of(None)) > 1


def test_replications_that_advance_together_have_their_own_peaks():
    given = load_text(SMALL).with_({"replications": 5, "serving.max_in_flight": 2})
    whole = moesim.run(given).gpus
    columns = [name for name in whole.columns if name.startswith("mem_")]
    for number in range(5):
        alone = moesim.run(given.with_({"seed": number, "replications": 1})).gpus
        mine = whole[whole["replication"] == number].reset_index(drop=True)
        assert mine[columns].equals(alone[columns])


def test_less_kv_memory_costs_nothing_until_it_costs_much():
    """Flat, then a cliff; preemptions only grow (inference-sim pull request 298)."""
    changes = {
        "workload.num_prompts": 80,
        "workload.output_len": 24,
        "workload.input_len": 24,
        "workload.arrivals.request_rate": 120,
        "serving.max_num_batched_tokens": 64,
    }
    blocks = [400, 120, 80, 70, 60]
    runs = [
        moesim.run(
            load_text(SMALL).with_(changes | {"serving.kv_blocks": size})
        ).summary
        for size in blocks
    ]
    tails = [run["p99_ttft_ms"] for run in runs]
    lost = [run["preemptions"] for run in runs]

    assert tails[0] == tails[1] == tails[2]
    assert tails[3] > 2 * tails[2]
    assert tails[4] > 4 * tails[2]
    assert lost[:3] == [0, 0, 0]
    assert 0 < lost[3] < lost[4]
    assert all(run["completed"] == 80 for run in runs)


def test_collapsed_routing_fills_one_gpu_and_capacity_bounds_it():
    """The fullest GPU gets up to EP times the mean of pairs (DeepEP issue 99)."""
    base = load_text(SMALL).with_(
        {
            "workload.input_len": 32,
            "workload.output_len": 1,
            "workload.arrivals": "batch",
            "serving.kv_blocks": 100,
        }
    )
    shares, least, rows = [], [], []
    for exponent in (0.0, 1.0, 2.0, 8.0):
        run = moesim.run(base.with_({"routing.exponent": exponent}))
        load = run.rank_load[0][0]
        shares.append(load.max() / load.mean())
        least.append(load.min() / load.mean())
        rows.append(int(run.gpus["mem_buffers_bytes"].max()))
    capped = moesim.run(base.with_({"routing.exponent": 8.0}), policy="capacity")

    assert shares == sorted(shares)
    assert shares[0] < 1.5
    assert 3.9 < shares[-1] <= 4
    assert least == sorted(least, reverse=True)
    assert least[-1] < 0.01
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]
    bounded = int(capped.gpus["mem_buffers_bytes"].max())
    assert bounded < rows[-1] / 2
    assert capped.summary["dropped_frac"] > 0.5


def test_a_policy_may_hold_back_what_waits_for_blocks():
    """Both waits run at the same time: the longer one counts."""

    class Late:
        def delay(self, batch, view):
            return 0.01

    made = instance_of({"preemption": "swap"}, changes=TWO_A_RANK, rate=1e8)
    made.policy = make_policy(Late())
    recorder = watched(made)
    moved = round(recorder.memory.swapped_bytes / 4 / 1e8 * 1e12)

    rows = recorder.passes
    waits = [later[1] - row[2] for row, later in pairwise(rows)]
    assert moved > 2 * 10**10
    assert sorted(waits) == [10**10] * (len(waits) - 1) + [moved]
    assert (recorder.requests.status == FINISHED).all()


def test_whole_stretches_waste_what_blocks_do_not():
    """Figure 2 of the vLLM paper: Orca (Max) below (Pow2) below (Oracle), all far below.

    Its ShareGPT traffic at a quarter of the length, and a quarter of the memory.
    """
    base = load_text(SMALL).with_(
        {
            "cluster.gpus_per_node": 2,
            "workload.num_prompts": 200,
            "workload.arrivals": "batch",
            "workload.input_len": {
                "type": "lognormal",
                "mean": 40,
                "cv": 1.5,
                "max": 256,
            },
            "workload.output_len": {
                "type": "lognormal",
                "mean": 84,
                "cv": 1,
                "max": 250,
            },
            "serving.block_size": 16,
            "serving.kv_blocks": 245,
            "serving.max_num_batched_tokens": 512,
            "memory.over_capacity": "ignore",
        }
    )
    whole = {"memory.kv_allocator": "contiguous"}
    longest, powers, oracle, paged = (
        moesim.run(base.with_(changes)).summary
        for changes in (
            whole | {"memory.max_model_len": 512},
            whole | {"memory.reserve": "pow2"},
            whole | {"memory.reserve": "exact"},
            {},
        )
    )
    used = [run["kv_used_frac_mean"] for run in (longest, powers, oracle, paged)]

    assert used == sorted(used)
    assert used[0] < 0.25 < used[1] < used[2] < 0.55 < used[3]
    assert paged["kv_used_frac_at_peak"] > 0.8
    assert paged["kv_external_frag_mean"] == longest["kv_external_frag_mean"] == 0
    assert min(powers["kv_external_frag_mean"], oracle["kv_external_frag_mean"]) > 0.02
    assert longest["preemptions"] == powers["preemptions"] == oracle["preemptions"] == 0
    ends = [run["duration"] for run in (longest, powers, oracle, paged)]
    assert ends == sorted(ends, reverse=True)
