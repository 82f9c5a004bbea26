"""Contiguous memory: nobody overlaps, holes close up, and all is free in the end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.engine.memory.holes import Holes
from moesim.engine.memory.reservations import Reservations
from moesim.spec.memory import MemorySpec

steps = st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60)


class Plain:
    """The same with a list of who has each token."""

    def __init__(self, size):
        self.tokens = [None] * size

    def take(self, owner, length):
        for start in range(len(self.tokens) - length + 1):
            if all(x is None for x in self.tokens[start : start + length]):
                self.tokens[start : start + length] = [owner] * length
                return True
        return False

    def leave(self, owner):
        self.tokens = [None if x == owner else x for x in self.tokens]


def painted(holes):
    """Return who has each token; a token of two owners is a failure."""
    tokens = [None] * holes.size
    for owner, (start, length) in holes.held.items():
        assert tokens[start : start + length] == [None] * length
        tokens[start : start + length] = [owner] * length
    return tokens


@given(st.integers(0, 100), steps)
def test_it_is_first_fit_token_by_token(size, steps):
    holes, plain = Holes(size), Plain(size)
    for owner, (come, length) in enumerate(steps):
        if come or not holes.held:
            assert holes.take(owner, length) == plain.take(owner, length)
        else:
            gone = sorted(holes.held)[length % len(holes.held)]
            holes.leave(gone)
            plain.leave(gone)

        tokens = painted(holes)
        assert tokens == plain.tokens
        free = [row for row, owner in enumerate(tokens) if owner is None]
        listed = [t for start, n in holes.holes for t in range(start, start + n)]
        assert listed == free
        assert holes.free == len(free)
        edges = [start for start, _ in holes.holes]
        ends = [start + n for start, n in holes.holes]
        assert all(a < b for a, b in zip(ends, edges[1:], strict=False))
        assert holes.largest == max([n for _, n in holes.holes], default=0)
    for owner in sorted(holes.held):
        holes.leave(owner)
    assert holes.holes == ([(0, size)] if size else [])


def test_misuse_is_told():
    holes = Holes(10)
    assert holes.take(1, 4)
    with pytest.raises(ValueError, match="holds a stretch"):
        holes.take(1, 1)
    with pytest.raises(ValueError, match="asks for 0"):
        holes.take(2, 0)
    with pytest.raises(KeyError):
        holes.leave(2)


@pytest.mark.parametrize(
    ("reserve", "length"), [("max_model_len", 64), ("pow2", 10 + 32), ("exact", 34)]
)
def test_a_stretch_is_as_long_as_its_rule_says(reserve, length):
    """The paper's example: an answer of 25 tokens has 32 places with Orca (Pow2)."""
    spec = MemorySpec(kv_allocator="contiguous", reserve=reserve, max_model_len=64)
    stretches = Reservations(spec, 1, 100)

    assert stretches.length(10, 25) == length
    assert stretches.length(10, 32) <= max(length, 10 + 32)


def test_an_answer_of_one_token_needs_none_of_its_own():
    for reserve in ("pow2", "exact"):
        spec = MemorySpec(kv_allocator="contiguous", reserve=reserve)
        held = Reservations(spec, 1, 100).length(7, 1)
        assert held >= 7
        assert held == 7 + (reserve == "pow2")


def test_who_is_blocked_has_room_but_no_hole():
    spec = MemorySpec(kv_allocator="contiguous", reserve="exact")
    stretches = Reservations(spec, 2, 10)
    for request in range(3):
        assert stretches.take(0, request, 3)
    stretches.leave([0, 0], [0, 2])

    assert not stretches.take(0, 9, 11)
    assert not stretches.blocked[0]
    assert not stretches.take(0, 9, 6)
    assert stretches.blocked[0]
    assert stretches.take(0, 8, 4)
    assert not stretches.blocked[0]
    assert not stretches.blocked[1]
    assert np.array_equal(stretches.blocked, [False, False])


def test_what_never_fits_is_refused():
    spec = MemorySpec(kv_allocator="contiguous", max_model_len=50)
    assert "memory.max_model_len, 50" in Reservations(spec, 1, 100).refusal(40, 12)
    assert not Reservations(spec, 1, 100).refusal(40, 11)
    assert "in a row" in Reservations(spec, 1, 49).refusal(1, 1)
