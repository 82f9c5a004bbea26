"""Packaged GPUs are complete, plausible, and found by name."""

from dataclasses import fields, replace

import pytest

from moesim.errors import InputError
from moesim.spec.hardware import GpuSpec, gpu_names, load_gpu

EXPECTED = ["a100-40", "a100-80", "a800", "h100", "h800", "h200", "h20", "b200"]
EXPECTED += ["gb200", "b300", "mi300x"]
NUMBERS = [f.name for f in fields(GpuSpec) if f.name not in {"name", "source"}]
GPU = GpuSpec("card", 100.0, 200.0, 400.0, 1.0, 10.0, 20.0, 1.0)


def test_the_named_gpus_are_packaged():
    assert list(gpu_names()) == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_a_packaged_gpu_states_everything(name):
    """No field is left at its ideal default, and the source is said."""
    gpu = load_gpu(name)

    assert gpu.name == name
    assert len(gpu.source) > 20
    assert all(getattr(gpu, field) > 0 for field in NUMBERS)
    shares = [getattr(gpu, field) for field in NUMBERS if field.endswith("efficiency")]
    assert all(0.3 <= share <= 0.96 for share in shares)
    assert 2e-6 <= gpu.launch_s <= 10e-6
    assert 5e-6 <= gpu.nvlink_latency_s < gpu.nic_latency_s <= 50e-6


@pytest.mark.parametrize("name", EXPECTED)
def test_narrower_formats_are_never_slower(name):
    gpu = load_gpu(name)

    assert gpu.bf16_flops <= gpu.fp8_flops <= gpu.fp4_flops
    assert gpu.nic_bandwidth < gpu.nvlink_bandwidth < gpu.hbm_bandwidth


@pytest.mark.parametrize(
    ("name", "teraflops", "gib", "gigabytes_s"),
    [
        ("a100-40", (312, 312), 40, (1555, 300, 25)),
        ("a100-80", (312, 312), 80, (2039, 300, 25)),
        ("h100", (989, 1978), 80, (3350, 450, 50)),
        ("h200", (989, 1978), 141, (4800, 450, 50)),
        ("h800", (989, 1979), 80, (3430, 200, 50)),
        ("h20", (148, 296), 96, (4096, 450, 50)),
        ("b200", (2250, 4500), 180, (7700, 900, 100)),
        ("gb200", (2500, 5000), 185, (8000, 900, 100)),
        ("b300", (2250, 4500), 269, (7750, 900, 100)),
        ("mi300x", (1307, 2615), 192, (5300, 448, 50)),
    ],
)
def test_peaks_are_the_data_sheets(name, teraflops, gib, gigabytes_s):
    """bf16 and fp8 without sparsity; memory, NVLink and NIC, ports per direction."""
    gpu = load_gpu(name)

    rates = [gpu.hbm_bandwidth, gpu.nvlink_bandwidth, gpu.nic_bandwidth]
    assert [gpu.bf16_flops, gpu.fp8_flops] == [rate * 1e12 for rate in teraflops]
    assert rates == [rate * 1e9 for rate in gigabytes_s]
    assert gpu.hbm_bytes == gib * 2**30


@pytest.mark.parametrize(
    ("wrong", "near"), [("H100", "h100"), ("a100", "a100-40"), ("b201", "b200")]
)
def test_an_unknown_name_gets_the_nearest(wrong, near):
    with pytest.raises(InputError, match=f"no GPU '{wrong}'; did you mean '{near}"):
        load_gpu(wrong)


def test_a_name_like_nothing_gets_the_list():
    with pytest.raises(InputError, match="no GPU 'xyz'; known: a100-40, a100-80"):
        load_gpu("xyz")


@pytest.mark.parametrize(
    ("element", "peak"),
    [("bf16", 100), ("fp16", 100), ("fp8", 200), ("int8", 200), ("fp4", 400)],
)
def test_a_format_has_the_peak_of_its_bits(element, peak):
    assert GPU.peak(element) == peak


def test_each_rate_is_its_peak_times_its_share():
    """Dense products by width, experts, the core at 16 bits, memory, all-reduce."""
    gpu = replace(
        GPU,
        gemm_efficiency=0.9,
        narrow_efficiency=0.8,
        expert_efficiency=0.7,
        attention_efficiency=0.6,
        hbm_efficiency=0.5,
        allreduce_efficiency=0.25,
    )

    assert gpu.dense_rate("fp16") == pytest.approx(90)
    assert gpu.dense_rate("int8") == pytest.approx(160)
    assert gpu.expert_rate("fp8") == pytest.approx(140)
    assert gpu.attention_rate == pytest.approx(60)
    assert gpu.memory_rate == pytest.approx(5)
    assert gpu.allreduce_rate == pytest.approx(5)
