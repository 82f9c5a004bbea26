"""What moving experts costs: every byte on a port and in memory, by hand and by law."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.pass_ import COMBINE, DISPATCH
from moesim.cost.relocation import (
    Relocation,
    host_cost,
    relocation_cost,
    staging_bytes,
)
from moesim.cost.weights import expert_bytes
from moesim.spec.topology import NIC, NVLINK
from worlds import tiny_system

SYSTEM = tiny_system(layers=2, count=8, gpus=4, nodes=2)
SIZE = expert_bytes(SYSTEM.model, "bf16")
READ_S = SIZE / SYSTEM.topology.gpu.memory_rate


def moving(*hops, steps=1, kept=None, filled=None):
    """Return a relocation of (step, source, target) hops."""
    step, source, target = np.array(hops, np.int64).reshape(-1, 3).T
    nothing = np.zeros((steps, 4), np.int64)
    return Relocation(
        step,
        source,
        target,
        nothing if kept is None else np.array(kept),
        nothing if filled is None else np.array(filled),
    )


def test_one_expert_to_the_neighbour():
    """Read, sent over NVLink, written to the buffer, copied from there to its slot."""
    cost = relocation_cost(moving((0, 0, 1), filled=[[0, 1, 0, 0]]), SYSTEM)

    assert cost.attention[0] == pytest.approx([READ_S, 0, 0, 0])
    assert cost.tail == pytest.approx([0, 3 * READ_S, 0, 0])
    assert cost.tx[0, DISPATCH, NVLINK] == pytest.approx([SIZE / 450e9, 0, 0, 0])
    assert cost.rx[0, DISPATCH, NVLINK] == pytest.approx([0, SIZE / 450e9, 0, 0])
    assert not cost.tx[:, :, NIC].any()
    assert not cost.tx[:, COMBINE].any()
    assert not cost.experts.any()


def test_other_nodes_are_reached_over_the_nic():
    cost = relocation_cost(moving((0, 1, 2), (0, 1, 3)), SYSTEM)

    assert cost.tx[0, DISPATCH, NIC] == pytest.approx([0, 2 * SIZE / 50e9, 0, 0])
    assert cost.rx[0, DISPATCH, NIC] == pytest.approx([0, 0, SIZE / 50e9, SIZE / 50e9])
    assert not cost.tx[:, :, NVLINK].any()


def test_what_stays_on_its_gpu_costs_no_link():
    """Two copies in device memory, each a read and a write."""
    cost = relocation_cost(moving(kept=[[1, 0, 0, 0]], filled=[[1, 0, 0, 0]]), SYSTEM)

    assert cost.attention[0] == pytest.approx([2 * READ_S, 0, 0, 0])
    assert cost.tail == pytest.approx([2 * READ_S, 0, 0, 0])
    assert not cost.tx.any()


def test_a_step_ends_before_the_next_one_reads():
    """GPU 1 writes what came in the first step, then reads what it sends."""
    steps = moving((0, 0, 1), (1, 1, 0), steps=2, filled=[[0, 1, 0, 0], [1, 0, 0, 0]])

    cost = relocation_cost(steps, SYSTEM)

    assert cost.attention == pytest.approx(
        np.array([[1, 0, 0, 0], [0, 4, 0, 0]]) * READ_S
    )
    assert cost.tail == pytest.approx([3 * READ_S, 0, 0, 0])


def test_a_slow_gpu_takes_longer():
    slow = replace(SYSTEM, topology=replace(SYSTEM.topology, speed=(0.5, 1, 1, 1)))
    fast, late = (
        relocation_cost(moving((0, 0, 1)), system).attention
        for system in (SYSTEM, slow)
    )

    assert late[0, 0] == 2 * fast[0, 0]


def test_weights_from_the_host_come_one_gpu_at_its_own_pace():
    """The one that gets the most is the last; nothing crosses a port."""
    cost, seconds = host_cost(np.array([2, 0, 1, 0]), SYSTEM)

    assert seconds == pytest.approx(2 * SIZE / SYSTEM.topology.gpu.host_bandwidth)
    assert cost.tail == pytest.approx([2 * READ_S, 0, READ_S, 0])
    assert not cost.tx.any()
    assert not cost.attention.any()


def test_the_buffer_is_one_layer_of_a_gpu():
    assert staging_bytes(SYSTEM) == 2 * SIZE


@st.composite
def relocations(draw):
    steps, count = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    source = rng.integers(0, 4, count)
    target = (source + rng.integers(1, 4, count)) % 4
    kept, filled = rng.integers(0, 3, (2, steps, 4))
    return Relocation(rng.integers(0, steps, count), source, target, kept, filled)


@settings(max_examples=60, deadline=None)
@given(move=relocations())
def test_all_that_is_sent_arrives(move):
    """In each step and class; and memory moves what ports move, and the copies."""
    sent, received = move.ports(SYSTEM)
    cost = relocation_cost(move, SYSTEM)

    assert (sent.sum(axis=2) == received.sum(axis=2)).all()
    assert sent.sum() == len(move.source)
    memory = (cost.attention.sum() + cost.tail.sum()) / READ_S
    copies = 2 * move.kept.sum() + 2 * move.filled.sum()
    assert memory == pytest.approx(2 * len(move.source) + copies)
    seconds = SIZE / SYSTEM.topology.bandwidth
    assert cost.tx[:, DISPATCH].sum(axis=(0, 2)) == pytest.approx(
        sent.sum(axis=(0, 2)) * seconds
    )
