"""Blocks on their way to the host and back: one queue a direction, first come first."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.cost.memory import kv_bytes, kv_bytes_per_token
from moesim.engine.memory.swap import Swap
from moesim.spec.catalogue import load_model
from moesim.spec.memory import MemorySpec
from worlds import GPU, tiny_system

BLOCK = 4


def swap_of(space=1e9, rate=55e9, **options):
    system = tiny_system(**options)
    gpu = replace(GPU, host_bandwidth=rate)
    system = replace(system, topology=replace(system.topology, gpu=gpu))
    spec = MemorySpec(preemption="swap", swap_space_bytes=space)
    return Swap(system, spec, BLOCK), system


def size_of(system, tokens):
    """Return the bytes of the whole blocks of so many tokens on one GPU."""
    each = kv_bytes_per_token(system.model, 2.0, system.tensor_parallel)
    return -(-tokens // BLOCK) * BLOCK * each


def test_a_copy_takes_its_bytes_over_the_ports_bandwidth():
    swap, system = swap_of(rate=1e6)
    size = size_of(system, 9)
    swap.put(5, 1, 9, now=100)

    assert swap.settle(100, np.array([0, 3, 0, 0])) == 100
    assert swap.used == [0, size, 0, 0]
    assert swap.tokens(5) == 9
    swap.back(5)
    ready = swap.settle(200, np.array([9, 9, 9, 9]))
    assert ready == 100 + 2 * round(size / 1e6 * 1e12)  # out, then in
    assert swap.used == [0, 0, 0, 0]
    assert swap.moved == 2 * size
    assert swap.tokens(5) == 0


def test_copies_queue_in_one_direction_and_not_against_each_other():
    swap, system = swap_of(rate=1e6)
    one = round(size_of(system, BLOCK) / 1e6 * 1e12)
    swap.put(1, 0, BLOCK, now=0)
    swap.put(2, 0, BLOCK, now=0)
    swap.put(3, 1, BLOCK, now=0)
    for request in (1, 2, 3):
        swap.back(request)

    # 1 is back at 2, 2 goes out until 2 and is back at 3; 3 has ports of its own.
    assert swap.settle(0, np.full(4, 9)) == 3 * one
    assert swap._in == [3 * one, 2 * one, 0, 0]


def test_a_pass_waits_for_the_blocks_it_takes_and_no_others():
    """Four blocks leave in turns of one and three; so many of them are taken."""
    for taken, waits in ((0, 0), (1, 1), (2, 4), (4, 4)):
        swap, system = swap_of(rate=1e6)
        one = round(size_of(system, BLOCK) / 1e6 * 1e12)
        swap.put(1, 0, BLOCK, now=0)
        swap.put(2, 0, 3 * BLOCK, now=0)
        assert swap.settle(0, np.array([4 - taken, 0, 0, 0])) == waits * one

    again = swap.settle(0, np.array([0, 0, 0, 0]))
    assert again == 0  # nothing is left to wait for: all have been taken


def test_who_finds_the_host_full_keeps_nothing():
    swap, system = swap_of(space=2.5 * size_of(tiny_system(), BLOCK))

    assert not swap.put(0, 0, 0, now=0)
    assert swap.put(1, 0, BLOCK, now=0)
    assert not swap.put(2, 0, 2 * BLOCK, now=0)
    assert swap.put(3, 0, BLOCK, now=0)
    assert swap.put(4, 1, 2 * BLOCK, now=0)  # the host of another rank's GPU
    assert swap.count == 3
    assert swap.peak == size_of(system, 2 * BLOCK)


def test_ports_without_limit_cost_no_time():
    swap, _ = swap_of(rate=float("inf"))
    swap.put(1, 0, 1000, now=7)
    swap.back(1)

    assert swap.settle(7, np.zeros(4, np.int64)) == 7


@pytest.mark.parametrize("width", [1, 2])
def test_the_gpus_of_a_rank_move_their_shares_at_once(width):
    swap, system = swap_of(tensor_parallel=width)
    swap.put(1, 0, BLOCK, now=0)

    assert swap.moved == width * size_of(system, BLOCK)


def test_layers_with_a_window_keep_no_more_than_it():
    system = replace(tiny_system(), model=load_model("gpt-oss-20b"))
    model = system.model
    layer = kv_bytes(system, 1) / model.layers

    assert kv_bytes(system, 128) == 128 * model.layers * layer
    assert kv_bytes(system, 1128) == (12 * 1128 + 12 * 128) * layer


times = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 50)), max_size=12
)


@given(times)
def test_no_copy_is_earlier_than_alone_and_ports_never_idle(jobs):
    """Against a plain queue: D = max(A, D before) + S, by rank and direction."""
    swap, system = swap_of(rate=1e6)
    now, out, back = 0, [0] * 4, [0] * 4
    for number, (rank, tokens, gap) in enumerate(jobs):
        now += gap * 10**9
        spent = round(size_of(system, tokens) / 1e6 * 1e12)
        out[rank] = max(now, out[rank]) + spent
        swap.put(number, rank, tokens, now)
        assert swap.kept[number].done == out[rank]
    for number, (rank, tokens, _) in enumerate(jobs):
        swap.back(number)
        done = swap.settle(now, np.full(4, 10**6))
        spent = round(size_of(system, tokens) / 1e6 * 1e12)
        ready = swap_out(jobs, number, system)
        back[rank] = max(now, ready, back[rank]) + spent
        assert done == back[rank]
    assert swap.used == [0] * 4
    assert not swap.kept


def swap_out(jobs, number, system):
    """Return when one of the jobs was on the host."""
    now, out = 0, [0] * 4
    for row, (rank, tokens, gap) in enumerate(jobs):
        now += gap * 10**9
        out[rank] = max(now, out[rank]) + round(size_of(system, tokens) / 1e6 * 1e12)
        if row == number:
            return out[rank]
    return 0
