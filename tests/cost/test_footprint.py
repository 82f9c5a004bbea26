"""What a micro-batch takes, by the tokens that each GPU received."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.cost.buffers import activation_bytes, exchange_bytes, received
from moesim.cost.exchange import exchange_load
from moesim.cost.footprint import footprint
from moesim.cost.partial import partial_load
from moesim.cost.pass_ import PassLoad
from moesim.spec.catalogue import load_model
from moesim.spec.placement import contiguous
from moesim.spec.topology import Topology
from worlds import GPU, tiny_system


def load_of(system, tokens, slots, rows=None, sequences=0, padding=0):
    gpus, layers = system.topology.gpus, len(slots)
    ones = np.ones(gpus, np.int64)
    ports = np.zeros((layers, 2, gpus), np.int64)
    tokens = np.asarray(tokens) * ones
    slots = np.asarray(slots)
    rows = slots.sum(axis=1) if rows is None else np.asarray(rows)
    given = (tokens, padding * ones, sequences * ones, 0 * ones, 0 * ones)
    return PassLoad(*given, slots, ports, ports, rows)


def real_system(name="mixtral-8x7b", gpus=4, **options):
    model = load_model(name)
    placement = contiguous(len(model.moe_layers), model.experts, gpus, 0)
    system = replace(tiny_system(gpus=gpus, **options), model=model)
    return replace(system, placement=placement, topology=Topology(GPU, 1, gpus))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b"])
@pytest.mark.parametrize("tokens", [64, 128, 2048])
def test_an_even_pass_takes_what_the_plan_says(name, tokens):
    """One source of truth: the pool sets aside what the ledger then finds."""
    system = real_system(name)
    layers, slots = len(system.model.moe_layers), system.placement.slots_per_gpu
    each = tokens * system.model.top_k / slots
    even = np.full((layers, slots, 4), int(each))
    rows = np.full((layers, 4), received(system, tokens, "balanced").tokens)
    found = footprint(load_of(system, tokens, even, rows), system)

    buffers = exchange_bytes(system, tokens, "balanced")
    activations = activation_bytes(system, tokens, "balanced")
    assert found.bytes[0].tolist() == [ceil(buffers)] * 4
    assert found.bytes[1].tolist() == [ceil(activations)] * 4


@pytest.mark.parametrize("dispatch", ["normal", "low_latency"])
@pytest.mark.parametrize("shared", ["fused", "waterfill"])
def test_an_even_pass_with_fused_experts_takes_what_the_plan_says(shared, dispatch):
    """The ledger weighs the shared expert's tokens as the pool does."""
    options = {"shared_experts": shared, "dispatch": dispatch}
    system = real_system("deepseek-v2-lite", **options)
    tokens, layers = 128, len(system.model.moe_layers)
    even = np.full((layers, 17, 4), tokens * 6 // 16)
    even[:, 16] = tokens
    rows = np.full((layers, 4), received(system, tokens, "balanced").tokens)
    found = footprint(load_of(system, tokens, even, rows), system)

    activations = activation_bytes(system, tokens, "balanced")
    assert found.bytes[1].tolist() == [ceil(activations)] * 4


def test_a_shared_expert_elsewhere_weighs_there():
    """Waterfill sends two tokens to GPU 3: 16896 bytes each, and nothing at home."""
    system = real_system("deepseek-v2-lite", shared_experts="waterfill")
    slots = np.zeros((26, 17, 4), np.int64)
    slots[7, 16, 3] = 2
    found = footprint(load_of(system, 0, slots), system)

    assert found.bytes[1].tolist() == [0, 0, 0, 2 * 16896]
    assert found.layer[3] == 7


def test_the_worst_pass_takes_what_the_plan_says_of_the_worst():
    """Every token of every rank on GPU 2, in layer 5."""
    system = real_system()
    slots = np.zeros((32, 2, 4), np.int64)
    rows = np.zeros((32, 4), np.int64)
    slots[5, :, 2], rows[5, 2] = 4 * 512, 4 * 512
    found = footprint(load_of(system, 512, slots, rows), system)

    assert found.layer[2] == 5
    assert found.bytes[0, 2] == exchange_bytes(system, 512, "worst")
    assert found.bytes[1, 2] == activation_bytes(system, 512, "worst")
    assert found.bytes[0].tolist() == [0, 0, found.bytes[0, 2], 0]
    assert (found.bytes[1, [0, 1, 3]] < found.bytes[1, 2]).all()


def test_a_pair_takes_its_24_kib_and_a_row_its_own():
    """Mixtral: 2 x (14336 + 2 x 14336) bytes a pair; 2 x 4096 each way a row."""
    system = real_system()
    slots = np.zeros((32, 2, 4), np.int64)
    slots[3, 1, 0] = 7
    rows = np.zeros((32, 4), np.int64)
    rows[3, 0] = 7
    found = footprint(load_of(system, 0, slots, rows), system)

    assert found.bytes.tolist() == [[7 * 16384, 0, 0, 0], [7 * 86016, 0, 0, 0]]
    assert found.layer.tolist() == [3, 0, 0, 0]


def test_padding_and_logits_count():
    system = real_system()
    none = np.zeros((32, 2, 4), np.int64)
    plain = footprint(load_of(system, 10, none), system)
    padded = footprint(load_of(system, 4, none, padding=6), system)
    sampled = footprint(load_of(system, 10, none, sequences=3), system)

    assert padded.bytes.tolist() == plain.bytes.tolist()
    assert (sampled.bytes - plain.bytes).tolist() == [[0] * 4, [4 * 3 * 32000] * 4]


def test_one_gpu_exchanges_nothing():
    system = real_system(gpus=1)
    slots = np.full((32, 8, 1), 5)

    assert footprint(load_of(system, 20, slots), system).bytes[0] == 0


@pytest.mark.parametrize("tokens", [3, 300])
def test_masked_arrays_do_not_depend_on_routing(tokens):
    """Low-latency kernels hand over a row of each rank's at every slot."""
    system = real_system(dispatch="low_latency")
    slots = np.zeros((32, 2, 4), np.int64)
    slots[9, 0, 1] = 6
    found = footprint(load_of(system, tokens, slots), system)

    assert found.bytes[0].tolist() == [0, 0, 0, 0]
    assert found.layer[1] == 9
    assert found.bytes[1] == pytest.approx(activation_bytes(system, tokens, "balanced"))


@pytest.mark.parametrize("dispatch", ["normal", "low_latency"])
def test_copies_side_by_side_take_what_each_takes(dispatch):
    rng = np.random.default_rng(0)
    system = real_system(dispatch=dispatch)
    parts = [
        load_of(system, n, rng.integers(0, 9, (32, 2, 4)), rng.integers(0, 9, (32, 4)))
        for n in (3, 40, 1)
    ]
    names = ("tokens", "padding", "sequences", "slots", "rows")
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
        for name in names
    }
    whole = footprint(replace(parts[0], **joined), system, copies=3)

    for copy, part in enumerate(parts):
        alone, mine = footprint(part, system), whole.part(slice(4 * copy, 4 * copy + 4))
        assert mine.bytes.tolist() == alone.bytes.tolist()
        assert mine.layer.tolist() == alone.layer.tolist()


@given(st.integers(1, 30), st.sampled_from([(4, 1), (4, 2), (8, 2), (2, 1)]), st.data())
def test_rows_are_the_tokens_that_need_a_gpu(tokens, shape, data):
    """Counted token by token: its own GPU too, and each once however often chosen."""
    gpus, nodes = shape
    system = tiny_system(gpus=gpus, nodes=nodes, top_k=3)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    slots = np.stack(
        [np.stack([rng.permutation(8)[:3] for _ in range(2)]) for _ in range(tokens)]
    )
    source = rng.integers(0, gpus, tokens)
    kept = rng.random(slots.shape) < 0.7
    width = 8 // gpus
    wanted, some = np.zeros((2, gpus), int), np.zeros((2, gpus), int)
    for token in range(tokens):
        for layer in range(2):
            for gpu in set((slots[token, layer] // width).tolist()):
                wanted[layer, gpu] += 1
            mine = slots[token, layer][kept[token, layer]]
            for gpu in set((mine // width).tolist()):
                some[layer, gpu] += 1

    assert exchange_load(slots, source, system).rows.tolist() == wanted.tolist()
    assert partial_load(slots, kept, source, system).rows.tolist() == some.tolist()
    direct = replace(system, dispatch="low_latency")
    assert not exchange_load(slots, source, direct).rows.size
    assert not partial_load(slots, kept, source, direct).rows.size
