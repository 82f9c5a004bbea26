"""A request is a few numbers in columns: how many bytes, and what they hold."""

import numpy as np
import pytest

from moesim.engine.batch.line import Line
from moesim.measure.columns import FINISHED, NEVER, REJECTED, RequestColumns
from moesim.workload.arrivals import PoissonArrivals
from moesim.workload.generate import WorkloadSpec, generate
from worlds import requests_of

MOST_BYTES = 64


def columns_of(owner):
    return [value for value in vars(owner).values() if isinstance(value, np.ndarray)]


def test_a_request_costs_at_most_64_bytes():
    """All columns by their item sizes, and a place in a waiting line."""
    count = 100_000
    spec = WorkloadSpec(count, PoissonArrivals(10.0), 5, 5)
    requests = generate(spec, 0)
    rows = RequestColumns(requests)
    line = Line()
    for request in range(count):
        line.append(request)

    drawn = [getattr(requests, name) for name in requests.__slots__]
    drawn = [value for value in drawn if isinstance(value, np.ndarray)]
    columns = [*columns_of(rows), *drawn]
    assert all(len(column) == count for column in columns)
    assert not any(column.dtype.hasobject for column in columns)
    assert sum(column.itemsize for column in columns) == 41 + 17
    whole = sum(column.nbytes for column in columns) + line._buffer.nbytes
    assert whole <= MOST_BYTES * count


def test_many_classes_cost_a_byte_more():
    classes = tuple((f"c{number}", 1.0) for number in range(300))

    requests = generate(WorkloadSpec(10, PoissonArrivals(1.0), 1, 1, classes), 0)
    assert requests.klass.dtype == np.uint16


def rows_of(count):
    return RequestColumns(requests_of(np.zeros(count), 1, 3))


def test_tokens_are_written_down_for_many_requests_at_once():
    """First tokens have no gap; later ones have, in the order of the pass."""
    rows = rows_of(3)
    rows.emit(np.array([2, 0]), 100)
    rows.emit(np.array([0, 1, 2]), 130)

    assert rows.first.tolist() == [100, 130, 100]
    assert rows.last.tolist() == [130, 130, 130]
    owner, gap = rows.gaps.part(slice(None))
    assert (owner.tolist(), gap.tolist()) == ([0, 2], [30, 30])


def test_a_first_token_at_time_0_is_one():
    rows = rows_of(1)
    rows.emit(np.array([0]), 0)
    rows.emit(np.array([0]), 7)

    assert rows.first[0] == 0
    assert rows.gaps.part(slice(None))[1].tolist() == [7]


def test_only_the_first_admission_counts():
    rows = rows_of(2)
    rows.admit(np.array([0]), 5)
    rows.admit(np.array([1, 0]), 9)

    assert rows.admitted.tolist() == [5, 9]


def test_the_end_is_the_last_token_or_the_rejection():
    rows = rows_of(3)
    rows.emit(np.array([0]), 11)
    rows.end(np.array([0]), 11, FINISHED)
    rows.end(np.array([2]), 4, REJECTED)

    assert rows.finish.tolist() == [11, NEVER, 4]
    assert rows.first.tolist() == [11, NEVER, NEVER]


def test_nobody_ends_twice():
    rows = rows_of(2)
    rows.end(np.array([1]), 3, FINISHED)

    with pytest.raises(AssertionError, match="ended twice"):
        rows.end(np.array([0, 1]), 4, FINISHED)
    assert rows.status.tolist() == [0, FINISHED]


def test_drawn_arrivals_are_forgotten_but_not_how_many_there_were():
    rows = rows_of(5)
    rows.forget_draws()

    assert len(rows.requests) == 5
    assert rows.requests.arrival_s.strides == (0,)
