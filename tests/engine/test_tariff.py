"""Looked-up prices are the computed ones, tick for tick."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.pass_ import PassLoad
from moesim.cost.price import price
from moesim.engine.assemble import tariff
from moesim.engine.assemble.tariff import Tariff
from moesim.engine.microbatch import quantise
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import load_gpu
from moesim.spec.placement import contiguous
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology


def system_of(name, gpus, nodes, speed, **options):
    model = load_model(name)
    spare = -model.experts % gpus
    placement = contiguous(model.moe_layer_count, model.experts, gpus, spare)
    topology = Topology(load_gpu("h100"), nodes, gpus // nodes, speed)
    return System(model, topology, placement, **options)


SYSTEMS = [
    system_of("mixtral-8x7b", 4, 1, ()),
    system_of("mixtral-8x7b", 8, 2, (1.0,) * 7 + (0.7,), dispatch="low_latency"),
    system_of("deepseek-v2-lite", 8, 2, (), experts="per_expert"),
    system_of(
        "deepseek-v2-lite",
        8,
        1,
        (1.0, 0.5) * 4,
        precision=Precision("fp8", "fp8", "fp8", "fp8", "bf16"),
    ),
    system_of("gpt-oss-20b", 4, 1, (), tensor_parallel=2),
]


def random_load(system, seed, most):
    """Return a load of any figures: prices need not be of a pass that could be."""
    rng = np.random.default_rng(seed)
    layers, gpus = system.model.moe_layer_count, system.topology.gpus
    shape = (layers, system.placement.slots_per_gpu, gpus)
    columns = [rng.integers(0, most, gpus) * (rng.random(gpus) < 0.7) for _ in range(5)]
    counts = [
        rng.integers(0, most, size) * (rng.random(size) < 0.6)
        for size in (shape, (layers, 2, gpus), (layers, 2, gpus))
    ]
    return PassLoad(*columns, *counts)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: f"{s.model.name}")
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 2, 40, 255, 256, 5000]))
def test_prices_equal_those_computed_for_the_pass(system, seed, most):
    """Whatever the table has met before: it grows as counts do."""
    table = Tariff(system)
    for number in range(2):
        load = random_load(system, seed + number, max(1, most // (2 - number)))

        found, expected = table.price(load), quantise(price(load, system))

        for ours, theirs in zip(astuple(found), astuple(expected), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_counts_beyond_the_table_are_priced_one_by_one(monkeypatch):
    """The table stays small; the prices stay the same."""
    monkeypatch.setattr(tariff, "MOST_CELLS", 2000)
    system = SYSTEMS[1]
    table, load = Tariff(system), random_load(system, 1, 4000)

    found, expected = table.price(load), quantise(price(load, system))

    assert table.counts == 0
    np.testing.assert_array_equal(found.experts, expected.experts)
    np.testing.assert_array_equal(found.tx, expected.tx)


def test_spare_counts_may_be_beyond_the_clock():
    """A table is longer than the counts it was asked for; only those must be right."""
    system = SYSTEMS[0]
    slow = replace(system.topology.gpu, nvlink_bandwidth=0.02)
    system = replace(system, topology=replace(system.topology, gpu=slow))
    load = random_load(system, 2, 3)

    found, expected = Tariff(system).price(load), quantise(price(load, system))

    np.testing.assert_array_equal(found.tx, expected.tx)
