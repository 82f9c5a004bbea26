"""A waiting line is a list that is quick at both ends, and small."""

import sys
from itertools import count as counting
from time import process_time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.batch.line import Line

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.just([])),
        st.tuples(st.just("prepend"), st.just([])),
        st.tuples(st.just("take"), st.lists(st.integers(0, 8), max_size=4)),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(1, 9))
def test_a_line_is_a_list(steps, window):
    """Whatever is appended, prepended, or taken out of its first few."""
    line, model, new = Line(), [], counting()
    for what, given_ in steps:
        request = next(new)
        if what == "append":
            line.append(request)
            model.append(request)
        elif what == "prepend":
            line.prepend(request)
            model.insert(0, request)
        else:
            seen = line.first(window)
            assert seen.tolist() == model[:window]
            rows = sorted({row for row in given_ if row < len(seen)})
            line.remove([int(seen[row]) for row in rows], window)
            model[:window] = np.delete(seen, rows).tolist()
        assert line.tolist() == model
        assert len(line) == len(model)


def test_what_was_seen_does_not_change_with_the_line():
    line = Line()
    for request in range(4):
        line.append(request)
    seen = line.first(4)

    line.remove([0, 1, 2], 4)
    line.prepend(9)

    assert seen.tolist() == [0, 1, 2, 3]


def test_a_long_line_costs_five_bytes_a_request():
    line = Line()
    for request in range(100_000):
        line.append(request)

    assert line._buffer.nbytes <= 5.1 * len(line)
    assert sys.getsizeof(line) < 100


def test_a_long_line_is_as_quick_as_a_short_one():
    """Taking the first of many costs what taking the first of few costs."""

    def seconds(length):
        line = Line()
        for request in range(length):
            line.append(request)
        began = process_time()
        for _ in range(2000):
            seen = line.first(3)
            line.remove(seen[1:2].tolist(), 3)
            line.append(length)
            line.prepend(length + 1)
            line.remove([length + 1], 3)
        return process_time() - began

    short = min(seconds(500) for _ in range(3))
    long = min(seconds(200_000) for _ in range(3))
    assert long < 5 * short
