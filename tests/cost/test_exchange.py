"""Who sends how many copies to whom, against plain loops and laws of conservation."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost import exchange
from moesim.cost.exchange import exchange_load, slot_counts
from moesim.spec.placement import Placement
from moesim.spec.topology import NIC, NVLINK, Topology
from worlds import GPU, tiny_system

KERNELS = ["normal", "low_latency"]


def system_of(nodes, per_node, width, dispatch):
    """Return a system of which only the slots and the cluster's shape matter."""
    gpus = nodes * per_node
    return replace(
        tiny_system(gpus=1),
        topology=Topology(GPU, nodes, per_node),
        placement=Placement(np.arange(gpus * width)[None], gpus),
        dispatch=dispatch,
    )


def hops_of(slots, source, system):
    """Yield (layer, port, sender, receiver) of every copy, token by token."""
    per_node = system.topology.gpus_per_node
    width = system.placement.slots_per_gpu
    for token, home in enumerate(source):
        for layer, chosen in enumerate(slots[token]):
            wanted = [int(slot) // width for slot in chosen]
            if system.dispatch == "low_latency":
                for gpu in wanted:
                    same = gpu // per_node == home // per_node
                    yield layer, NVLINK if same else NIC, home, gpu
                continue
            for node in {gpu // per_node for gpu in wanted}:
                here = home
                if node != home // per_node:
                    here = node * per_node + home % per_node
                    yield layer, NIC, home, here
                for gpu in {g for g in wanted if g // per_node == node} - {here}:
                    yield layer, NVLINK, here, gpu


def draw(seed, shape, tokens, layers, choices, kernel):
    system = system_of(*shape, kernel)
    rng = np.random.default_rng(seed)
    total = system.placement.phy2log.shape[1]
    choices = min(choices, total)
    order = np.argsort(rng.random((tokens, layers, total)), axis=2)
    source = rng.integers(0, system.topology.gpus, tokens)
    return order[..., :choices], source, system


passes = st.builds(
    draw,
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    tokens=st.integers(0, 12),
    layers=st.integers(1, 3),
    choices=st.integers(1, 6),
    kernel=st.sampled_from(KERNELS),
)


@settings(max_examples=300, deadline=None)
@given(passes)
def test_copies_and_traffic_agree_with_plain_loops(drawn):
    """Every hop, found one token at a time, is counted at both of its ports."""
    slots, source, system = drawn
    gpus = system.topology.gpus
    tx, rx = (np.zeros((slots.shape[1], 2, gpus), int) for _ in range(2))
    matrix = np.zeros((2, gpus, gpus), int)
    for layer, port, sender, receiver in hops_of(slots, source.tolist(), system):
        tx[layer, port, sender] += 1
        rx[layer, port, receiver] += 1
        matrix[port, sender, receiver] += 1

    found = exchange_load(slots, source, system)

    assert (found.tx == tx).all()
    assert (found.rx == rx).all()
    assert (found.traffic == matrix).all()
    assert (found.slots == slot_counts(slots, system)).all()


@settings(max_examples=100, deadline=None)
@given(passes)
def test_what_is_sent_is_received(drawn):
    """Conservation per layer and port class; the matrix's sums are the ports' counts."""
    slots, source, system = drawn
    load = exchange_load(slots, source, system)

    assert (load.tx.sum(axis=2) == load.rx.sum(axis=2)).all()
    assert (load.traffic.sum(axis=2) == load.tx.sum(axis=0)).all()
    assert (load.traffic.sum(axis=1) == load.rx.sum(axis=0)).all()


@settings(max_examples=100, deadline=None)
@given(passes)
def test_no_copy_leaves_its_kind_of_link(drawn):
    """NVLink stays within a node; the NIC always crosses, on rails if `normal`."""
    slots, source, system = drawn
    matrix, node = exchange_load(slots, source, system).traffic, system.topology.node
    same = node[:, None] == node
    local = np.arange(system.topology.gpus) % system.topology.gpus_per_node

    assert not matrix[NVLINK][~same].any()
    assert not matrix[NIC][same].any()
    if system.dispatch == "normal":
        assert not matrix[NIC][local[:, None] != local].any()
        assert not matrix[NVLINK].diagonal().any()


@settings(max_examples=50, deadline=None)
@given(passes)
def test_low_latency_sends_every_choice(drawn):
    """T k copies per layer, and each GPU receives as many as its slots count."""
    slots, source, system = drawn
    system = replace(system, dispatch="low_latency")
    load = exchange_load(slots, source, system)

    assert (load.tx.sum(axis=(1, 2)) == slots.shape[0] * slots.shape[2]).all()
    assert (load.rx.sum(axis=1) == load.slots.sum(axis=1)).all()


@settings(max_examples=50, deadline=None)
@given(passes)
def test_normal_never_sends_more(drawn):
    """Deduplication: `normal` crosses the NIC at most once where `low_latency` did."""
    slots, source, system = drawn
    normal, direct = (
        exchange_load(slots, source, replace(system, dispatch=kernel)).tx[:, NIC].sum()
        for kernel in KERNELS
    )

    assert normal <= direct


@settings(max_examples=50, deadline=None)
@given(passes)
def test_slots_are_counted_at_their_gpu(drawn):
    """Slot p is local slot p % S of GPU p // S."""
    slots, _, system = drawn
    width = system.placement.slots_per_gpu
    counts = np.zeros((slots.shape[1], width, system.topology.gpus), int)
    for token in slots.tolist():
        for layer, chosen in enumerate(token):
            for slot in chosen:
                counts[layer, slot % width, slot // width] += 1

    assert (slot_counts(slots, system) == counts).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("chunk", [1, 7 * 5, 150, 999])
def test_chunks_do_not_show(kernel, chunk, monkeypatch):
    """However many tokens and layers are handled at once, the counts are the same."""
    slots, source, system = draw(0, (2, 4, 3), 200, 5, 6, kernel)
    whole = exchange_load(slots, source, system)
    monkeypatch.setattr(exchange, "_CHUNK", chunk)

    same(exchange_load(slots, source, system), whole)
    assert (slot_counts(slots, system) == whole.slots).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_how_slots_lie_in_memory_does_not_show(kernel):
    """Other orders of the axes, and other types, give the same counts."""
    slots, source, system = draw(1, (3, 2, 4), 90, 4, 5, kernel)
    backwards = slots.astype(np.uint16).T.copy().T

    same(exchange_load(backwards, source, system), exchange_load(slots, source, system))


def same(one, other):
    """Check that two loads are equal, to the type."""
    for name in ("slots", "tx", "rx", "traffic"):
        mine, yours = getattr(one, name), getattr(other, name)
        assert mine.dtype == yours.dtype == np.int64
        assert mine.shape == yours.shape
        assert (mine == yours).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("nodes", "width"), [(5, 51), (5, 52), (255, 1), (257, 256)])
def test_many_slots_do_not_overflow(kernel, nodes, width):
    """Just below and above what 8 and 16 bits hold, the last slot is still found."""
    system = system_of(nodes, 1, width, kernel)
    last = nodes * width - 1

    load = exchange_load(np.array([[[last]]]), np.array([0]), system)

    assert (load.tx[0, NIC].argmax(), load.rx[0, NIC].argmax()) == (0, nodes - 1)
    assert load.tx.sum() == load.rx.sum() == load.traffic.sum() == 1
    assert load.slots[0, width - 1, nodes - 1] == load.slots.sum() == 1


# E[distinct groups] = N (1 - C(E - E/N, k) / C(E, k)): k of E without replacement.
DISTINCT = {(4, 8, 2): 1.8571428571428572, (8, 32, 2): 1.903225806451613}


@pytest.mark.parametrize(("case", "distinct"), [*DISTINCT.items()])
def test_distinct_destinations_of_all_choices(case, distinct):
    """Over every choice of k experts the mean is the formula, less the source's own."""
    gpus, experts, choices = case
    system = system_of(1, gpus, experts // gpus, "normal")
    every = np.array([*combinations(range(experts), choices)])[:, None]
    slots = np.repeat(every, gpus, axis=0)
    source = np.tile(np.arange(gpus), len(every))

    sent = exchange_load(slots, source, system).tx.sum() / len(slots)

    np.testing.assert_allclose(sent, distinct * (gpus - 1) / gpus, rtol=1e-12)


def per_gpu_bytes(kernel, replications=20, tokens=128, hidden=7168):
    """Return bytes per source GPU over the NIC and in all, 8 nodes of 8, top 8 of 256."""
    system = system_of(8, 8, 4, kernel)
    found = []
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        slots = np.argsort(rng.random((64 * tokens, 1, 256)), axis=2)[..., :8]
        tx = exchange_load(slots, np.repeat(np.arange(64), tokens), system).tx
        found.append((tx[0, NIC].sum(), tx.sum()))
    return np.array(found) * hidden / 64


def test_low_latency_bytes_are_the_naive_ones():
    """128 tokens x 8 choices x 7168 bytes, whatever the routing."""
    assert (per_gpu_bytes("low_latency", 2)[:, 1] == 7340032).all()


def test_node_deduplication_sends_the_expected_bytes():
    """128 x 7168 x E[distinct nodes] x 7/8 over the NIC (5.29465 of 8 nodes)."""
    found = per_gpu_bytes("normal")[:, 0]
    error = found.std(ddof=1) / np.sqrt(len(found))

    assert error <= 0.001 * found.mean()
    assert abs(found.mean() - 4250631.340339061) <= 4 * error
