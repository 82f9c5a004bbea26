"""Ranks of several GPUs share attention's work, and pay for joining it."""

from dataclasses import replace

import numpy as np
import pytest

from dense import ARITHMETIC, LAUNCHES, MEMORY, load_of, system_of, total
from moesim.cost.attention import attention_times
from moesim.spec.parameters import attention_parameters


def test_tensor_parallel_ranks_share_heads_and_weights():
    """Two GPUs halve all arithmetic but the router's, which each does for itself."""
    one = system_of("mixtral-8x7b", ARITHMETIC)
    gpu = replace(ARITHMETIC, nvlink_latency_s=0.0)
    two = system_of("mixtral-8x7b", gpu, tensor_parallel=2)
    load = {"tokens": 64, "sequences": 64, "attended": 9000}
    router = 32 * 2 * 64 * 4096 * 8 / 1e12

    whole, half = total(one, **load), total(two, **load)

    np.testing.assert_allclose(half - router, (whole - router) / 2, rtol=1e-3)


def test_shared_and_dense_networks_are_split_too():
    """DeepSeek-V3's three leading layers, on one of two GPUs."""
    gpu = replace(ARITHMETIC, nvlink_latency_s=0.0)
    system = system_of("deepseek-v3", gpu, tensor_parallel=2)
    attention, _, _ = attention_times(load_of(system, tokens=1), system)
    model = system.model
    layer = attention_parameters(7168, model.attention, 2)
    shared = 3 * 7168 * model.shared_width / 2

    moe = (layer + 7168 * model.experts + shared) * 2 / 1e12
    lead = 3 * (layer + 3 * 7168 * model.dense_width / 2) * 2 / 1e12

    np.testing.assert_allclose(attention[:2, 0], [lead + moe, moe], rtol=1e-3)


def test_key_value_heads_are_copied_where_there_are_too_few():
    """Four heads on eight GPUs: each streams one, 256 elements per token and layer."""
    gpu = replace(MEMORY, nvlink_latency_s=0.0)
    system = system_of("qwen3-30b-a3b", gpu, gpus=8, tensor_parallel=8)
    short, long = (total(system, tokens=8, attended=n, kv_read=n) for n in (1000, 2000))

    np.testing.assert_allclose((long - short) * 1e12, 1000 * 48 * 256 * 2, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "first", "others"), [("deepseek-v3", 8, 2), ("mixtral-8x7b", 1, 1)]
)
def test_a_rank_reduces_after_attention_and_after_what_it_splits(name, first, others):
    """Twice a layer where a dense or shared network follows, once where none does."""
    gpu = replace(LAUNCHES, launch_s=0.0, nvlink_latency_s=1.0)
    system = system_of(name, gpu, tensor_parallel=2)
    attention, _, _ = attention_times(load_of(system, tokens=1), system)

    np.testing.assert_allclose(attention[0], first)
    np.testing.assert_allclose(attention[1:], others)


def test_a_rank_reduces_after_attention_round_a_ring():
    """2 (n - 1) / n of the message at the ring's bandwidth, and one latency."""
    gpu = replace(
        LAUNCHES,
        launch_s=0.0,
        nvlink_bandwidth=50e9,
        allreduce_efficiency=0.5,
        nvlink_latency_s=5e-6,
    )
    system = system_of("mixtral-8x7b", gpu, gpus=8, tensor_parallel=8)
    attention, _, _ = attention_times(load_of(system, tokens=128), system)

    ring = 2 * 7 / 8 * 128 * 4096 * 2 / 25e9 + 5e-6
    np.testing.assert_allclose(attention, ring, rtol=1e-9)
