"""Blocks of KV memory are whole, and come back to the rank they were taken from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moesim.engine.batch.pool import KvPool


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_a_block_is_taken_whole(tokens, blocks):
    """ceil(tokens / block_size), of one number or of many."""
    pool = KvPool(1, 10, 16)

    assert pool.blocks_for(tokens) == blocks
    assert pool.blocks_for(np.array([tokens, 0])).tolist() == [blocks, 0]


def test_the_last_block_can_be_taken_and_no_more():
    """Nothing is taken when there are too few; other ranks' blocks do not count."""
    pool = KvPool(2, 3, 4)
    pool.take(0, 2)

    with pytest.raises(AssertionError, match="rank 0 has 1 free KV blocks, not 2"):
        pool.take(0, 2)
    with pytest.raises(AssertionError, match="rank 0 has 1 free KV blocks, not 2"):
        pool.take_all(np.array([2, 3]))
    assert pool.free.tolist() == [1, 3]
    pool.take_all(np.array([1, 3]))
    assert pool.free.tolist() == [0, 0]


def test_the_peak_stays_after_blocks_have_come_back():
    pool = KvPool(2, 5, 4)
    pool.take(1, 3)
    pool.release(1, 3)
    pool.take(1, 1)

    assert pool.peak.tolist() == [0, 3]


class Pool(RuleBasedStateMachine):
    """Two ranks take and release, alone or together; the model is two numbers."""

    def __init__(self):
        super().__init__()
        self.pool = KvPool(2, 5, 3)
        self.used, self.peak = [0, 0], [0, 0]

    def note(self):
        self.peak = [max(pair) for pair in zip(self.peak, self.used, strict=True)]

    @rule(rank=st.integers(0, 1), blocks=st.integers(0, 5))
    def take(self, rank, blocks):
        if self.used[rank] + blocks <= 5:
            self.pool.take(rank, blocks)
            self.used[rank] += blocks
            self.note()

    @rule(blocks=st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def take_all(self, blocks):
        wanted = [used + more for used, more in zip(self.used, blocks, strict=True)]
        if max(wanted) <= 5:
            self.pool.take_all(np.array(blocks))
            self.used = wanted
            self.note()

    @rule(shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), together=st.booleans())
    def release(self, shares, together):
        back = [int(s * used) for s, used in zip(shares, self.used, strict=True)]
        if together:
            self.pool.release_all(np.array(back))
        else:
            for rank, blocks in enumerate(back):
                self.pool.release(rank, blocks)
        self.used = [used - less for used, less in zip(self.used, back, strict=True)]

    @invariant()
    def every_block_is_free_or_in_use(self):
        assert self.pool.free.tolist() == [5 - used for used in self.used]
        assert self.pool.peak.tolist() == self.peak


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_blocks_never_hold_too_little_nor_one_too_many(tokens, size):
    blocks = KvPool(1, 1, size).blocks_for(tokens)

    assert (blocks - 1) * size < tokens <= blocks * size
    assert isinstance(blocks, int | np.integer)
