"""What runs outside the routed experts, priced part by part."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dense import ARITHMETIC, LAUNCHES, MEMORY, load_of, system_of, total
from moesim.cost.attention import ATTENTION_KERNELS, attention_times
from moesim.spec.hardware import load_gpu
from moesim.spec.parameters import count_parameters
from moesim.spec.system import Precision

MODELS = [
    "mixtral-8x7b",
    "deepseek-v3",
    "deepseek-v2-lite",
    "gpt-oss-120b",
    "llama-4-maverick",
]


SYSTEMS = [
    system_of(name, load_gpu("h200"), tensor_parallel=parts)
    for name in MODELS
    for parts in (1, 2)
]


@pytest.mark.parametrize("name", MODELS)
def test_arithmetic_is_two_operations_per_weight_outside_the_experts(name):
    """Where only arithmetic takes time, a token costs 2 flop per resident weight.

    Norms and biases are counted as weights and never multiplied: 0.1 % at most.
    """
    system = system_of(name, ARITHMETIC)
    counted = count_parameters(system.model)
    routed, embedding = counted.routed, counted.embedding
    weights = (
        counted.total - routed - (0 if system.model.tied_embeddings else embedding)
    )

    found = total(system, tokens=1, sequences=1) * 1e12 / 2

    np.testing.assert_allclose(found, weights, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_small_step_reads_the_weights_once(name):
    """Where only memory takes time, 1 row moves 2 bytes per weight, 3 % over at most."""
    system = system_of(name, MEMORY)
    counted = count_parameters(system.model)
    embedding = 0 if system.model.tied_embeddings else counted.embedding
    weights = counted.total - counted.routed - embedding

    ratio = total(system, tokens=1, sequences=1) * 1e12 / (2 * weights)

    assert 1 - 1e-3 <= ratio <= 1.03


def test_rows_move_what_products_and_norms_read_and_write():
    """Mixtral, elements of a layer: 4 h for norms, in and out of qkv, of o, the router."""
    system = system_of("mixtral-8x7b", MEMORY)
    few, many = (total(system, tokens=n) for n in (1, 1001))
    norms, qkv, out, router = 4 * 4096, 4096 + 48 * 128, 4096 + 4096, 4096 + 16

    moved = 1000 * 32 * (norms + qkv + out + router) * 2
    np.testing.assert_allclose((many - few) * 1e12, moved, rtol=1e-9)


# 2 x layers x kv heads x width x 2 bytes; MLA: layers x (512 + 64) x 2 bytes.
KV_BYTES = {"mixtral-8x7b": 131072, "qwen3-30b-a3b": 98304, "deepseek-v3": 70272}


@pytest.mark.parametrize(("name", "kv_bytes"), [*KV_BYTES.items()])
def test_decode_streams_the_cache(name, kv_bytes):
    """A cached token costs its bytes of KV, over all layers."""
    system = system_of(name, MEMORY)
    short, long = (
        total(system, tokens=8, attended=n, kv_read=n) for n in (1000, 11000)
    )

    np.testing.assert_allclose((long - short) * 1e12, 10000 * kv_bytes, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        # Queries times keys, weights times values: 2 x 2 x heads x width per pair.
        ("mixtral-8x7b", 4 * 32 * 128, 4 * 32 * 128),
        # MLA spelt out (192 + 128 wide) and in the latent space (576 + 512 wide).
        ("deepseek-v3", 2 * 128 * (192 + 128), 2 * 128 * (576 + 512)),
    ],
)
def test_cores_multiply_every_pair(name, prefill, decode):
    """Pairs beyond the cache that is read are prefill's, the others decode's."""
    system = system_of(name, ARITHMETIC)
    layers = system.model.layers
    base = total(system, tokens=64)
    fresh = total(system, tokens=64, attended=5000) - base
    cached = total(system, tokens=64, attended=5000, kv_read=5000) - base

    np.testing.assert_allclose(fresh * 1e12, 5000 * layers * prefill, rtol=1e-6)
    np.testing.assert_allclose(cached * 1e12, 5000 * layers * decode, rtol=1e-6)


def test_prefill_and_decode_of_a_pass_run_one_after_the_other():
    """Arithmetic of the one does not hide the other's streaming of the cache."""
    gpu = replace(ARITHMETIC, hbm_bandwidth=1e10)
    system = system_of("mixtral-8x7b", gpu)
    base = total(system, tokens=64)
    fresh, cached, both = (
        total(system, tokens=64, attended=a, kv_read=k) - base
        for a, k in ((50000, 0), (3000, 3000), (53000, 3000))
    )

    np.testing.assert_allclose(both, fresh + cached, rtol=1e-9)


def test_windowed_layers_look_back_a_window():
    """gpt-oss: half of the layers read 128 tokens of each context, half read all."""
    system = system_of("gpt-oss-120b", MEMORY)
    layers, per_layer = 36, 2 * 8 * 64 * 2
    load = {"tokens": 10, "sequences": 10}
    base = total(system, **load, attended=10, kv_read=10)

    found = total(system, **load, attended=40960, kv_read=40960) - base

    read = layers / 2 * (40960 + 10 * 128 - 2 * 10)
    np.testing.assert_allclose(found * 1e12, read * per_layer, rtol=1e-9)


def test_padding_costs_dense_arithmetic_but_no_core():
    """Ten rows cost the same whether padded or real, but the core belongs to tokens."""
    system = system_of("mixtral-8x7b", load_gpu("h100"))
    context = {"attended": 9000, "kv_read": 9000}
    padded = load_of(system, tokens=6, padding=4, sequences=6, **context)
    real = load_of(system, tokens=10, sequences=6, **context)

    for found, expected in zip(
        attention_times(padded, system)[::2],
        attention_times(real, system)[::2],
        strict=True,
    ):
        assert (found == expected).all()


def test_useful_is_what_the_tokens_alone_would_cost():
    system = system_of("mixtral-8x7b", load_gpu("h100"))
    context = {"tokens": 600, "sequences": 6, "attended": 9000}
    padded = attention_times(load_of(system, padding=4000, **context), system)
    alone = attention_times(load_of(system, **context), system)

    assert (padded[1] == alone[0]).all()
    assert (padded[1] < padded[0]).all()


def test_a_gpu_without_tokens_runs_a_dummy_row():
    """It costs what one padding row does, none of it useful, and no LM head."""
    system = system_of("deepseek-v3", load_gpu("h100"))
    dummy = attention_times(load_of(system), system)
    row = attention_times(load_of(system, padding=1), system)

    assert (dummy[0] == row[0]).all()
    assert (dummy[0] > 0).all()
    assert not dummy[1].any()
    assert not dummy[2].any()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(SYSTEMS),
    st.tuples(*[st.integers(0, 5000)] * 2),
    st.tuples(*[st.integers(0, 10**6)] * 2),
)
def test_useful_is_never_more_than_attention(system, rows, pairs):
    """And both are finite and not negative, whatever the load."""
    load = load_of(system, *rows, min(rows[0], 3), max(pairs), min(pairs))
    attention, useful, tail = attention_times(load, system)

    assert (useful >= 0).all()
    assert (useful <= attention).all()
    assert (tail >= 0).all()
    assert np.isfinite(attention).all()


def test_dense_layers_run_before_the_moe_layer_they_lead_to():
    """DeepSeek-V3's three dense layers delay the first dispatch, and no other."""
    system = system_of("deepseek-v3", ARITHMETIC)
    attention, _, _ = attention_times(load_of(system, tokens=1), system)
    model, expected = system.model, count_parameters(system.model)
    layer = expected.attention / model.layers
    dense = 3 * (layer + 3 * model.hidden * model.dense_width) * 2 / 1e12

    np.testing.assert_allclose(attention[0] - attention[1], dense, rtol=1e-3)
    assert (attention[1:] == attention[1]).all()


def test_dense_layers_after_the_last_moe_layer_are_in_the_tail():
    """A model whose last layer is dense pays it after the last combine."""
    system = system_of("mixtral-8x7b", ARITHMETIC)
    model = replace(system.model, moe_layers=tuple(range(31)), dense_width=14336)
    shorter = replace(system, model=model)
    load = load_of(shorter, tokens=1)

    tail = attention_times(load, shorter)[2] * 1e12 / 2

    layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    np.testing.assert_allclose(tail, layer, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "form", "launches"),
    [
        # Two norms, two products, the core; router and top-k; nothing shared.
        ("mixtral-8x7b", "bf16", 2 + 2 + ATTENTION_KERNELS["gqa"] + 2),
        # Every product of a narrow format quantises its input first.
        ("mixtral-8x7b", "fp8", 2 + 4 + ATTENTION_KERNELS["gqa"] + 3),
        # Three norms, five products, core; router, top-k; two products, activation.
        ("deepseek-v3", "bf16", 3 + 5 + ATTENTION_KERNELS["mla"] + 2 + 3),
    ],
)
def test_every_kernel_of_a_layer_is_launched(name, form, launches):
    system = system_of(name, LAUNCHES, precision=Precision(weights=form))
    load = load_of(system, tokens=4, attended=4, kv_read=4)
    attention, _, _ = attention_times(load, system)

    np.testing.assert_allclose(attention[1:], launches)


def test_no_core_is_launched_for_padding_alone():
    system = system_of("mixtral-8x7b", LAUNCHES)
    padded, _, _ = attention_times(load_of(system, padding=4), system)
    real, _, _ = attention_times(load_of(system, tokens=4, attended=4), system)

    np.testing.assert_allclose(real - padded, ATTENTION_KERNELS["gqa"])


def test_a_slow_gpu_takes_longer_by_its_speed():
    system = system_of("mixtral-8x7b", load_gpu("h100"), speed=(1.0, 0.5))
    load = load_of(system, tokens=9, sequences=9, attended=900, kv_read=900)

    for part in attention_times(load, system):
        np.testing.assert_allclose(part[..., 1], 2 * part[..., 0])
