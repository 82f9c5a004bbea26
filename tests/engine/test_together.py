"""Replications that advance together are, each of them, the run that they are alone."""

from dataclasses import replace

import numpy as np
import pytest
from pandas.testing import assert_frame_equal

import moesim
from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.engine.together.alike import lanes_of, refusal
from moesim.engine.together.play import play_together
from moesim.errors import SimulationError
from moesim.policy.bundle import make_policy
from moesim.scenario.build import build, builds
from moesim.scenario.load import load_text

SMALL = """
model: seed-8x32
cluster: {gpu: h100, nodes: 1, gpus_per_node: 8}
routing: {name: zipf, exponent: 0.8}
workload:
  num_prompts: 24
  arrivals: {type: poisson, request_rate: 4000}
  input_len: {type: uniform, min: 1, max: 40}
  output_len: {type: uniform, min: 1, max: 5}
serving: {max_num_batched_tokens: 32}
policy: fifo
"""
CASES = {
    "plain": {},
    "two in flight": {"serving.max_in_flight": 2},
    "eight in flight": {
        "serving.max_in_flight": 8,
        "serving.max_num_batched_tokens": 4,
    },
    "uniform": {"routing": "uniform", "serving.max_in_flight": 3},
    "rush hour": {
        "routing": {"name": "rush_hour", "hot": [{"layer": 2, "expert": 5}]},
        "serving.max_in_flight": 2,
    },
    "latent": {"routing": {"name": "latent"}},
    "preempted": {
        "serving.kv_blocks": 12,
        "serving.block_size": 4,
        "serving.max_in_flight": 2,
        "workload.output_len": {"type": "constant", "value": 12},
    },
    "rejected": {"serving.kv_blocks": 8, "serving.block_size": 4},
    "static": {"serving.mode": "static", "serving.max_num_seqs": 2},
    "prefill only": {
        "serving.mode": "prefill_only",
        "serving.max_in_flight": 4,
        "workload.output_len": 1,
    },
    "uncut prompts": {"serving.chunked_prefill": False, "serving.max_in_flight": 2},
    "closed loop": {"workload.max_concurrency": 6, "serving.max_in_flight": 2},
    "batch": {"workload.arrivals": {"type": "batch"}, "serving.max_in_flight": 2},
    "no padding": {"serving.padding": "none", "serving.max_in_flight": 2},
    "routed padding": {"serving.padding": "routed", "serving.max_in_flight": 2},
    "least tokens": {"serving.assign": "least_tokens", "serving.max_in_flight": 2},
    "replicas": {"placement.redundant_experts": 8, "serving.max_in_flight": 2},
    "near replicas": {
        "placement.redundant_experts": 8,
        "serving.replica": "local_first",
    },
    "per expert": {"kernels.experts": "per_expert", "serving.max_in_flight": 3},
    "per expert, alone": {"kernels.experts": "per_expert"},
    "two nodes": {
        "cluster.nodes": 2,
        "cluster.gpus_per_node": 4,
        "serving.max_in_flight": 3,
    },
    "two nodes, alone": {"cluster.nodes": 2, "cluster.gpus_per_node": 4},
    "low latency": {
        "kernels.dispatch": "low_latency",
        "cluster.nodes": 4,
        "cluster.gpus_per_node": 2,
        "serving.max_in_flight": 2,
    },
    "straggler": {"cluster.speed": {3: 0.5}, "serving.max_in_flight": 2},
    "tensor parallel": {"cluster.tensor_parallel": 2, "serving.max_in_flight": 2},
    "warmup": {"warmup": "2ms", "slo": {"ttft": "3ms"}},
    "oldest, alone": {"policy": "oldest"},
    "per layer, alone": {"policy": "per_layer"},
    "oldest": {"policy": "oldest", "serving.max_in_flight": 2},
    "cross layer": {"policy": "cross_layer", "serving.max_in_flight": 2},
    "lockstep": {"serving.coupling": "lockstep", "serving.max_in_flight": 2},
    "events": {"serving.engine": "event", "serving.max_in_flight": 2},
}
APART = {"oldest", "cross layer", "lockstep", "events"}
"""Cases that cannot advance together, and must come out right all the same."""
TABLES = ("requests", "gaps", "passes", "experts", "gpus", "links")


def small(changes):
    return load_text(SMALL).with_(changes)


def instances_of(scenario, count):
    seeds = range(scenario.seed, scenario.seed + count)
    return [
        Instance(p.system, p.serving, p.source, p.requests, p.policy)
        for p in builds(scenario, seeds)
    ]


def rows_of(frame, replication):
    """Return the rows of one replication, numbered as if it were the first."""
    mine = frame[frame["replication"] == replication]
    return mine.assign(replication=0).reset_index(drop=True)


def check_same(scenario, count):
    """Demand that every replication is the run with its own seed."""
    together = moesim.run(scenario, replications=count)
    digests = together.manifest["event_digests"]
    for number in range(count):
        alone = moesim.run(scenario, seed=scenario.seed + number, replications=1)
        assert digests[number] == alone.manifest["event_digests"][0]
        assert together.summaries[number] == alone.summaries[0]
        for table in TABLES:
            mine = rows_of(getattr(together.tables, table), number)
            assert_frame_equal(mine, getattr(alone.tables, table))
        assert (together.traffic[number] == alone.traffic[0]).all()
        assert (together.rank_load[number] == alone.rank_load[0]).all()


@pytest.mark.parametrize("case", CASES)
def test_each_replication_is_the_run_with_its_seed(case):
    scenario = small(CASES[case])
    reason = refusal(instances_of(scenario, 1)[0])

    assert bool(reason) == (case in APART), reason
    check_same(scenario, 3)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_any_number_of_replications(count, in_flight):
    check_same(small({"serving.max_in_flight": in_flight, "num_prompts": 8}), count)


def test_groups_are_bounded(monkeypatch):
    """Replications that exceed one group begin another; nobody is lost or doubled."""
    monkeypatch.setattr("moesim.engine.together.alike.MOST_LANES", 2)
    check_same(small({"num_prompts": 6}), 5)
    instance = instances_of(small({}), 1)[0]
    assert lanes_of(instance) == 2
    monkeypatch.setattr("moesim.engine.together.alike.MOST_GPUS", 8)
    assert lanes_of(instance) == 1


def test_prices_are_asked_for_in_bounded_pieces(monkeypatch):
    """A piece holds one micro-batch at least; cutting makes no difference."""
    monkeypatch.setattr("moesim.engine.together.play.MOST_CHOICES", 40 * 16)
    check_same(small({"serving.max_in_flight": 3}), 4)
    monkeypatch.setattr("moesim.engine.together.play.MOST_CHOICES", 0)
    check_same(small({"num_prompts": 6}), 3)


def test_a_replayed_log_is_read_once(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    ids = rng.random((40, 8, 32)).argsort(axis=2)[:, :, :2].astype(np.uint8)
    path = tmp_path / "log.npz"
    np.savez(path, expert_ids=ids, seq_lens=np.array([25, 15]))
    scenario = small({"routing": {"name": "log", "path": str(path)}})
    check_same(scenario, 3)

    reads = []
    from moesim.routing import replay

    read = replay.read_whole_numbers
    monkeypatch.setattr(
        replay, "read_whole_numbers", lambda *a: reads.append(a) or read(*a)
    )
    made = list(builds(scenario, range(4)))
    assert len(made) == 4
    assert len(reads) == 1


def test_parts_built_in_a_row_are_those_built_alone():
    scenario = small({"workload.arrivals": {"type": "poisson", "request_rate": 10}})
    for seed, parts in enumerate(builds(scenario, range(3))):
        alone = build(scenario, seed)
        assert parts.system == alone.system
        assert parts.source == alone.source
        assert (parts.requests.arrival_s == alone.requests.arrival_s).all()


def test_progress_covers_all_replications():
    told = []
    moesim.run(
        small({"num_prompts": 6}),
        replications=3,
        progress=lambda label, share: told.append((label, share)),
    )
    assert told[0] == ("fifo 1-3/3", 0.0)
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_an_interrupt_comes_through(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("moesim.engine.together.play.INTERVAL_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        play_together(instances_of(small({}), 2), stop)


def test_a_replication_that_is_stuck_is_told_of():
    """One that can never end must not hold up the others, nor pass for ended."""
    instances = instances_of(small({"num_prompts": 6}), 3)
    instances[1].batcher.draft = lambda *_: None
    with pytest.raises(SimulationError, match="nothing can happen"):
        play_together(instances)


class Remembers:
    """A composition that may remember what it saw."""

    def sequence(self, waiting, view):
        return np.arange(len(waiting.request))


def test_roles_of_the_users_own_run_one_by_one():
    parts = build(small({}), 0)
    policy = make_policy(Remembers())
    given = parts.system, parts.serving, parts.source, parts.requests
    instances = [Instance(*given, policy) for _ in range(2)]

    assert "may remember" in refusal(instances[0])
    assert lanes_of(instances[0]) == 1
    first, second = play_together(instances)
    assert first.digest() == second.digest()


def test_a_budget_of_nothing_is_first_come_first_served():
    parts = build(small({"serving.max_in_flight": 2}), 0)
    given = parts.system, parts.serving, parts.source, parts.requests
    policy = make_policy({"name": "per_layer", "wait_budget": "0s"})

    assert not refusal(Instance(*given, policy))
    patient = replace(policy, order=replace(policy.order, wait_budget_s=1.0))
    assert "keys" in refusal(Instance(*given, patient))


@pytest.mark.parametrize("engine", ["event", "array"])
def test_who_comes_as_a_pass_ends_comes_first(engine):
    """Ranks are chosen before the pass is taken back, whoever tells of its end."""
    scenario = small({"num_prompts": 8, "serving.assign": "least_tokens"})
    parts = build(scenario, 0)
    requests = replace(
        parts.requests,
        arrival_s=np.array([0.0] * 6 + [1.0] * 2),
        input_tokens=np.array([3, 2, 9, 4, 1, 5, 2, 2]),
        output_tokens=np.ones(8, np.int64),
    )
    serving = replace(parts.serving, max_num_batched_tokens=4, engine=engine)

    def instance(requests, engine):
        given = replace(serving, engine=engine)
        return Instance(parts.system, given, parts.source, requests, parts.policy)

    end_s = play(instance(requests, "event")).passes[0][2] / 1e12
    late = replace(requests, arrival_s=np.array([0.0] * 6 + [end_s - 1e-9, end_s]))
    plain = play(instance(late, "event"))
    assert plain.requests.arrival[-1] == plain.passes[0][2]
    assert play(instance(late, engine)).digest() == plain.digest()
    both = play_together([instance(late, "auto") for _ in range(2)])
    assert [recorder.digest() for recorder in both] == [plain.digest()] * 2
