"""Laws that hold whatever the scenario: run on every shipped one, cut short."""

import os
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.engine.instance import Instance
from moesim.measure.columns import FINISHED, REJECTED
from moesim.policy.bundle import Setting, make_policy
from moesim.scenario.build import build

FOLDER = Path(__file__).parents[2] / "scenarios"
SCENARIOS = sorted(FOLDER.glob("*.yaml"))
POLICIES = ["fifo", "oldest", "per_layer", "cross_layer"]


def cut(path, prompts=12):
    """Return a shipped scenario with few requests, or skip when its data is not here."""
    if "${MOESIM_DATA}" in path.read_text() and "MOESIM_DATA" not in os.environ:
        pytest.skip("needs MOESIM_DATA")
    scenario = moesim.load(path).with_(num_prompts=prompts)
    if scenario.serving.mode == "prefill_only":
        return scenario
    return scenario.with_(output_len={"type": "uniform", "min": 1, "max": 8})


def instance_of(scenario, policy=None):
    parts = build(scenario, scenario.seed)
    setting = Setting(
        scenario.serving.assign, scenario.serving.replica, scenario.serving.stage_width
    )
    chosen = make_policy(policy or parts.policy, setting)
    return Instance(parts.system, parts.serving, parts.source, parts.requests, chosen)


def play(instance, look=lambda instance: None):
    """Run to the end; `look` at the instance after every instant."""
    clock = instance.clock
    while clock.peek() != float("inf"):
        now = clock.peek()
        while clock.peek() == now:
            clock.step()
        look(instance)
    return instance.finish()


VARIANTS = {
    "lockstep": {"serving.coupling": "lockstep", "serving.stage_width": 1},
    "low_latency": {"kernels.dispatch": "low_latency", "kernels.experts": "per_expert"},
    "replicas": {"placement.redundant_experts": 8, "serving.replica": "local_first"},
    "padding": {"serving.padding": "none", "serving.engine": "event"},
}
"""What no shipped scenario is, tried on the rush hour."""
WORLDS = [(path.stem, path, {}) for path in SCENARIOS] + [
    (name, FOLDER / "seed_rush_hour.yaml", changes)
    for name, changes in VARIANTS.items()
]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: world[0])
def scenario(request):
    _, path, changes = request.param
    return cut(path).with_(changes)


@pytest.fixture(scope="module")
def played(scenario):
    instance = instance_of(scenario)
    return instance, play(instance)


def test_every_request_ends_exactly_once(played):
    """Nothing is lost: a request is finished or rejected, and all its tokens exist."""
    instance, recorder = played
    rows = recorder.requests
    finished = rows.status == FINISHED

    assert np.isin(rows.status, (FINISHED, REJECTED)).all()
    assert (rows.generated[finished] == instance.batcher.outputs[finished]).all()
    assert (rows.generated[~finished] == 0).all()
    assert instance.in_flight == 0
    assert not len(instance.batcher.seats.ready())


def test_tokens_are_conserved_layer_by_layer(played):
    """Every token computed meets exactly k experts in every MoE layer."""
    _, recorder = played
    tokens = sum(row[4] for row in recorder.passes)
    per_layer = recorder.slot_tokens.sum(axis=(1, 2))

    assert tokens > 0
    assert (per_layer == tokens * recorder.system.model.top_k).all()
    assert recorder.source_tokens.sum() == tokens


def test_each_sequence_is_computed_once_unless_preempted(played):
    """Tokens computed are the prompts and all generated tokens but the last."""
    instance, recorder = played
    if recorder.requests.preemptions.any():
        pytest.skip("recomputing is extra work")
    rows = recorder.requests
    finished = rows.status == FINISHED
    prompt = rows.requests.input_tokens[finished]

    computed = int((prompt + rows.generated[finished] - 1).sum())
    assert sum(row[4] for row in recorder.passes) == computed
    assert instance.batcher.outstanding.sum() == 0


def test_bytes_are_conserved(played):
    """What leaves the ports reaches ports; combine is dispatch the other way."""
    _, recorder = played
    sent, received = recorder.bytes
    ratio = sent[1].sum() / sent[0].sum() if sent[0].sum() else 0.0

    np.testing.assert_allclose(sent.sum(axis=-1), received.sum(axis=-1))
    np.testing.assert_allclose(sent[1], ratio * received[0])
    np.testing.assert_allclose(recorder.traffic[1], ratio * recorder.traffic[0].T)
    np.testing.assert_allclose(recorder.traffic.sum(axis=2), sent.sum(axis=1))


def test_kv_blocks_come_back(played):
    """No block is owned at the end, and none was ever owed."""
    instance, recorder = played
    pool = instance.batcher.pool

    assert (pool.free == pool.blocks).all()
    assert not instance.batcher.running.any()
    assert (recorder.kv_peak <= pool.blocks).all()


def test_causes_come_before_effects(played):
    """Arrival, admission, first token and end follow each other, gaps are positive."""
    _, recorder = played
    rows = recorder.requests
    done = rows.status == FINISHED

    assert (rows.arrival[done] <= rows.admitted[done]).all()
    assert (rows.admitted[done] < rows.first[done]).all()
    assert (rows.first[done] <= rows.finish[done]).all()
    assert (rows.gaps.part(slice(None))[1] > 0).all()


def test_parts_of_all_passes_sum_to_their_time(played):
    """On every GPU the parts of its passes add up to their durations, to the tick."""
    _, recorder = played
    durations = sum(row[2] - row[1] for row in recorder.passes)

    assert (recorder.parts.sum(axis=0) == durations).all()
    assert (recorder.parts >= 0).all()
    assert (recorder.useful <= recorder.parts[:3].sum(axis=0)).all()


def test_little_s_law_holds_on_the_path(scenario):
    """The area under the number in the system is the sum of sojourn times, exactly."""
    instance = instance_of(scenario)
    area, last, inside = 0, 0, 0

    def look(now):
        nonlocal area, last, inside
        area += inside * (now.clock.now - last)
        last, inside = now.clock.now, now.entered - now.ended

    recorder = play(instance, look)
    rows = recorder.requests

    assert area == int((rows.finish - rows.arrival).sum())


def test_no_server_idles_with_work(scenario):
    """After each instant, whoever has jobs waiting is serving one."""
    if scenario.serving.coupling != "queued":
        pytest.skip("no queues in lockstep")
    few = {"workload.num_prompts": 8, "serving.engine": "event"}
    instance = instance_of(scenario.with_(few))
    ports = [s for side in (instance.engine.tx, instance.engine.rx) for s in side]
    servers = [*instance.engine.gpu, *(server for side in ports for server in side)]

    def look(_):
        assert all(s.busy for s in servers if any(not e[-1].served for e in s.by_key))

    play(instance, look)


def test_every_policy_meets_the_same_routes(scenario):
    """Policies change when tokens run, never which experts they use."""
    loads, finished = [], []
    for policy in POLICIES:
        recorder = play(instance_of(scenario, policy))
        if recorder.requests.preemptions.any():
            pytest.skip("recomputing is extra work")
        loads.append(recorder.slot_tokens)
        finished.append(recorder.requests.status)

    for load, status in zip(loads[1:], finished[1:], strict=True):
        assert (status == finished[0]).all()
        assert (load == loads[0]).all()


def test_policies_make_a_difference_somewhere():
    """The laws that compare policies can fail: on the rush hour no two are the same."""
    scenario = cut(FOLDER / "seed_rush_hour.yaml", 60)
    digests = [play(instance_of(scenario, policy)).digest() for policy in POLICIES]

    assert len(set(digests)) == len(POLICIES)


def test_no_wait_budget_is_fifo_to_the_tick(scenario):
    """`cross_layer` with a budget of nothing goes through the same events as `fifo`."""
    plain = play(instance_of(scenario, "fifo"))
    cross = play(instance_of(scenario, {"name": "cross_layer", "wait_budget": 0}))

    assert cross.digest() == plain.digest()


def test_the_same_seed_is_the_same_run(scenario, played):
    """Playing again gives the same digest; another seed does not, if chance matters."""
    again = play(instance_of(scenario))
    other = play(instance_of(scenario.with_(seed=scenario.seed + 1)))

    assert again.digest() == played[1].digest()
    drawn = scenario.routing["name"] != "log"
    assert (other.digest() != again.digest()) == drawn
