"""One station and a line of stations are the max-plus recursion, to the tick."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.clock import PICK, Clock
from moesim.engine.event.server import Job, Server
from theory.oracles import ORACLES
from theory.stations import chain, departures, serve, waits

jobs = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 6)), min_size=1
)


def columns(drawn):
    gaps, *services = np.array(drawn).T
    return np.cumsum(gaps), services


@settings(max_examples=200, deadline=None)
@given(jobs)
def test_a_fifo_station_is_max_plus(drawn):
    """D_i = max(A_i, D_{i-1}) + S_i, ties and all (Lindley)."""
    arrivals, (services, _) = columns(drawn)
    expected, free = [], 0
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        free = max(arrival, free) + service
        expected.append(free)

    start, end = serve(arrivals, services)

    assert end.tolist() == expected
    assert (start == end - services).all()
    assert departures(arrivals, services).tolist() == expected


def test_lindley_by_hand():
    """A16, every start and departure."""
    oracle = ORACLES["A16_lindley_hand"]

    start, end = serve(oracle["arrivals"], oracle["service"])

    assert start.tolist() == oracle["start"]
    assert end.tolist() == oracle["depart"]


@settings(max_examples=200, deadline=None)
@given(jobs)
def test_a_line_of_stations_is_max_plus(drawn):
    """D_ij = max(D_i,j-1, D_i-1,j) + S_ij."""
    arrivals, services = columns(drawn)
    expected, free = [], [0, 0]
    for number, arrival in enumerate(arrivals.tolist()):
        free[0] = max(arrival, free[0]) + int(services[0][number])
        free[1] = max(free[0], free[1]) + int(services[1][number])
        expected.append(tuple(free))

    left = chain(arrivals, services)

    assert list(map(tuple, left.T.tolist())) == expected


def test_tandem_by_hand():
    """A17, both stations."""
    oracle = ORACLES["A17_tandem_maxplus_hand"]

    left = chain(oracle["arrivals"], [oracle["S1"], oracle["S2"]])

    assert left.tolist() == [oracle["d1"], oracle["d2"]]


def area_under_server(arrivals, services, keys):
    """Return the integrals of jobs and of work at a server, watched as it runs."""
    clock = Clock()
    server = Server(clock)
    inside = []
    trail = []

    def look(_):
        trail.append((clock.now, len(inside), server.backlog))

    def enter(event):
        job = event._value
        inside.append(job)
        server.submit(job)
        clock.settle(PICK + 1, look)

    def leave(job):
        inside.remove(job)
        clock.settle(PICK + 1, look)

    for number, (arrival, service) in enumerate(zip(arrivals, services, strict=True)):
        job = Job(int(service), number, 0, None)
        job.key, job.done = float(keys[number]), leave
        clock.after(int(arrival), enter, job)
    clock.run()
    times, count, work = np.array(trail).T
    spans = np.diff(times)
    return int(spans @ count[:-1]), int(spans @ work[:-1])


@settings(max_examples=100, deadline=None)
@given(jobs)
def test_littles_law_holds_on_every_path(drawn):
    """The integral of jobs is the sum of sojourns; of the backlog, of S_i x T_i."""
    arrivals, (services, keys) = columns(drawn)
    _, end = serve(arrivals, services, keys)
    sojourns = end - arrivals

    jobs_area, work_area = area_under_server(arrivals, services, keys)

    assert jobs_area == sojourns.sum()
    assert work_area == services @ sojourns


def test_littles_law_by_hand():
    """A16: the area under the number of jobs is 18."""
    oracle = ORACLES["A16_lindley_hand"]

    area, _ = area_under_server(oracle["arrivals"], oracle["service"], [0] * 4)

    assert area == oracle["area_N"]


@settings(max_examples=200, deadline=None)
@given(jobs)
def test_no_order_changes_the_work_that_waits(drawn):
    """Whatever the keys: same last departure, same sum of S_i x W_i (Kleinrock)."""
    arrivals, (services, keys) = columns(drawn)

    start, end = serve(arrivals, services, keys)

    assert end.max() == departures(arrivals, services).max()
    assert services @ (start - arrivals) == services @ waits(arrivals, services)


def test_the_wait_budget_is_inclusive():
    """F09: a hot job that the policy never prefers starts when it has waited 5."""
    oracle = ORACLES["F09_wait_budget_hand"]
    colds = range(10)
    arrivals, services = [0, *colds], [1] * 11
    hot_last = [1.0] + [0.0] * 10

    def hot_start(keys, **budget):
        return int(serve(arrivals, services, keys, **budget)[0][0])

    assert hot_start(hot_last, budget=5) == oracle["start_ge"]
    assert hot_start(None) == oracle["fifo"]
    assert hot_start(hot_last) == len(colds)


@pytest.mark.parametrize("budget", [0, 3, 100])
def test_fifo_does_not_mind_a_budget(budget):
    """By age is by age."""
    arrivals = list(accumulate([0, 1, 0, 2, 1, 9, 0]))
    services = [3, 1, 4, 1, 5, 9, 2]

    assert (
        serve(arrivals, services, budget=budget)[1] == departures(arrivals, services)
    ).all()
