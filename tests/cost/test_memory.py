"""What fits into a GPU. Oracle ids name independently derived values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.buffers import activation_bytes, received_bytes
from moesim.cost.memory import (
    blocks_for,
    kv_bytes_per_token,
    kv_capacity_blocks,
    memory_budget,
    rule_of_thumb_kv_bytes,
)
from moesim.cost.weights import (
    expert_bytes,
    experts_bytes,
    resident_bytes,
    resident_parts,
    transfer_s,
)
from moesim.errors import InputError
from moesim.spec.catalogue import load_model, model_names
from moesim.spec.hardware import GpuSpec
from moesim.spec.parameters import count_parameters
from moesim.spec.placement import contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology

GIB = 2**30
FP8 = Precision(experts="fp8", weights="fp8")


def system_of(name, gpus=8, redundant=0, hbm_gib=80, **options):
    """Return a model on GPUs of which only the memory matters."""
    model = load_model(name)
    gpu = GpuSpec("card", 1e15, 1e15, 1e15, hbm_gib * GIB, 3e12, 450e9, 50e9)
    placement = contiguous(model.moe_layer_count, model.experts, gpus, redundant)
    return System(model, Topology(gpu, 1, gpus), placement, **options)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("seed-8x32", 131_072),
        ("mixtral-8x7b", 131_072),
        ("mixtral-8x22b", 229_376),
        ("qwen3-30b-a3b", 98_304),
        ("deepseek-v3", 70_272),
    ],
)
def test_kv_bytes_of_a_token(name, size):
    """Oracle C04 in bf16: multi-head, grouped-query and latent attention."""
    assert kv_bytes_per_token(load_model(name), 2.0) == size


def test_kv_bytes_without_sharing_of_heads():
    """Oracle C04: Qwen3-30B with a key-value head per query head."""
    model = load_model("qwen3-30b-a3b")
    alone = replace(model, attention=replace(model.attention, kv_heads=32))

    assert kv_bytes_per_token(alone, 2.0) == 786_432


def test_a_narrower_cache_is_smaller_in_proportion():
    """Fp8 halves the cache."""
    model = load_model("mixtral-8x7b")

    assert kv_bytes_per_token(model, 1.0) * 2 == kv_bytes_per_token(model, 2.0)


@pytest.mark.parametrize(
    ("name", "parts", "share"),
    [("mixtral-8x7b", 4, 4), ("mixtral-8x7b", 16, 8), ("deepseek-v3", 8, 1)],
)
def test_heads_are_split_among_gpus_and_latents_are_not(name, parts, share):
    """Eight key-value heads on 16 GPUs: each still keeps one."""
    model = load_model(name)
    whole = kv_bytes_per_token(model, 2.0)

    assert kv_bytes_per_token(model, 2.0, parts) * share == whole


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (4096, 256), (4097, 257)]
)
def test_the_last_block_may_be_part_empty(tokens, blocks):
    """Oracle C05: blocks of 16 tokens."""
    assert blocks_for(tokens, 16) == blocks


def test_blocks_of_many_sequences_at_once():
    """Oracle C05 on an array."""
    lengths = np.array([1, 16, 17, 4096, 4097])

    assert blocks_for(lengths, 16).tolist() == [1, 1, 2, 256, 257]


@pytest.mark.parametrize(
    ("name", "redundant", "gib"), [("deepseek-v3", 32, 21.4), ("deepseek-v3", 0, 19.0)]
)
def test_routed_experts_of_a_published_deployment(name, redundant, gib):
    """58 layers x 9 (or 8) x 3 x 7168 x 2048 bytes in fp8 on 32 GPUs."""
    system = system_of(name, gpus=32, redundant=redundant, precision=FP8)

    assert experts_bytes(system) / GIB == pytest.approx(gib, abs=0.05)
    assert experts_bytes(system) == 58 * (256 + redundant) // 32 * 3 * 7168 * 2048


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "llama-4-maverick"])
def test_one_gpu_carries_every_parameter_once(name):
    """Resident and routed weights of a single GPU are the whole model in bf16."""
    system = system_of(name, gpus=1)
    count = count_parameters(load_model(name))
    final_norm = load_model(name).hidden

    stored = resident_bytes(system) + experts_bytes(system)

    assert stored == 2 * (count.total - final_norm)


def test_vocabulary_and_router_stay_wide_in_quantised_models():
    """Fp8 halves everything but them."""
    wide, narrow = (
        resident_bytes(system_of("deepseek-v3", precision=p))
        for p in (Precision(), FP8)
    )
    count = count_parameters(load_model("deepseek-v3"))
    kept = 2 * (count.embedding + count.lm_head - 7168 + count.router)

    assert narrow - kept == (wide - kept) / 2


def test_tensor_parallelism_splits_what_is_not_shared():
    """Mixtral's eight key-value heads divide by 4; only router and norms are whole."""
    whole = resident_bytes(system_of("mixtral-8x7b"))
    split = resident_bytes(system_of("mixtral-8x7b", tensor_parallel=4))
    repeated = 2 * 32 * (4096 * 8 + 2 * 4096)

    assert split - repeated == (whole - repeated) / 4


def test_parts_of_the_weights_are_those_of_the_parameter_count():
    """Llama 4 Maverick on one GPU: dense, MoE, shared expert, both matrices."""
    parts = resident_parts(system_of("llama-4-maverick", gpus=1))
    count = count_parameters(load_model("llama-4-maverick"))
    final_norm = load_model("llama-4-maverick").hidden

    assert parts.attention == 2 * count.attention
    assert parts.dense == 2 * count.dense > 0
    assert parts.shared == 2 * count.shared > 0
    assert parts.router == 2 * count.router
    assert parts.vocabulary == 2 * (count.embedding + count.lm_head - final_norm)


@pytest.mark.parametrize(
    "name", [n for n in model_names() if load_model(n).published_total]
)
def test_weights_of_every_preset_are_the_published_ones(name):
    """Bytes in bf16 on one GPU, within 1.5 % of publishers' rounded totals."""
    system = system_of(name, gpus=1)
    stored = resident_bytes(system) + experts_bytes(system)

    assert stored / 2 == pytest.approx(load_model(name).published_total, rel=0.015)


@pytest.mark.parametrize(
    ("name", "element", "size", "pcie", "nvme"),
    [
        ("mixtral-8x7b", "bf16", 352_321_536, 6.405846109090909e-3, 0.058720256),
        ("deepseek-v3", "fp8", 44_040_192, 8.007307636363636e-4, 0.007340032),
    ],
)
def test_moving_one_expert(name, element, size, pcie, nvme):
    """Oracle C07: 55 GB/s of PCIe 5.0, 6 GB/s of an NVMe drive."""
    assert expert_bytes(load_model(name), element) == size
    assert transfer_s(size, 55e9) == pytest.approx(pcie, rel=1e-12)
    assert transfer_s(size, 6e9) == pytest.approx(nvme, rel=1e-12)
    assert transfer_s(size, 6e9, 1.0) == pytest.approx(nvme + 1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "quoted", "over"),
    [
        ("mixtral-8x7b", 524_288, 4.0),
        ("mixtral-8x22b", 1_376_256, 6.0),
        ("qwen3-30b-a3b", 393_216, 4.0),
        ("deepseek-v3", 1_748_992, 24.88888888888889),
        ("seed-8x32", 131_072, 1.0),
        ("olmoe-1b-7b", 131_072, 1.0),
    ],
)
def test_the_quoted_formula_is_right_for_multi_head_attention_only(name, quoted, over):
    """Oracle C04: how far ``2 x layers x hidden x bytes`` is off."""
    model = load_model(name)

    assert rule_of_thumb_kv_bytes(model, 2.0) == quoted
    assert quoted / kv_bytes_per_token(model, 2.0) == pytest.approx(over, rel=1e-9)


def test_rows_that_are_moved_count_once_per_micro_batch_in_flight():
    """16384 tokens, each with a chance of 1/4 to need a GPU's one expert of eight."""
    system = system_of("mixtral-8x7b")
    rows = received_bytes(system.model, 16384 / 4, "bf16")

    for flights in (1, 3):
        budget = memory_budget(system, ServingSpec(max_in_flight=flights))
        assert budget.buffer_bytes == pytest.approx(2 * flights * rows)


def test_the_budget_adds_up():
    """What is used and what is left are the usable share of the memory."""
    budget = memory_budget(system_of("mixtral-8x7b"), ServingSpec(), 0.8, GIB)

    assert budget.usable_bytes == 0.8 * 80 * GIB
    assert sum(budget.parts.values()) + budget.free_bytes == budget.usable_bytes
    assert budget.parts["reserve"] == GIB
    assert "64 GiB of 80 GiB usable" in str(budget)


def test_activations_grow_with_micro_batches_in_flight():
    """Each one in flight has its own buffers; the logits are there once."""
    system = system_of("mixtral-8x7b")
    once, twice, thrice = (
        memory_budget(system, ServingSpec(max_in_flight=n)).workspace_bytes
        for n in (1, 2, 3)
    )

    assert twice - once == thrice - twice
    assert twice - once == activation_bytes(system, 2048, "balanced")
    assert 2 * once - twice == 4 * 256 * 32000


def test_capacity_is_what_is_left_in_whole_blocks():
    """Blocks of all layers fill the free memory but for a remainder."""
    system, serving = system_of("mixtral-8x7b"), ServingSpec()
    blocks = kv_capacity_blocks(system, serving)
    free = memory_budget(system, serving).free_bytes
    block = 16 * 131_072

    assert blocks * block <= free < (blocks + 1) * block


def test_a_latent_cache_does_not_grow_with_tensor_parallelism():
    """The freed weights add blocks, the cache itself is whole on every GPU."""
    serving = ServingSpec()
    system = system_of("deepseek-v3", gpus=32, precision=FP8, tensor_parallel=8)
    free = memory_budget(system, serving).free_bytes

    assert kv_capacity_blocks(system, serving) == int(free // (16 * 70_272))


def test_windowed_layers_need_memory_for_their_windows_only():
    """gpt-oss: half of its layers keep 128 tokens, so it holds almost twice as many."""
    system, serving = system_of("gpt-oss-120b"), ServingSpec()
    free = memory_budget(system, serving).free_bytes
    alike = free / (16 * 36 * 2048)
    windows = (256 * (128 + 16) + 2048) * 18 * 2048

    blocks = kv_capacity_blocks(system, serving)

    assert blocks == int((free - windows) // (16 * 18 * 2048))
    assert 1.8 * alike < blocks < 2 * alike


def test_windows_too_large_to_set_aside_are_treated_as_full_layers():
    """Llama 4's chunks of 8192 tokens for 256 requests would fill the GPU."""
    system = system_of("llama-4-scout")
    serving = ServingSpec()
    free = memory_budget(system, serving).free_bytes

    assert kv_capacity_blocks(system, serving) == int(free // (16 * 48 * 4096))


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic():
    """671B parameters in bf16 on 8 GPUs of 80 GiB."""
    with pytest.raises(InputError) as refused:
        kv_capacity_blocks(system_of("deepseek-v3"), ServingSpec())

    for part in (
        "8 x card",
        "32 experts a layer",
        "72 GiB of 80 GiB",
        "152 GiB routed",
    ):
        assert part in str(refused.value)


def test_room_for_less_than_one_block_is_refused():
    """The weights fit, but not a single block of 16 tokens."""
    system, serving = system_of("mixtral-8x7b"), ServingSpec()
    free = memory_budget(system, serving).free_bytes
    block = 16 * 131_072

    assert kv_capacity_blocks(system, serving, reserve_bytes=free - block) == 1
    with pytest.raises(InputError, match="for the KV cache"):
        kv_capacity_blocks(system, serving, reserve_bytes=free - block + 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(40, 400), st.integers(1, 64), st.floats(0.5, 1.0))
def test_more_memory_never_holds_fewer_blocks(hbm_gib, block_size, utilization):
    """Monotone in device memory, in the usable share, and against the reserve."""
    serving = ServingSpec(block_size=block_size)

    def blocks(size, share, reserve):
        system = system_of("mixtral-8x7b", hbm_gib=size)
        try:
            return kv_capacity_blocks(system, serving, share, reserve)
        except InputError:
            return 0

    here = blocks(hbm_gib, utilization, GIB)

    assert here <= blocks(hbm_gib + 1, utilization, GIB)
    assert here <= blocks(hbm_gib, 1.0, GIB)
    assert here <= blocks(hbm_gib, utilization, 0.0)
