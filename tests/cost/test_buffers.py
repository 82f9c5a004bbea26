"""What moving and computing tokens takes: closed formulas against published tables."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.cost.buffers import (
    CASES,
    activation_bytes,
    exchange_bytes,
    expert_workspace_bytes,
    largest_deviation,
    low_latency_buffer_bytes,
    low_latency_most_tokens,
    received,
    received_bytes,
    scaled_row_bytes,
    workspace_pairs,
)
from moesim.cost.memory import memory_budget
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import GpuSpec
from moesim.spec.placement import Placement, contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology

GIB = 2**30


def card(hbm_gib=80):
    return GpuSpec("card", 1e15, 1e15, 1e15, hbm_gib * GIB, 3e12, 450e9, 50e9)


def system_of(model, gpus=8, redundant=0, **options):
    placement = contiguous(model.moe_layer_count, model.experts, gpus, redundant)
    return System(model, Topology(card(), 1, gpus), placement, **options)


def shaped(hidden, inner, experts, top_k=8):
    """Return a model of which only what its experts see matters."""
    model = load_model("glm-4.5")
    shape = {"hidden": hidden, "expert_width": inner, "experts": experts}
    return replace(model, **shape, top_k=top_k, moe_layers=(0, 1))


@pytest.mark.parametrize(
    ("width", "inner", "kib"), [(5120, 1536, 20), (6144, 2048, 24), (1024, 4096, 24)]
)
def test_workspace_of_a_token_at_an_expert(width, inner, kib):
    """vLLM pull request 57270: 20 and 24 KiB a pair; wide experts need more."""
    assert expert_workspace_bytes(shaped(width, inner, 8), 1) == kib * 1024


TABLE = [
    # hidden, inner, experts, ranks, tokens; workspace and temporaries in GiB
    (5120, 1536, 160, 16, 8192, 1.3, 20, 0.26, 0.64),
    (5120, 1536, 160, 16, 16384, 2.5, 40, 0.53, 1.3),
    (5120, 1536, 160, 32, 8192, 1.3, 25, 0.29, 1.3),
    (5120, 1536, 160, 32, 16384, 2.5, 50, 0.59, 2.6),
    (6144, 2048, 256, 16, 8192, 1.6, 24, 0.32, 0.77),
    (6144, 2048, 256, 16, 16384, 3.1, 48, 0.63, 1.6),
    (6144, 2048, 256, 32, 8192, 1.5, 48, 0.35, 1.6),
    (6144, 2048, 256, 32, 16384, 3.0, 96, 0.70, 3.1),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_whole_table_of_workspace_and_temporaries(row):
    """GLM-4.6 and GLM-5 in vLLM's pull request 57270, within a digit of its last.

    Its balanced workspace also has the padding of a kernel, up to 0.1 GiB.
    """
    width, inner, experts, ranks, tokens, even, worst, rows, most_rows = row
    model = shaped(width, inner, experts)
    system = system_of(model, ranks)
    got, most = (received(system, tokens, case) for case in ("balanced", "worst"))

    balanced = expert_workspace_bytes(model, got.pairs) / GIB
    assert even - 0.11 <= balanced <= even
    assert expert_workspace_bytes(model, most.pairs) / GIB == worst
    for load, printed in ((got, rows), (most, most_rows)):
        size = received_bytes(model, load.tokens, "fp8") / GIB
        assert size == pytest.approx(printed, abs=0.055 if printed > 1 else 0.0055)


def test_experts_that_are_not_here_cannot_be_chosen_here():
    """Five experts on a GPU take at most five of a token's eight choices."""
    few = received(system_of(shaped(5120, 1536, 160), 32), 100, "worst")
    many = received(system_of(shaped(5120, 1536, 160), 16), 100, "worst")

    assert few.pairs == 5 * few.tokens
    assert many.pairs == 8 * many.tokens


def test_two_copies_of_an_expert_on_a_gpu_are_one_choice():
    """Four slots hold two experts, so a token has at most two of three pairs here."""
    model = shaped(64, 32, experts=4, top_k=3)
    doubled = Placement(np.array([[0, 1, 0, 1, 2, 2, 3, 3]] * 2), 2)
    system = System(model, Topology(card(), 1, 2), doubled)

    assert received(system, 10, "worst").pairs == 2 * 20


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "ratio"),
    [
        (1024, 32, 2, 1.0887),
        (128, 256, 8, 1.1245),
        (1024, 256, 8, 1.0443),
        (4096, 256, 8, 1.0218),
    ],
)
def test_chance_alone_loads_one_of_eight_gpus_more(tokens, experts, top_k, ratio):
    """Monte Carlo of uniform routing (oracle E02): hottest over mean of 8 GPUs."""
    system = system_of(shaped(64, 32, experts, top_k), 8)
    # `tokens` of all ranks together
    load = {c: received(system, tokens // 8, c).pairs for c in CASES}

    assert load["expected"] / load["balanced"] == pytest.approx(ratio, abs=2e-3)


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5)]
)
def test_largest_of_normal_numbers(count, mean):
    """Closed forms for one, two and three."""
    assert largest_deviation(count) == pytest.approx(mean, abs=1e-9)


def test_buffers_of_the_low_latency_kernels():
    """DeepEP issue 28: 2116.3 MB for 288 slots, 128 tokens, width 7168."""
    size = low_latency_buffer_bytes(load_model("deepseek-v3"), 288, 128)

    assert size / 1e6 == pytest.approx(2116.3, abs=0.05)


@pytest.mark.parametrize(
    ("tokens", "gib"), [(2048, 35.55), (1856, 32.21), (1840, 31.94), (1536, 26.66)]
)
def test_buffers_with_redundant_experts(tokens, gib):
    """vLLM issue 57894: four sizes for 384 + 64 slots and a width of 5120."""
    model = shaped(5120, 1536, 384)
    size = low_latency_buffer_bytes(model, 384 + 64, tokens, scaled_row_bytes(model))

    assert size / GIB == pytest.approx(gib, abs=0.005)


def test_redundant_experts_lower_the_tokens_a_buffer_can_address():
    """The issue: 1840 works, 1856 does not; without redundancy 2048 would."""
    model = shaped(5120, 1536, 384)

    assert 1840 <= low_latency_most_tokens(model, 448) < 1856
    assert low_latency_most_tokens(model, 384) >= 2048


def test_workspace_of_masked_kernels():
    """vLLM pull request 55579: 3.5 GiB for 16 slots and 32 ranks of 256 tokens."""
    model = load_model("deepseek-v3")
    system = system_of(model, 32, redundant=256, dispatch="low_latency")
    pairs = {case: workspace_pairs(system, 1024, case) for case in CASES}

    assert set(pairs.values()) == {(16 * 32 * 256.0, 0.0)}
    assert expert_workspace_bytes(model, pairs["worst"][0]) == 3.5 * GIB


def test_a_fused_shared_expert_runs_once_at_its_own_width():
    """DeepSeek-V2-Lite, 4096 tokens on one GPU: 6 choices of 1408 and one of 2816.

    Residual stream twice 32 MiB, 6 x 4096 pairs of 9728 B, 4096 of 16896 B; and none of
    the 2 x 2816 elements of a token that the shared network takes beside routed ones.
    """
    fused = system_of(load_model("deepseek-v2-lite"), 1, shared_experts="fused")
    tokens, mib = 4096, 2**20

    for case in CASES:
        assert workspace_pairs(fused, tokens, case) == (6 * tokens, tokens)
        assert activation_bytes(fused, tokens, case) == (32 + 228 + 66) * mib
    beside = replace(fused, shared_experts="before")
    assert activation_bytes(beside, tokens, "balanced") == (32 + 228 + 44) * mib


def test_a_masked_array_is_as_wide_as_its_expert():
    """Low latency: 8 routed slots and a shared one, 8 ranks of 100 tokens at each."""
    options = {"dispatch": "low_latency", "shared_experts": "waterfill"}
    system = system_of(load_model("deepseek-v2-lite"), 8, **options)

    assert workspace_pairs(system, 100, "worst") == (8 * 800, 800)
    assert activation_bytes(system, 100, "worst") == 800 * (
        8 * 9728 + 16896 + 2 * 2 * 2048 / 8
    )


def test_low_latency_tokens_go_in_rounds():
    """2048 tokens are 8 rounds of 256; they are kept once, however many batches fly."""
    system = system_of(load_model("mixtral-8x7b"), dispatch="low_latency")
    size = 4 * 8 * 256 * (2 * 4096 + 16)

    assert {exchange_bytes(system, 2048, case) for case in CASES} == {size}
    for flights in (1, 2):
        serving = ServingSpec(max_in_flight=flights)
        assert memory_budget(system, serving).buffer_bytes == size


def test_one_gpu_exchanges_nothing():
    system = system_of(load_model("olmoe-1b-7b"), gpus=1)

    assert {exchange_bytes(system, 2048, case) for case in CASES} == {0.0}
    assert {received(system, 10, case).pairs for case in CASES} == {80.0}


def test_narrow_rows_halve_what_dispatch_keeps_but_for_their_scales():
    model = load_model("deepseek-v3")

    assert received_bytes(model, 1, "bf16") == 2 * 7168
    assert received_bytes(model, 1, "fp8") == 7168 + 4 * 56


def test_activations_by_hand():
    """The residual stream twice, and the experts' two buffers beside it."""
    system = system_of(load_model("mixtral-8x7b"))
    residual = 2048 * 2 * 2 * 4096
    routed = 2048 * 2 * 2 * (14336 + 28672)

    assert activation_bytes(system, 2048, "balanced") == residual + routed


def test_a_rank_without_experts_still_needs_attention_s_buffers():
    """Few pairs: queries, keys, values and output of 32 heads are the larger."""
    system = system_of(load_model("seed-8x32"), gpus=32, tensor_parallel=32)

    got = activation_bytes(system, 2048, "balanced")
    assert got == 2048 * 2 * 2 * 4096 + expert_workspace_bytes(
        system.model, 2048 * 2 / 32
    )
    wide = replace(system.model, attention=replace(system.model.attention, heads=2048))
    system = replace(system, model=wide)
    assert activation_bytes(system, 2048, "balanced") == 2048 * 2 * (
        2 * 4096 + 2 * (64 + 1) * 128
    )


@given(
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    top_k=st.integers(1, 16),
    tokens=st.integers(1, 5000),
    dispatch=st.sampled_from(["fp8", "bf16"]),
)
def test_cases_are_in_order(gpus, top_k, tokens, dispatch):
    """Balanced, expected, worst; and no GPU gets more than there is."""
    model = shaped(64, 32, experts=16, top_k=top_k)
    system = system_of(model, gpus, precision=Precision(dispatch=dispatch))
    loads = [received(system, tokens, case) for case in CASES]

    for low, high in itertools.pairwise(loads):
        assert low.tokens <= high.tokens * (1 + 1e-12)
        assert low.pairs <= high.pairs * (1 + 1e-12)
    assert loads[-1].tokens == gpus * tokens
    assert loads[-1].pairs <= gpus * tokens * top_k
    for kind in (exchange_bytes, activation_bytes):
        sizes = [kind(system, tokens, case) for case in CASES]
        assert sizes == sorted(sizes)
