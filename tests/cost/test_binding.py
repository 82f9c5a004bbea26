"""Which resource binds: shares sum to one, and are what slowing a resource costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.binding import (
    RATES,
    RESOURCES,
    WAITS,
    binding,
    even_parts,
    even_seconds,
    expert_bound,
    pass_shares,
)
from moesim.cost.even import EvenBatch, even_load
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import load_gpu
from moesim.spec.placement import contiguous
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology

FP8 = Precision("fp8", "fp8", "bf16", "fp8", "bf16")


def mixtral(**options):
    """Return Mixtral-8x7B on a node of 8 H100."""
    model = load_model("mixtral-8x7b")
    placement = contiguous(32, 8, 8, 0)
    return System(model, Topology(load_gpu("h100"), 1, 8), placement, **options)


def deepseek(**options):
    """Return DeepSeek-V3 on 4 nodes of 8 H800."""
    model = load_model("deepseek-v3")
    placement = contiguous(58, 256, 32, 0)
    options = {"dispatch": "low_latency", **options}
    return System(model, Topology(load_gpu("h800"), 4, 8), placement, FP8, **options)


SYSTEMS = [
    mixtral(),
    mixtral(tensor_parallel=4, experts="per_expert"),
    deepseek(),
    deepseek(dispatch="normal", shared_experts="overlapped"),
]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(SYSTEMS),
    st.integers(1, 600),
    st.integers(0, 9000),
    st.integers(0, 3000),
)
def test_shares_sum_to_one(system, sequences, start, prompt):
    """Euler: every price is linear in the resources, or the larger of two that are."""
    batches = [EvenBatch(sequences, 1, start)]
    batches += [EvenBatch(1, prompt)] if prompt else []
    shares = pass_shares(even_load(batches, system), system)

    assert tuple(shares) == RESOURCES
    assert sum(shares.values()) == pytest.approx(1, abs=2e-4)
    assert min(shares.values()) > -1e-6


@pytest.mark.parametrize(
    "system", SYSTEMS, ids=["mixtral", "tp4", "deepseek", "overlap"]
)
@pytest.mark.parametrize("name", [*RATES, *WAITS])
def test_a_share_is_what_a_slower_resource_costs(system, name):
    """Four per cent slower in earnest, through the specification of the GPU."""
    batch = [EvenBatch(48, 1, 3000)]
    share = pass_shares(even_load(batch, system), system)[name]
    gpu = system.topology.gpu
    worse = {k: getattr(gpu, k) / 1.04 for k in RATES.get(name, ())}
    worse |= {k: getattr(gpu, k) * 1.04 for k in WAITS.get(name, ())}
    topology = replace(system.topology, gpu=replace(gpu, **worse))
    slower = even_seconds(batch, replace(system, topology=topology))

    assert slower / even_seconds(batch, system) == pytest.approx(
        1 + 0.04 * share, abs=2e-4
    )


@pytest.mark.parametrize(
    "system", SYSTEMS, ids=["mixtral", "tp4", "deepseek", "overlap"]
)
def test_the_reads_of_memory_are_told_apart(system):
    """Together they are what slower memory costs."""
    batch = [EvenBatch(20, 1, 3000)]
    shares = pass_shares(even_load(batch, system), system)
    gpu = system.topology.gpu
    worse = replace(gpu, hbm_efficiency=gpu.hbm_efficiency / 1.0001)
    slow = replace(system, topology=replace(system.topology, gpu=worse))
    longer = even_seconds(batch, slow) / even_seconds(batch, system) - 1
    reads = shares["KV reads"] + shares["dense weights"] + shares["expert weights"]

    assert longer == pytest.approx(1e-4 * reads, rel=1e-3)


@pytest.mark.parametrize(
    ("system", "batch", "expected"),
    [
        (mixtral(), EvenBatch(4, 1, 500), "expert weights"),
        (mixtral(), EvenBatch(100, 1, 8000), "KV reads"),
        (mixtral(), EvenBatch(4, 2048, 0), "expert compute"),
        (mixtral(), EvenBatch(1, 1, 500_000), "KV reads"),
        (mixtral(), EvenBatch(1, 200_000, 0), "attention compute"),
        (deepseek(), EvenBatch(1, 1, 500), "launches"),
        (deepseek(), EvenBatch(128, 1, 2000), "NIC"),
    ],
)
def test_what_binds_is_what_everybody_would_say(system, batch, expected):
    assert binding(pass_shares(even_load([batch], system), system)) == expected


def test_kv_reads_go_with_the_context_and_weights_do_not():
    system = mixtral()
    seconds, reads = {}, {}
    for start in (999, 1999):
        batch = [EvenBatch(64, 1, start)]
        seconds[start] = even_seconds(batch, system)
        shares = pass_shares(even_load(batch, system), system)
        reads[start] = shares["KV reads"] * seconds[start]
        weights = shares["expert weights"] * seconds[start]

    gpu = system.topology.gpu
    cached = 64 * 1000 * 131072 / gpu.memory_rate
    assert reads[1999] == pytest.approx(2 * reads[999], rel=1e-4)
    assert reads[999] == pytest.approx(cached, rel=1e-4)
    assert seconds[1999] - seconds[999] == pytest.approx(cached, rel=1e-4)
    assert weights >= 32 * 352_321_536 / gpu.memory_rate


def test_one_node_needs_no_nic():
    shares = pass_shares(even_load([EvenBatch(32, 1, 100)], mixtral()), mixtral())

    assert shares["NIC"] == 0
    assert shares["NVLink"] > 0


def test_what_hides_has_no_share():
    """Dispatch behind shared experts so large that they take longer costs nothing."""
    base = deepseek(shared_experts="overlapped")
    large = replace(base.model, shared_width=200_000)
    system = replace(base, model=large)
    hidden = pass_shares(even_load([EvenBatch(64, 1, 100)], system), system)
    before = replace(system, shared_experts="before")
    shown = pass_shares(even_load([EvenBatch(64, 1, 100)], before), before)

    assert hidden["NIC"] * even_seconds([EvenBatch(64, 1, 100)], system) < 0.7 * (
        shown["NIC"] * even_seconds([EvenBatch(64, 1, 100)], before)
    )


@pytest.mark.parametrize(
    "system", SYSTEMS, ids=["mixtral", "tp4", "deepseek", "overlap"]
)
def test_parts_make_up_the_pass(system):
    batch = [EvenBatch(32, 1, 1000)]
    parts = even_parts(batch, system)

    assert sum(parts.values()) == pytest.approx(even_seconds(batch, system))
    assert min(parts.values()) > 0


def test_experts_turn_from_weights_to_compute():
    """Mixtral's in bf16 on H100, with efficiencies: near 300 tokens a job."""
    system = mixtral()
    gpu = system.topology.gpu
    ridge = 2 * gpu.expert_rate("bf16") / (2 * gpu.memory_rate)  # activations left out
    few, many = 0.8 * ridge, 1.4 * ridge
    shape = (1, 8)

    assert expert_bound(np.full(shape, few), system) == "expert weights"
    assert expert_bound(np.full(shape, many), system) == "expert compute"
