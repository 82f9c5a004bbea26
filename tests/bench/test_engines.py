"""The short form of the benchmark: gates on equality and growth, never on seconds."""

from dataclasses import replace

import pytest

from bench.bench_engines import SHAPES, Trial, line, measure, sweep

SHORT = [replace(shape, passes=2, layers=8) for shape in SHAPES[:3]]


@pytest.mark.parametrize("shape", SHORT, ids=lambda shape: shape.name)
@pytest.mark.parametrize("policy", ["fifo", "oldest", "cross_layer"])
@pytest.mark.parametrize("kernel", ["grouped", "per_expert"])
def test_the_passes_that_are_timed_are_equal(shape, policy, kernel):
    """A ratio of speeds means something only between engines that do the same."""
    row = measure(shape, Trial(policy, kernel, waits=True), rounds=1)

    assert row["equal"]
    assert row["array_us_per_barrier"] > 0
    assert shape.name in line(row)


def test_time_hardly_grows_with_gpus():
    """An engine with a loop over GPUs has an exponent near 1, one without near 0.1."""
    _, exponent = sweep(Trial(), rounds=3, sizes=(8, 64, 512))

    assert exponent < 0.4
