"""Blocks of KV memory are whole, have one owner, and come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moesim.engine.pool import KvPool


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_a_block_is_taken_whole(tokens, blocks):
    """ceil(tokens / block_size)."""
    pool = KvPool(1, 1, 10, 16)

    pool.take(0, 0, tokens)

    assert pool.blocks_for(tokens) == blocks
    assert pool.held[0] == blocks
    assert pool.free[0] == 10 - blocks
    assert pool.peak[0] == blocks


def test_only_missing_blocks_are_taken():
    """A request that grows keeps what it holds."""
    pool = KvPool(1, 1, 10, 4)
    pool.take(0, 0, 5)

    pool.take(0, 0, 9)

    assert (pool.held[0], pool.free[0]) == (3, 7)


def test_a_request_never_gives_blocks_back_by_asking_for_fewer_tokens():
    pool = KvPool(1, 1, 10, 4)
    pool.take(0, 0, 9)

    pool.take(0, 0, 1)

    assert (pool.held[0], pool.free[0]) == (3, 7)


def test_the_last_block_fits_and_one_more_does_not():
    """Held blocks count, other ranks' free ones do not."""
    pool = KvPool(2, 2, 3, 4)
    pool.take(0, 0, 4)

    assert pool.fits(0, 0, 12)
    assert not pool.fits(0, 0, 13)
    assert pool.fits(0, 1, 8)
    assert not pool.fits(0, 1, 9)


def test_taking_what_is_not_there_is_refused():
    """And nothing is taken."""
    pool = KvPool(1, 1, 2, 4)

    with pytest.raises(AssertionError, match="2 free KV blocks, not 3"):
        pool.take(0, 0, 9)
    assert (pool.held[0], pool.free[0]) == (0, 2)


def test_releasing_twice_gives_nothing_the_second_time():
    pool = KvPool(1, 1, 5, 4)
    pool.take(0, 0, 9)
    pool.release(0, 0)

    pool.release(0, 0)

    assert (pool.held[0], pool.free[0]) == (0, 5)


def test_the_peak_stays_after_blocks_have_come_back():
    pool = KvPool(2, 2, 5, 4)
    pool.take(1, 0, 12)
    pool.release(1, 0)
    pool.take(1, 1, 4)

    assert pool.peak.tolist() == [0, 3]


class Pool(RuleBasedStateMachine):
    """Requests of two ranks grow and go; the model is a plain dict of tokens."""

    def __init__(self):
        super().__init__()
        self.pool = KvPool(2, 6, 5, 3)
        self.tokens = {}
        self.peak = [0, 0]

    def used(self, rank):
        return sum(-(-t // 3) for q, t in self.tokens.items() if q % 2 == rank)

    @rule(request=st.integers(0, 5), more=st.integers(1, 7))
    def grow(self, request, more):
        rank = request % 2
        held = self.tokens.get(request, 0)
        need = -(-(held + more) // 3) - -(-held // 3)
        fits = need <= 5 - self.used(rank)

        assert self.pool.fits(rank, request, held + more) == fits
        if fits:
            self.pool.take(rank, request, held + more)
            self.tokens[request] = held + more
            self.peak[rank] = max(self.peak[rank], self.used(rank))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data):
        request = data.draw(st.sampled_from(sorted(self.tokens)))
        self.pool.release(request % 2, request)
        del self.tokens[request]

    @invariant()
    def every_block_is_free_or_has_one_owner(self):
        for rank in (0, 1):
            held = sum(self.pool.held[rank::2])

            assert held == self.used(rank)
            assert self.pool.free[rank] == 5 - held >= 0
        assert self.pool.peak.tolist() == self.peak


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_blocks_never_hold_too_little_nor_one_too_many(tokens, size):
    blocks = KvPool(1, 1, 1, size).blocks_for(tokens)

    assert (blocks - 1) * size < tokens <= blocks * size
    assert isinstance(blocks, int | np.integer)
