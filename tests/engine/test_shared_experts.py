"""Shared experts as one more expert of every GPU: at home, or where least is to do."""

from collections import Counter
from dataclasses import astuple, replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import moesim
from moesim.cost.attention import attention_times
from moesim.cost.buffers import exchange_bytes, received
from moesim.cost.even import EvenBatch, even_load, mean_price
from moesim.cost.exchange import exchange_load
from moesim.cost.experts import expected_expert_time, expert_time
from moesim.cost.partial import partial_load
from moesim.cost.pass_ import PassLoad
from moesim.cost.price import price
from moesim.cost.weights import resident_parts
from moesim.engine.assemble.counted import CountedLoad
from moesim.engine.assemble.tariff import Tariff
from moesim.engine.assemble.tokens import TokenLoad
from moesim.engine.draft import Draft
from moesim.engine.instance import Instance
from moesim.engine.microbatch import quantise
from moesim.engine.play import play
from moesim.errors import InputError
from moesim.measure.moves import cells_of, told
from moesim.measure.shared import SharedLog
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.outlook import Outlook
from moesim.policy.rebalance import Vllm
from moesim.policy.shares import level
from moesim.policy.view import Foresight
from moesim.policy.waterfill import poured, quotas, waterfilled, with_shared
from moesim.routing.source import TokenKeys
from moesim.routing.synthetic import Uniform
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import load_gpu
from moesim.spec.placement import Placement, contiguous
from moesim.spec.system import System
from moesim.spec.topology import NIC, NVLINK, Topology
from worlds import GPU, tiny_model, tiny_system

heaps = st.tuples(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 5),
)


def put(heights, unit, count):
    """Return how many units lie where, and the heap that results, one by one."""
    found, tops = [0] * len(heights), list(heights)
    for _ in range(count):
        lowest = tops.index(min(tops))
        found[lowest] += 1
        tops[lowest] += unit
    return found, tops


@settings(max_examples=300, deadline=None)
@given(heaps)
def test_pouring_is_putting_each_on_the_lowest(heap):
    """Of equals on the first; whatever the unit and however many."""
    heights, unit, count = heap

    found = poured(np.array([heights]), unit, np.array([count]))

    assert found[0].tolist() == put(heights, unit, count)[0]


@settings(max_examples=100, deadline=None)
@given(heaps)
def test_no_other_way_has_a_lower_maximum(heap):
    """All ways of sharing out the units, tried one by one."""
    heights, unit, count = heap
    ways = product(range(count + 1), repeat=len(heights))
    least = min(
        max(h + unit * n for h, n in zip(heights, way, strict=True))
        for way in ways
        if sum(way) == count
    )

    found = poured(np.array([heights]), unit, np.array([count]))

    assert found.sum() == count
    assert (np.array(heights) + unit * found[0]).max() == least


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_pouring_many_rows_at_once(seed):
    """Each row for itself, and with units of 1 as high as `level` pours tokens."""
    rng = np.random.default_rng(seed)
    heights, count = rng.integers(0, 10**6, (5, 7)), rng.integers(0, 10**6, 5)

    found = poured(heights, 2048, count)
    ones = poured(heights, 1, count)

    for row, each, number in zip(heights, found, count, strict=True):
        assert (poured(row[None], 2048, number[None])[0] == each).all()
    every = np.ones(heights.shape, bool)
    levelled = heights + level(heights, count, every)
    assert ((heights + ones).max(axis=1) == levelled.max(axis=1)).all()


def fusing(nodes, per_node, width, kernel, shared="waterfill", wide=128):
    """Return a system of which only the slots, the cluster and widths matter."""
    gpus = nodes * per_node
    system = tiny_system(gpus=1)
    return replace(
        system,
        model=replace(tiny_model(), shared_width=wide),
        topology=Topology(GPU, nodes, per_node),
        placement=Placement(np.arange(gpus * width)[None], gpus),
        dispatch=kernel,
        shared_experts=shared,
    )


def draw(seed, shape, tokens, layers, options):
    kernel, wide = options
    system = fusing(*shape, kernel, wide=wide)
    rng = np.random.default_rng(seed)
    total = system.placement.phy2log.shape[1]
    crowd = rng.permutation(total)[: rng.integers(1, total + 1)]
    order = np.argsort(rng.random((tokens, layers, len(crowd))), axis=2)
    slots = crowd[order[..., : min(3, len(crowd))]]
    source = rng.integers(0, system.topology.gpus, tokens)
    return slots, source, system, rng.random(slots.shape) < 0.7


passes = st.builds(
    draw,
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    tokens=st.integers(0, 14),
    layers=st.integers(1, 3),
    options=st.tuples(
        st.sampled_from(["normal", "low_latency"]), st.sampled_from([64, 128, 300])
    ),
)


def sent(gpu, source, system):
    """Return the GPU of each token's shared expert in one layer, found one by one."""
    gpus, per_node = system.topology.gpus, system.topology.gpus_per_node
    model, own = system.model, Counter(source)
    routed = Counter(g for chosen in gpu for g in chosen if g >= 0)
    heights = [routed[g] * model.expert_width for g in range(gpus)]
    quota, _ = put(heights, model.shared_width, len(source))
    room = [max(0, quota[g] - own[g]) for g in range(gpus)]
    found, stayed, leave = list(source), Counter(), []
    for token, home in enumerate(source):
        stayed[home] += 1
        if stayed[home] > quota[home]:
            leave.append(token)
    choices = range(len(gpu[0]) if gpu else 0)
    rounds = [lambda t, j=j: [g for g in (gpu[t][j],) if g >= 0] for j in choices]
    rounds.append(
        lambda t: [g for g in range(gpus) if g // per_node == source[t] // per_node]
    )
    rounds.append(lambda t: range(gpus))
    for asked in rounds:
        for token in list(leave):
            free = [g for g in asked(token) if room[g]]
            if free:
                found[token] = free[0]
                room[free[0]] -= 1
                leave.remove(token)
    assert not leave
    return found


@settings(max_examples=300, deadline=None)
@given(passes, st.booleans())
def test_every_token_is_sent_where_plain_loops_send_it(drawn, limited):
    """Home first, then where it goes anyway, then its node, then anywhere."""
    slots, source, system, kept = drawn
    gpu = slots // system.placement.slots_per_gpu
    gpu = np.where(kept, gpu, -1) if limited else gpu

    if len(source):
        found = waterfilled(gpu, source, system)
        for layer in range(slots.shape[1]):
            plain = sent(gpu[:, layer].tolist(), source.tolist(), system)
            assert found[:, layer].tolist() == plain


@settings(max_examples=100, deadline=None)
@given(passes)
def test_instances_side_by_side_keep_their_tokens(drawn):
    """Two of them at once are each one alone."""
    slots, source, system, _ = drawn
    gpus, total = system.topology.gpus, system.placement.phy2log.shape[1]
    both = replace(
        system,
        topology=replace(system.topology, nodes=2 * system.topology.nodes),
        placement=Placement(np.arange(2 * total)[None], 2 * gpus),
    )
    back = slots[::-1], source[::-1]

    found = with_shared(
        np.concatenate([slots, back[0] + total]),
        np.concatenate([source, back[1] + gpus]),
        both,
        blocks=2,
    )

    one, other = (with_shared(*each, system) for each in ((slots, source), back))
    shift = gpus * system.jobs_per_gpu
    assert (found == np.concatenate([one, other + shift])).all()


def hops_of(wanted, home, system):
    """Yield (port, sender, receiver) of the copies of one token in one layer."""
    per_node = system.topology.gpus_per_node
    if system.dispatch == "low_latency":
        for gpu in wanted:
            yield NVLINK if gpu // per_node == home // per_node else NIC, home, gpu
        return
    for node in {gpu // per_node for gpu in wanted}:
        here = home
        if node != home // per_node:
            here = node * per_node + home % per_node
            yield NIC, home, here
        for gpu in {g for g in wanted if g // per_node == node} - {here}:
            yield NVLINK, here, gpu


@settings(max_examples=200, deadline=None)
@given(passes, st.sampled_from(["fused", "waterfill"]), st.booleans())
def test_copies_are_those_of_one_more_choice(drawn, shared, limited):
    """With the rules of the kernel; every token has its shared expert just once."""
    slots, source, system, kept = drawn
    system = replace(system, shared_experts=shared)
    kept = kept if limited else np.ones_like(kept)
    whole = with_shared(slots, source, system, kept if limited else None)
    layers, gpus, width = slots.shape[1], system.topology.gpus, system.jobs_per_gpu
    matrix = np.zeros((2, gpus, gpus), int)
    for token, home in enumerate(source.tolist()):
        for layer in range(layers):
            wanted = [*(slots[token, layer] // (width - 1))[kept[token, layer]]]
            wanted.append(whole[token, layer, -1] // width)
            for port, sender, receiver in hops_of(wanted, home, system):
                matrix[port, sender, receiver] += 1

    ones = np.ones((*kept.shape[:2], 1), bool)
    load = partial_load(whole, np.concatenate([kept, ones], axis=2), source, system)
    if not limited:
        for ours, theirs in zip(
            astuple(exchange_load(whole, source, system))[:4],
            astuple(load)[:4],
            strict=True,
        ):
            assert (ours == theirs).all()

    assert (load.traffic == matrix).all()
    assert (load.slots[:, -1].sum(axis=1) == len(source)).all()
    assert load.slots[:, :-1].sum() == kept.sum()
    served = np.where(kept, slots // (width - 1), -1)
    for layer in range(layers if len(source) else 0):
        plain = source.tolist()
        if shared == "waterfill":
            plain = sent(served[:, layer].tolist(), plain, system)
        assert (whole[:, layer, -1] == np.array(plain) * width + width - 1).all()


def priced_system(gpus, nodes, speed=(), **options):
    model = load_model("deepseek-v2-lite")
    placement = contiguous(model.moe_layer_count, model.experts, gpus, 0)
    topology = Topology(load_gpu("h100"), nodes, gpus // nodes, speed)
    return System(model, topology, placement, **options)


def random_load(system, seed, most):
    """Return a load of any figures: prices need not be of a pass that could be."""
    rng = np.random.default_rng(seed)
    layers, gpus = system.model.moe_layer_count, system.topology.gpus
    columns = [rng.integers(0, most, gpus) * (rng.random(gpus) < 0.7) for _ in range(5)]
    shapes = (layers, system.jobs_per_gpu, gpus), (layers, 2, gpus), (layers, 2, gpus)
    counts = [rng.integers(0, most, s) * (rng.random(s) < 0.6) for s in shapes]
    return PassLoad(*columns, *counts)


@pytest.mark.parametrize("experts", ["grouped", "per_expert"])
@pytest.mark.parametrize("speed", [(), (1.0, 0.5) * 4])
def test_looked_up_prices_are_those_computed(experts, speed):
    """The last slot is as wide as all shared experts; the first active pays a launch."""
    system = priced_system(8, 2, speed, experts=experts)
    system = replace(system, shared_experts="waterfill")
    for seed, most in ((1, 2), (2, 40), (3, 5000)):
        load = random_load(system, seed, most)

        found, wanted = Tariff(system).price(load), quantise(price(load, system))

        for ours, theirs in zip(astuple(found), astuple(wanted), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_shared_expert_costs_an_expert_of_its_width():
    """Weights read once, arithmetic and activations of its own width, one launch."""
    system = priced_system(8, 1, experts="per_expert")
    model, gpu = system.model, system.topology.gpu
    wide = model.shared_width
    bare = replace(system, model=replace(model, expert_width=wide, expert_bias=False))
    fused = replace(system, shared_experts="fused")
    tokens = np.zeros((3, system.placement.slots_per_gpu + 1, 8), int)
    tokens[:, -1], tokens[0, 0] = [[1], [300], [9000]], 5

    found = expert_time(tokens, fused)
    expected = expected_expert_time(tokens, fused)

    assert wide == 2 * model.expert_width
    assert gpu.launch_s > 0
    alike = expert_time(tokens[:, -1:], bare)
    np.testing.assert_allclose(found[:, -1:], alike, rtol=1e-12)
    np.testing.assert_allclose(found[0, :1], expert_time(tokens[0, :1], system))
    routed = tokens[:, :-1] + 300
    assert (expert_time(routed, fused) == expert_time(routed, system)).all()
    np.testing.assert_allclose(expected[1:, -1], found[1:, -1], rtol=1e-9)


@pytest.mark.parametrize("parts", [1, 2])
def test_attention_is_that_of_a_model_without_shared_experts(parts):
    """Not even their all-reduce is left; weights lie whole on each GPU."""
    system = priced_system(8, 1, tensor_parallel=parts)
    bare = replace(system, model=replace(system.model, shared_width=0))
    fused = replace(system, shared_experts="fused")
    load = random_load(system, 7, 900)

    for ours, theirs in zip(
        attention_times(load, fused), attention_times(load, bare), strict=True
    ):
        assert (ours == theirs).all()
    assert resident_parts(fused).shared == parts * resident_parts(system).shared


SMALL = """
model: deepseek-v2-lite
cluster: {gpu: h100, nodes: 2, gpus_per_node: 4}
routing: {name: lognormal, sigma: 1.0}
workload:
  num_prompts: 12
  arrivals: {type: poisson, request_rate: 2000}
  input_len: {type: uniform, min: 1, max: 60}
  output_len: {type: uniform, min: 1, max: 4}
serving: {max_in_flight: 2, max_num_batched_tokens: 64}
"""
KIND = "kernels.shared_experts"
CASES = {
    "plain": {},
    "low latency": {"kernels.dispatch": "low_latency"},
    "per expert": {"kernels.experts": "per_expert"},
    "copies": {"placement.redundant_experts": 8, "serving.replica": "least_loaded"},
    "tensor parallel": {"cluster.tensor_parallel": 2},
    "straggler": {"cluster.speed": {3: 0.5}},
    "routed padding": {"serving.padding": "routed"},
    "alone": {"serving.max_in_flight": 1},
}


def small(shared, **changes):
    return load_text(SMALL).with_({KIND: shared, **changes})


@pytest.mark.parametrize("shared", ["fused", "waterfill"])
@pytest.mark.parametrize("case", CASES)
def test_engines_agree_to_the_tick(shared, case):
    """Whatever the order; and replications together are each the run alone."""
    scenario = small(shared, **CASES[case])
    for policy in ("fifo", {"name": "cross_layer", "hold": 1}):
        array, event = (
            moesim.run(scenario.with_({"serving.engine": engine}), policy=policy)
            for engine in ("array", "event")
        )
        assert array.manifest["event_digests"] == event.manifest["event_digests"]
        assert_frame_equal(array.experts, event.experts)
    together = moesim.run(scenario, replications=2)
    for number in range(2):
        alone = moesim.run(scenario, seed=number)
        assert together.summaries[number] == alone.summaries[0]
        assert (
            together.manifest["event_digests"][number]
            == alone.manifest["event_digests"][0]
        )


@pytest.mark.parametrize("shared", ["fused", "waterfill"])
@pytest.mark.parametrize("changes", [{}, {"serving.coupling": "lockstep"}])
def test_tables_are_of_routed_experts_and_time_is_of_all(shared, changes):
    """Tokens and jobs as before; time of experts has the shared ones besides."""
    before = moesim.run(small("before", **changes))
    found = moesim.run(small(shared, **changes))
    summary = found.summary

    assert len(found.experts) == len(before.experts)
    assert (found.experts["tokens"] == before.experts["tokens"]).all()
    routed = found.experts["service_s"].sum()
    assert found.gpus["experts_s"].sum() > 1.05 * routed
    assert found.gpus["attention_s"].sum() < before.gpus["attention_s"].sum()
    assert (summary["shared_away_frac"] > 0.2) == (shared == "waterfill")
    assert "shared_away_frac" not in before.summary
    assert found.experts["jobs"].sum() <= before.experts["jobs"].sum() * 1.1


def passed(slots, tokens, padding=(0, 0)):
    """Return what is written down of a pass, as far as it matters here."""
    return SimpleNamespace(
        slot_tokens=np.array(slots),
        source_tokens=np.array(tokens),
        source_padding=np.array(padding),
    )


@pytest.mark.parametrize(("shared", "away"), [([3, 3], 0), ([2, 4], 1 / 6)])
def test_padding_that_is_routed_has_a_home_too(shared, away):
    """GPU 1 pads its token to the 3 of GPU 0, and serves the padding itself."""
    log = SharedLog(fusing(1, 2, 1, "normal"))
    log.add(passed([[[6, 6], shared]], [3, 1], [0, 2]))

    assert log.facts()["shared_away_frac"] == away


@pytest.mark.parametrize("padding", ["none", "masked", "routed"])
def test_fused_experts_never_leave_home(padding):
    run = moesim.run(small("fused").with_({"serving.padding": padding}))

    assert run.summary["shared_away_frac"] == 0


def test_a_record_says_how_even_and_how_far_from_home():
    """Two GPUs of one slot, the shared expert three times as wide: 10 + 6 and 4 + 12.

    One token has left GPU 0, which holds 3. Mean over maximum is 16 / 16, then 8 / 16.
    """
    system = replace(fusing(1, 2, 1, "normal"), model=tiny_model(1, 2, 1))
    system = replace(
        system, model=replace(system.model, expert_width=2, shared_width=6)
    )
    log = SharedLog(system)
    assert log.facts() == {}
    for slots, tokens in (([[5, 2], [1, 2]], [2, 1]), ([[5, 0], [1, 0]], [1, 0])):
        log.add(passed([slots], tokens))

    assert log.facts() == {
        "shared_away_frac": 1 / 4,
        "balancedness_with_shared": (16 + 8) / (16 + 16),
    }


def test_waterfill_levels_what_fused_leaves():
    """More even, more bytes; in `fused` as many bytes as before with `normal` kernels."""
    runs = {kind: moesim.run(small(kind)) for kind in ("before", "fused", "waterfill")}
    carried = {kind: run.links["bytes"].sum() for kind, run in runs.items()}

    assert carried["before"] == carried["fused"] < carried["waterfill"]
    even = {k: r.summary.get("balancedness_with_shared") for k, r in runs.items()}
    assert even["fused"] + 0.05 < even["waterfill"]


@pytest.mark.parametrize("shared", ["fused", "waterfill"])
def test_balance_of_routed_experts_is_what_it_was(shared):
    """Of the same passes; GPUs' tokens are those of routed experts."""
    alike = {"workload.arrivals": "batch", "serving.max_in_flight": 1}
    before, found = (moesim.run(small(kind, **alike)) for kind in ("before", shared))

    assert (found.passes["tokens"] == before.passes["tokens"]).all()
    assert (found.rank_load == before.rank_load).all()
    assert (found.experts["jobs"] == before.experts["jobs"]).all()
    for key in ("balancedness_vllm", "balancedness_sglang", "rank_imbalance"):
        assert found.summary[key] == before.summary[key]


def test_limited_experts_leave_shared_ones_alone():
    """Of a dropped choice nothing is left but its token's shared expert."""
    policy = {"name": "capacity", "factor": 1}
    plain = moesim.run(small("before"), policy=policy)
    for shared in ("fused", "waterfill"):
        found = moesim.run(small(shared), policy=policy)
        assert found.summary["dropped_frac"] > 0.1
        assert (found.experts["dropped"] == plain.experts["dropped"]).all()


@pytest.mark.parametrize("policy", ["fifo", {"name": "capacity", "factor": 1}])
@pytest.mark.parametrize("shared", ["fused", "waterfill"])
def test_shares_are_poured_onto_what_is_really_served(shared, policy):
    """Dropped choices weigh nothing."""
    parts = build(small(shared), 0)
    system, ranks = parts.system, np.arange(8)
    draft = Draft(
        number=0,
        now=0,
        oldest_arrival_s=0.0,
        requests=ranks,
        rank=ranks,
        klass=np.zeros(8, np.int64),
        start=np.zeros(8, np.int64),
        chunk=10 * (1 + ranks),
        samples=np.ones(8, np.int64),
        padding=np.zeros(8, np.int64),
    )

    loads = TokenLoad(system, parts.source, make_policy(policy))
    load, _ = loads.load(draft, draft.padding)

    routed, served = load.slots[:, :-1].sum(axis=1), load.slots[:, -1]
    assert (routed.sum(axis=1) < 6 * 360).all() == (policy != "fifo")
    assert (served == quotas(routed, draft.chunk, system)).all()


def test_a_guess_counts_shared_experts_in():
    """Known at home; poured onto what is expected elsewhere."""
    parts = build(small("fused"), 0)
    source = Uniform(
        layers=len(parts.system.model.moe_layers),
        experts=parts.system.model.experts,
        top_k=parts.system.model.top_k,
    )
    keys = TokenKeys(*np.zeros((3, 80), np.int64))
    held = np.array([80, 0, 0, 0, 0, 0, 0, 0])
    sees = Foresight("predicted", "uniform")
    guesses = {}
    for shared in ("before", "fused", "waterfill"):
        system = replace(parts.system, shared_experts=shared)
        given = held if system.fuses else None
        guesses[shared] = Outlook(system, source, sees).guess(keys, given)

    more = guesses["fused"] - guesses["before"]
    assert (more[:, 0] > 0).all()
    assert (more[:, 1:] == 0).all()
    assert (np.ptp(guesses["waterfill"], axis=1) < 1e-12).all()
    assert (guesses["waterfill"] > guesses["before"]).all()


def test_predictors_learn_of_routed_experts():
    """What is learned is what the experts' table says."""
    parts = build(small("waterfill"), 0)
    policy = make_policy({"name": "cross_layer", "predictor": "global"})
    instance = Instance(
        parts.system, parts.serving, parts.source, parts.requests, policy
    )
    recorder = play(instance)

    seen = instance.outlook.predictor.seen[0]
    placement = parts.system.placement
    tokens = told(recorder.slot_tokens, cells_of(placement), placement.replicas.size)
    assert (seen.ravel() == tokens).all()


@pytest.mark.parametrize("shared", ["fused", "waterfill"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "mixtral-8x7b"}, "the model has no shared experts"),
        ({"routing.draw": "counts"}, "gives each token one more choice"),
        (
            {"placement.rebalance": "vllm"},
            "is not simulated where placement.rebalance moves experts",
        ),
        (
            {"residency": {"hbm_experts": 32}},
            "is not simulated where residency has experts outside device memory",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(shared, changes, said):
    """In the scenario, with the key that is wrong."""
    with pytest.raises(InputError, match=said):
        small(shared, **changes)


def test_parts_from_python_are_refused_alike():
    parts = build(small("waterfill"), 0)
    source = Uniform(layers=26, experts=64, top_k=6, draw="counts")
    with pytest.raises(InputError, match="one more choice"):
        CountedLoad(parts.system, source, make_policy("fifo"))
    moving = Policy(rebalance=Vllm())
    with pytest.raises(InputError, match="where experts move"):
        Instance(parts.system, parts.serving, parts.source, parts.requests, moving)


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_a_plan_counts_them_in(kernel):
    """An even pass, buffers and activations know of one expert more on each GPU."""
    plain = priced_system(8, 2, dispatch=kernel)
    fused = replace(plain, shared_experts="fused")
    batch, tokens = [EvenBatch(40, 1, 500)], 200
    loads = [even_load(batch, system) for system in (plain, fused)]
    costs = [
        mean_price(load, system)
        for load, system in zip(loads, (plain, fused), strict=True)
    ]

    assert loads[1].slots.sum() - loads[0].slots.sum() == pytest.approx(26 * 8 * 40)
    more = loads[1].tx.sum() - loads[0].tx.sum()
    assert more == pytest.approx(26 * 8 * 40 * (kernel == "low_latency"))
    assert loads[1].rx.sum() == pytest.approx(loads[1].tx.sum())
    assert costs[1].experts.sum() > costs[0].experts.sum()
    assert costs[1].attention.sum() < costs[0].attention.sum()
    rows, all_rows = (received(s, tokens, "balanced") for s in (plain, fused))
    assert all_rows.pairs == rows.pairs
    assert (rows.shared, all_rows.shared) == (0, tokens)
    assert rows.tokens < all_rows.tokens < 8 * tokens
    buffers = [exchange_bytes(system, tokens, "balanced") for system in (plain, fused)]
    if kernel == "low_latency":
        assert buffers[1] / buffers[0] == pytest.approx(9 / 8)
    assert buffers[1] > buffers[0]
