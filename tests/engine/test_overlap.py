"""Overlap: shared experts behind dispatch, attention in two jobs; work stays the same."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moesim
from dense import load_of, system_of
from moesim.cost.attention import attention_times, kinds_of_layer
from moesim.cost.cuts import core_by_kind, shared_by_kind
from moesim.cost.pass_ import PassCost
from moesim.cost.uncontended import uncontended_seconds
from moesim.engine.event.engine import EventEngine
from moesim.engine.lockstep.engine import LockstepEngine
from moesim.engine.microbatch import TickCost
from moesim.errors import InputError
from moesim.measure.columns import PARTS
from moesim.policy.bundle import Policy
from moesim.policy.compose import SmallestKeys
from moesim.scenario.load import load_text
from moesim.spec.hardware import load_gpu
from reference import Reference
from worlds import batch_of, play_batches, random_cost, tiny_system

ATTENTION, EXPERTS, LM_HEAD, QUEUE, STRAGGLER, DISPATCH, COMBINE = range(len(PARTS))


def cut_cost(rng, cost):
    """Return the cost with parts of attention cut off, some of them very long."""
    whole = cost.attention * rng.choice([1, 8], cost.attention.shape)
    cost = replace(cost, attention=whole)
    shared = (whole * rng.random(whole.shape)).round().astype(np.int64)
    core = ((whole - shared) * rng.random(whole.shape)).round().astype(np.int64)
    core = np.where(core < whole - shared, core, 0)
    parts = {"shared": shared, "core": core}
    kept = rng.choice(["shared", "core", "both"])
    return replace(cost, **{k: v for k, v in parts.items() if kept in (k, "both")})


def draw_batches(world):
    seed, (gpus, nodes), layers, count, spread = world
    rng = np.random.default_rng(seed)
    system = tiny_system(layers, 8, gpus, nodes, experts="per_expert")
    admitted = np.sort(rng.integers(0, spread + 1, count)).tolist()
    empty = rng.choice([0.2, 0.7])
    costs = [random_cost(rng, system, empty=empty) for _ in range(count)]
    costs = [cut_cost(rng, cost) for cost in costs]
    for cost in costs:
        cost.latency[:] = costs[0].latency
    pairs = enumerate(zip(costs, admitted, strict=True))
    return system, [batch_of(cost, number, when) for number, (cost, when) in pairs]


worlds = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2)]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 40),
)


class Table:
    """An order whose keys are given."""

    def __init__(self, keys, wait_budget_s):
        self.keys, self.wait_budget_s = keys, wait_budget_s

    def key(self, batch, view):
        after = {"attention": 0, "experts": 1, "lm_head": 2}[batch.stage]
        return float(self.keys[batch.batch, 2 * batch.layer + after])


@settings(max_examples=300, deadline=None)
@given(worlds, st.integers(1, 30))
def test_events_agree_with_the_plain_account(world, budget):
    """Under keys and a wait budget, every micro-batch ends at the same tick."""
    (seed, (gpus, _), layers, count, _), (system, batches) = world, draw_batches(world)
    keys = np.random.default_rng(seed).integers(0, 3, (count, 2 * layers + 1))
    plain = Reference(gpus, budget, lambda b, segment: float(keys[b.number, segment]))

    done, recorder = play_batches(
        system, batches, Policy(order=Table(keys, budget * 1e-12))
    )

    assert done == plain.play(batches)
    assert int(recorder.waits.total.sum()) == sum(plain.waits)


@settings(max_examples=200, deadline=None)
@given(worlds, st.sampled_from([EventEngine, LockstepEngine]))
def test_cutting_changes_when_and_never_how_much(world, engine):
    """Compute, useful time and port time are those of the uncut pass, on every GPU."""
    system, batches = draw_batches(world)
    empty = np.zeros((0, 0), np.int64)
    plain = [
        replace(b, cost=replace(b.cost, shared=empty, core=empty)) for b in batches
    ]

    _, cut = play_batches(system, batches, "fifo", engine)
    _, whole = play_batches(system, plain, "fifo", engine)

    assert not whole.hidden.any()
    assert (cut.parts[ATTENTION] + cut.hidden == whole.parts[ATTENTION]).all()
    assert (cut.hidden >= 0).all()
    assert (cut.parts >= 0).all()
    assert (cut.parts[EXPERTS] == whole.parts[EXPERTS]).all()
    assert (cut.useful == whole.useful).all()
    assert (cut.port_busy == whole.port_busy).all()
    assert (cut.waits.count == whole.waits.count).all()


@settings(max_examples=200, deadline=None)
@given(worlds)
def test_a_pass_alone_takes_the_closed_form_in_both_couplings(world):
    """And no GPU computes for another pass meanwhile, so nothing queues for one."""
    system, batches = draw_batches((*world[:3], 1, 0))
    names = ("attention", "useful", "experts", "tx", "rx", "tail", "latency", "shared")
    ticks = batches[0].cost
    seconds = PassCost(*(getattr(ticks, name) / 1e12 for name in names))
    wanted = round(uncontended_seconds(seconds) * 1e12)

    event, _ = play_batches(system, batches)

    assert event == [wanted]


@settings(max_examples=200, deadline=None)
@given(worlds)
def test_alone_overlap_is_never_slower_where_dispatch_outlasts_it(world):
    """Shared experts that fit behind dispatch everywhere only take time away."""
    system, (batch,) = draw_batches((*world[:3], 1, 0))
    cost = batch.cost
    room = int(cost.latency.min())
    shared = np.minimum(cost.attention, room) * cost.tx[:, 0].any(axis=(1, 2))[:, None]
    empty = np.zeros((0, 0), np.int64)
    before = replace(batch, cost=replace(cost, shared=empty, core=empty))
    behind = replace(batch, cost=replace(cost, shared=shared, core=empty))

    slow, _ = play_batches(system, [before])
    fast, recorder = play_batches(system, [behind])

    assert fast <= slow
    assert (recorder.hidden == shared.sum(axis=0)).all()


def two_gpus(**parts):
    """One layer on two GPUs; dispatch takes 5 with its latency, combine 4."""
    each = np.array([[10, 10]])
    experts = np.zeros((1, 1, 2), np.int64)
    experts[0, 0] = 7, 3
    tx = np.zeros((1, 2, 2, 2), np.int64)
    tx[0, 0, 0], tx[0, 1, 0] = 4, 3
    tail, latency = np.array([2, 2]), np.array([1, 1])
    rows = {name: np.array([part]) for name, part in parts.items()}
    return TickCost(each, each, experts, tx, tx.copy(), tail, latency, **rows)


@pytest.mark.parametrize("engine", [EventEngine, LockstepEngine])
def test_the_next_layer_waits_for_shared_experts_that_outlast_combine(engine):
    """GPU 1 has no routed experts, but 16 ticks of shared ones: 11 hide, 5 do not.

    Dispatch is in at 5, GPU 0 computes until 7, and combine is sent from 5 and from 7
    to 10, so it is in at 11. The tail runs from 16 to 18.
    """
    cost = two_gpus(shared=(0, 16))
    cost.attention[:] = 0, 16
    cost.experts[0, 0] = 2, 0
    system = tiny_system(1, 2, 2, experts="per_expert")

    done, recorder = play_batches(system, [batch_of(cost)], "fifo", engine)

    assert done == [18]
    assert recorder.hidden.tolist() == [0, 11]
    assert recorder.parts[ATTENTION].tolist() == [0, 5]


@pytest.mark.parametrize("engine", [EventEngine, LockstepEngine])
@pytest.mark.parametrize(
    ("shared", "end", "exposed"),
    [
        # 10 + 5 + 7 + 4 + 2 ticks, less what hides: all 4 of them, or 5 of 6.
        ((0, 0), 28, (0, 0)),
        ((4, 4), 24, (0, 0)),
        ((6, 6), 23, (1, 1)),
        # GPU 1 alone: its attention ends at 4, but the all-to-all waits for GPU 0.
        ((0, 6), 28, (0, 0)),
    ],
)
def test_hand_worked_shared_experts(engine, shared, end, exposed):
    """What outlasts dispatch is exposed; the slowest sender decides for all."""
    system = tiny_system(1, 2, 2, experts="per_expert")
    batch = batch_of(two_gpus(shared=shared))

    done, recorder = play_batches(system, [batch], "fifo", engine)

    assert done == [end]
    assert recorder.hidden.tolist() == [
        s - e for s, e in zip(shared, exposed, strict=True)
    ]
    kept = [10 - s + e for s, e in zip(shared, exposed, strict=True)]
    assert recorder.parts[ATTENTION].tolist() == kept


def test_another_micro_batch_runs_between_the_two_jobs_of_attention():
    """Cut 4 + 6, the second micro-batch's first job (4) runs at 4 and delays the core.

    Whole, they run 0-10 and 10-20. Cut, first jobs run 0-4 and 4-8, cores 8-14, 14-20.
    """
    system = tiny_system(1, 1, 1)
    nothing = np.zeros((1, 2, 2, 1), np.int64)
    one, jobs = np.array([[10]]), np.zeros((1, 1, 1), np.int64)
    rows = one, one, jobs, nothing, nothing, np.zeros(1, np.int64), np.array([1, 1])
    whole, cut = TickCost(*rows), TickCost(*rows, core=np.array([[6]]))

    together, _ = play_batches(system, [batch_of(whole, n) for n in range(2)])
    parted, _ = play_batches(system, [batch_of(cut, n) for n in range(2)])

    assert (together, parted) == ([10, 20], [14, 20])


def test_one_lockstep_stage_hides_each_selected_micro_batch_in_turn():
    """Two with 4 ticks each behind a joint dispatch of 9: 8 hidden, nothing exposed."""
    system = tiny_system(1, 2, 2, experts="per_expert")
    batches = [batch_of(two_gpus(shared=(4, 4)), number) for number in range(2)]
    policy = Policy(select=SmallestKeys())

    done, recorder = play_batches(system, batches, policy, LockstepEngine)

    assert recorder.hidden.tolist() == [8, 8]
    # 2 x 6 attention, 8 + 1 dispatch, 2 x 7 experts, 6 + 1 combine, 2 x 2 tails.
    assert done == [46, 46]


CUT_SHARED = "kernels.shared_experts"
CUT = {"kernels.shared_experts": "overlapped", "kernels.attention": "split"}
TWO = {"serving.max_in_flight": 2}


def deepseek(**changes):
    """Return a small decode of DeepSeek-V2-Lite, which has shared experts."""
    text = """
        model: deepseek-v2-lite
        cluster: {gpu: h100, nodes: 1, gpus_per_node: 8}
        routing: {name: uniform}
        workload: {num_prompts: 32, input_len: 64, output_len: 3}
        """
    return load_text(text).with_(changes)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shared", ["before", "overlapped"])
def test_parts_of_attention_are_parts(name, parts, shared):
    """Positive, together less than the whole; no shared part without shared experts."""
    system = replace(
        system_of(name, load_gpu("h200"), tensor_parallel=parts), shared_experts=shared
    )
    kind = kinds_of_layer(system.model)
    for tokens in (1, 300, 20000):
        load = load_of(system, tokens=tokens, attended=tokens * 500, kv_read=tokens * 9)
        whole, _, _ = attention_times(load, system)
        behind, core = (
            shared_by_kind(load, system)[kind],
            core_by_kind(load, system)[kind],
        )
        taken = core + (behind if shared == "overlapped" else 0)
        assert ((behind > 0) == (system.model.shared_width > 0)).all()
        assert (core > 0).all()
        assert (taken < whole).all()


@pytest.mark.parametrize("parts", [1, 2])
def test_shared_experts_are_what_a_model_without_them_saves(parts):
    """Their part and the attention of the model without them are the whole."""
    whole = system_of("deepseek-v3", load_gpu("h200"), tensor_parallel=parts)
    bare = replace(whole, model=replace(whole.model, shared_width=0))
    kind = kinds_of_layer(whole.model)
    for tokens in (1, 300, 20000):
        load = load_of(whole, tokens=tokens, attended=tokens * 500, kv_read=tokens * 9)
        saved = attention_times(load, whole)[0] - attention_times(load, bare)[0]
        found = shared_by_kind(load, whole)[kind]

        np.testing.assert_allclose(found, saved, rtol=1e-9)


@pytest.mark.parametrize("changes", [{CUT_SHARED: "overlapped"}, TWO | CUT])
def test_a_scenario_takes_the_event_engine_and_keeps_its_work(changes):
    """`auto` plays cut kernels event by event; bytes and compute stay the same."""
    kept = {key: value for key, value in changes.items() if key not in CUT}
    plain = moesim.run(deepseek(**kept, **{"serving.engine": "event"}))
    cut = moesim.run(deepseek(**changes))

    assert cut.manifest["engine"] == "event"
    busy, before = (result.gpus["busy_s"].to_numpy() for result in (cut, plain))
    np.testing.assert_allclose(busy, before, rtol=1e-12)
    assert cut.links["bytes"].equals(plain.links["bytes"])
    gain = plain.summary["mean_tpot_ms"] - cut.summary["mean_tpot_ms"]
    assert (gain > 0) or kept


def test_the_array_engine_refuses_cut_kernels():
    """Asked for by name it says which kernel it cannot play."""
    for key, value in CUT.items():
        with pytest.raises(InputError, match=f"{key} is {value}"):
            moesim.run(deepseek(**TWO, **{key: value, "serving.engine": "array"}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernels.shared_experts": "overlapped"}, "the model has no shared experts"),
        ({"kernels.attention": "split"}, "does nothing with serving.max_in_flight 1"),
        (
            {
                "kernels.attention": "split",
                "serving.max_in_flight": 2,
                "serving.coupling": "lockstep",
            },
            "does nothing in lockstep",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(changes, said):
    """A key that changes nothing is a mistake, and the message says why."""
    with pytest.raises(InputError, match=said):
        deepseek(model="mixtral-8x7b", **changes)
