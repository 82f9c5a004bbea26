"""A priced pass: bytes over bandwidth, and a closed form for a pass that is alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.exchange import exchange_load
from moesim.cost.pass_ import COMBINE, DISPATCH, PassCost, PassLoad
from moesim.cost.price import copy_bytes, price
from moesim.cost.uncontended import uncontended_seconds
from moesim.spec.placement import contiguous
from moesim.spec.system import Precision
from moesim.spec.topology import NIC, NVLINK, Topology
from worlds import GPU, batch_of, play_batches, random_cost, tiny_system


def load_of(slots, source, system):
    """Return the load of one-token sequences with these routes, nothing cached."""
    tokens = np.bincount(source, minlength=system.topology.gpus)
    load = exchange_load(slots, source, system)
    counts, tx, rx = load.slots, load.tx, load.rx
    return PassLoad(tokens, 0 * tokens, tokens, 0 * tokens, 0 * tokens, counts, tx, rx)


def uniform(system, tokens, seed=0):
    """Return uniform routes for `tokens` tokens on every GPU, with their sources."""
    rng = np.random.default_rng(seed)
    layers, gpus = system.model.moe_layer_count, system.topology.gpus
    shape = (gpus * tokens, layers, system.placement.phy2log.shape[1])
    slots = np.argsort(rng.random(shape), axis=2)[..., : system.model.top_k]
    return slots, np.repeat(np.arange(gpus), tokens)


@pytest.mark.parametrize(
    ("form", "expected"),
    [("bf16", 14336.0), ("fp8", 7168 + 7168 / 128 * 4), ("fp4", 3584 + 224.0)],
)
def test_a_copy_is_its_hidden_vector_and_its_scales(form, expected):
    """Narrow formats carry one 4-byte scale per 128 elements, as DeepEP does."""
    base = tiny_system()
    precision = Precision(dispatch=form)
    system = replace(base, model=replace(base.model, hidden=7168), precision=precision)

    assert copy_bytes(system).tolist() == [expected, 14336.0]


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_ports_are_busy_for_their_bytes(kernel):
    """Copies x bytes / (peak x share), each port class with its own rate."""
    gpu = replace(GPU, nvlink_efficiency=0.5, nic_efficiency=0.8)
    base = tiny_system(gpus=4, nodes=2, dispatch=kernel)
    system = replace(base, topology=Topology(gpu, 2, 2))
    load = load_of(*uniform(system, 50), system)

    cost = price(load, system)

    row = 64 * 2
    nvlink, nic = row / (450e9 * 0.5), row / (50e9 * 0.8)
    np.testing.assert_allclose(
        cost.tx[:, DISPATCH, NVLINK], load.tx[:, NVLINK] * nvlink
    )
    np.testing.assert_allclose(cost.rx[:, DISPATCH, NIC], load.rx[:, NIC] * nic)
    assert cost.latency.tolist() == [2e-6, 5e-6]


def test_combine_is_dispatch_the_other_way():
    """Times swap ends, and scale with the ratio of the two formats' bytes."""
    precision = Precision(dispatch="fp8", combine="bf16")
    system = tiny_system(gpus=4, nodes=2, precision=precision)
    cost = price(load_of(*uniform(system, 50), system), system)
    there, back = copy_bytes(system)
    ratio = back / there

    np.testing.assert_allclose(cost.tx[:, COMBINE], cost.rx[:, DISPATCH] * ratio)
    np.testing.assert_allclose(cost.rx[:, COMBINE], cost.tx[:, DISPATCH] * ratio)


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_the_byte_matrix_fills_the_ports(kernel):
    """Row sums over the bandwidth are the senders' busy time over all layers."""
    system = tiny_system(gpus=4, nodes=2, dispatch=kernel)
    slots, source = uniform(system, 30)
    cost = price(load_of(slots, source, system), system)
    seconds = (
        exchange_load(slots, source, system).traffic * copy_bytes(system)[DISPATCH]
    )
    seconds = seconds / system.topology.bandwidth[:, None, None]

    np.testing.assert_allclose(cost.tx[:, DISPATCH].sum(axis=0), seconds.sum(axis=2))
    np.testing.assert_allclose(cost.rx[:, DISPATCH].sum(axis=0), seconds.sum(axis=1))


def article_system(layers=8):
    """Return 32 Mixtral-sized experts of 8 layers, contiguous on 8 GPUs, top 2."""
    base = tiny_system(layers)
    model = replace(base.model, hidden=4096, expert_width=14336, experts=32)
    placement = contiguous(layers, 32, 8, 0)
    return replace(base, model=model, topology=Topology(GPU, 1, 8), placement=placement)


def balanced(tokens, layers=8):
    """Return routes with equal tokens per expert and equal copies per pair of GPUs."""
    turn = np.arange(tokens // 8)
    first = turn % 32
    pair = np.stack([first, (first + 16) % 32], axis=-1)
    return np.broadcast_to(np.tile(pair, (8, 1))[:, None], (tokens, layers, 2))


def hot(tokens, layers=8):
    """Return routes that all go to experts 0 and 1, both on GPU 0."""
    return np.broadcast_to([0, 1], (tokens, layers, 2))


def routed_seconds(slots, layers=8):
    """Return the seconds of a pass whose attention and tail are free."""
    system = article_system(layers)
    source = np.repeat(np.arange(8), len(slots) // 8)
    cost = price(load_of(slots, source, system), system)
    free = {"attention": 0 * cost.attention, "tail": 0 * cost.tail}
    return uncontended_seconds(replace(cost, **free))


def test_a_balanced_pass_takes_the_closed_form():
    """8 layers of 4 x 105.660 us (16 tokens each) + 2 x (2 us + 56 copies / 450 GB/s)."""
    np.testing.assert_allclose(
        routed_seconds(balanced(256)), 0.0034294210186401326, rtol=1e-9
    )


def test_a_hot_layer_takes_the_closed_form():
    """Two experts of 256 tokens, and 224 copies into one GPU: 238.147 us."""
    np.testing.assert_allclose(
        routed_seconds(hot(256)), 8 * 0.00023814719469320066, rtol=1e-9
    )


@pytest.mark.parametrize(("tokens", "hot_wins"), [(256, True), (4096, False)])
def test_imbalance_helps_while_weights_bind(tokens, hot_wins):
    """Below some 550 tokens fewer active experts are quicker; above, balance is."""
    assert (routed_seconds(hot(tokens)) < routed_seconds(balanced(tokens))) == hot_wins


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (8, 4)]),
    st.integers(1, 4),
)
def test_the_closed_form_is_what_the_event_engine_plays(seed, cluster, layers):
    """A pass alone: the same end to the tick, whatever its costs."""
    gpus, nodes = cluster
    system = tiny_system(layers, 8, gpus, nodes)
    ticks = random_cost(np.random.default_rng(seed), system)
    fields = ("attention", "useful", "experts", "tx", "rx", "tail", "latency")
    seconds = PassCost(*(getattr(ticks, name) / 1e12 for name in fields))

    done, _ = play_batches(system, [batch_of(ticks)])

    assert round(uncontended_seconds(seconds) * 1e12) == done[0]


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_four_nodes_move_bytes_as_fast_as_two(kernel):
    """On a non-blocking fabric the NIC's rate with 4 nodes is within 15 % of 2 nodes'."""
    rates = []
    for nodes in (2, 4):
        base = tiny_system(1, 32, 8 * nodes, nodes, top_k=8, dispatch=kernel)
        system = replace(base, model=replace(base.model, hidden=7168))
        load = load_of(*uniform(system, 512), system)
        cost = price(load, system)
        moved = load.tx[0, NIC].mean() * copy_bytes(system)[DISPATCH]
        rates.append(moved / (cost.latency[NIC] + cost.rx[0, DISPATCH, NIC].max()))

    np.testing.assert_allclose(rates[1], rates[0], rtol=0.15)
