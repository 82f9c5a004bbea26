"""The link bench: closed forms, laws, and the model's own figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.test_diagnose import read, skewed, uniform, write
from moesim.diagnose import links
from moesim.errors import InputError
from moesim.spec.hardware import load_gpu

GPU = load_gpu("h100")
NVLINK = GPU.nvlink_bandwidth * GPU.nvlink_efficiency
NIC = GPU.nic_bandwidth * GPU.nic_efficiency


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 16), st.integers(1, 1 << 30))
def test_one_node_takes_a_latency_and_what_leaves_the_gpu(gpus, size):
    """Time = latency + (G - 1)/G size / bandwidth; bus bandwidth is below the port's."""
    pattern = links.balanced(GPU, (1, gpus), "low_latency")
    (row,) = links.bench(pattern, [size])
    moved = size * (gpus - 1) / gpus

    # The engine's clock is exact to a picosecond, the closed form to rounding.
    expected = GPU.nvlink_latency_s + moved / NVLINK
    assert row["seconds"] == pytest.approx(expected, rel=1e-9)
    assert row["algbw"] == pytest.approx(size / row["seconds"])
    assert row["busbw"] == pytest.approx(moved / row["seconds"])
    assert row["busbw"] < NVLINK


@pytest.mark.parametrize(
    ("kernel", "share"), [("low_latency", 24 / 32), ("normal", 24 / 32)]
)
def test_between_nodes_the_nic_sets_the_time(kernel, share):
    """Three of four nodes are elsewhere: three quarters go over the NIC."""
    pattern = links.balanced(GPU, (4, 8), kernel)
    (row,) = links.bench(pattern, [1 << 30])

    assert row["bound"] == "nic"
    assert row["seconds"] == pytest.approx((1 << 30) * share / NIC, rel=0.01)


def test_small_messages_are_bound_by_latency_and_time_never_falls():
    rows = links.bench(
        links.balanced(GPU, (2, 8), "low_latency"), links.parse_sizes("8:1G", 4)
    )
    times = [row["seconds"] for row in rows]

    assert rows[0]["bound"] == "latency"
    assert rows[-1]["bound"] == "nic"
    assert times == sorted(times)
    assert [row["busbw"] for row in rows] == sorted(row["busbw"] for row in rows)


def test_a_log_of_uniform_routing_is_nearly_balanced_and_a_skewed_one_is_not(tmp_path):
    even = read(write(tmp_path / "even.npz", uniform()))
    hot = read(write(tmp_path / "hot.npz", skewed()))
    size = [1 << 28]
    (base,) = links.bench(links.balanced(GPU, (1, 8), "low_latency"), size)
    (flat,) = links.bench(links.skewed(even, GPU, (1, 8), "low_latency"), size)
    (steep,) = links.bench(links.skewed(hot, GPU, (1, 8), "low_latency"), size)

    assert 1 <= flat["seconds"] / base["seconds"] < 1.1
    assert steep["seconds"] / base["seconds"] > 2.5
    assert steep["worst_s"] >= steep["seconds"]


def test_skew_is_the_busiest_port_over_the_mean(tmp_path):
    """One node, straight to the choice: receiving takes as long as the hot GPU's share."""
    found = read(write(tmp_path / "hot.npz", skewed(tokens=1024)))
    pattern = links.skewed(found, GPU, (1, 8), "low_latency")
    gpu = found.ids // 4
    source = np.arange(1024) % 8
    away = gpu != source[:, None, None]
    received = np.array(
        [np.bincount(gpu[:, at][away[:, at]], minlength=8) for at in range(4)]
    )

    assert np.allclose(pattern.rx[:, 0], received / (1024 * 4 / 8))
    assert not pattern.rx[:, 1].any()


def test_a_slower_port_is_slower():
    slow = replace(GPU, nvlink_bandwidth=GPU.nvlink_bandwidth / 2)
    (one,) = links.bench(links.balanced(GPU, (1, 8), "normal"), [1 << 28])
    (two,) = links.bench(links.balanced(slow, (1, 8), "normal"), [1 << 28])

    assert two["seconds"] == pytest.approx(2 * one["seconds"], rel=0.05)


def test_counts_have_no_skew_of_links(tmp_path):
    from routing.logs import samples

    sample = samples.eplb_load(tmp_path)
    with pytest.raises(InputError, match="only counts"):
        links.skewed(read(sample.path), GPU, (1, 8), "normal")


@pytest.mark.parametrize(
    "text", ["", "x", "8:4", "0", "8:16:32", "-1", "1T", "²", "8:9999999999999999999G"]
)
def test_strange_sizes_are_refused(text):
    with pytest.raises(InputError):
        links.parse_sizes(text, 2)


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan"), float("inf"), 1.0000001])
def test_strange_factors_are_refused(factor):
    with pytest.raises(InputError):
        links.parse_sizes("8:128M", factor)


def test_sizes_are_those_of_nccl_tests():
    assert links.parse_sizes("8:128M", 2) == [8 << n for n in range(25)]
    assert links.parse_sizes("1kb:1K", 3) == [1024]
