"""A server chooses by its rules, never idles, and keeps count of its work."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from moesim.engine.clock import FORM, PICK, Clock, instant, ticks, ticks_of
from moesim.engine.event.engine import budget_ticks
from moesim.engine.event.server import NO_BUDGET, Job, Server
from moesim.engine.microbatch import TickCost
from moesim.policy.bundle import Policy
from worlds import batch_of, play_batches, tiny_system

INFINITE = 10**9


def make(service, batch=0, slot=0, key=0.0, done=None):
    job = Job(service, batch, slot, None)
    job.key = key
    if done is not None:
        job.done = done
    return job


def play(rows, budget=NO_BUDGET, floor=-inf):
    """Return the jobs of ``(arrival, service, key, batch, slot)`` rows, once served.

    Those with an odd slot come after whatever ends at the instant of their arrival.
    """
    clock = Clock()
    server = Server(clock, budget, floor)
    jobs = []

    def early(event):
        server.submit(event._value)

    def late(event):
        clock.after(0, early, event._value)

    for arrival, service, key, batch, slot in rows:
        job = make(service, batch, slot, key)
        jobs.append(job)
        clock.after(arrival, late if slot % 2 else early, job)
    clock.run()
    return jobs


def plain(rows, budget):
    """Return the start of each row: whenever free, look at all that wait."""
    waiting, starts, now = set(range(len(rows))), {}, 0
    while waiting:
        now = max(now, min(rows[i][0] for i in waiting))
        here = [i for i in waiting if rows[i][0] <= now]
        late = [i for i in here if now - rows[i][0] >= budget]

        def rule(i, late=late):
            arrival, _, key, batch, slot = rows[i]
            return ((0.0 if late else key), arrival, batch, slot)

        chosen = min(late or here, key=rule)
        starts[chosen] = now
        waiting.remove(chosen)
        now += rows[chosen][1]
    return [starts[i] for i in range(len(rows))]


@st.composite
def loads(draw, size=14):
    """Rows whose (batch, slot) differ, on a coarse grid: ties everywhere."""
    count = draw(st.integers(1, size))
    names = st.tuples(st.integers(0, 5), st.integers(-2, 5))
    names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    numbers = st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(0, 2))
    return [(*draw(numbers), *name) for name in names]


budgets = st.one_of(st.just(INFINITE), st.integers(0, 12))
floors = st.sampled_from([-inf, 0.0])
"""No key above is smaller than 0, so a server may be told so: it must not show."""


@settings(max_examples=400, deadline=None)
@given(loads(), budgets, floors)
def test_a_server_keeps_its_rules(rows, budget, floor):
    """(key, arrival, micro-batch, slot); jobs over the budget first, by age."""
    jobs = play(rows, NO_BUDGET if budget == INFINITE else budget, floor)

    assert [job.start for job in jobs] == plain(rows, budget)


@settings(max_examples=200, deadline=None)
@given(loads(), budgets, floors, st.randoms(use_true_random=False))
def test_ties_do_not_depend_on_the_order_of_submission(rows, budget, floor, random):
    """Jobs submitted within an instant may come in any order."""
    shuffled = random.sample(range(len(rows)), len(rows))
    budget = NO_BUDGET if budget == INFINITE else budget

    jobs = play(rows, budget, floor)
    again = play([rows[i] for i in shuffled], budget, floor)

    assert [again[shuffled.index(i)].start for i in range(len(rows))] == [
        job.start for job in jobs
    ]


@settings(max_examples=300, deadline=None)
@given(loads(20), st.integers(0, 12))
def test_the_budget_bounds_every_wait(rows, budget):
    """start <= arrival + budget + residual service + overdue work ahead."""
    jobs = play(rows, budget)

    target(float(max(job.start - job.arrival for job in jobs)))
    for job in jobs:
        limit = job.arrival + budget
        if job.start <= limit:
            continue
        in_service = [j for j in jobs if j.start < limit < j.start + j.service]
        residual = sum(j.start + j.service - limit for j in in_service)
        age = (job.arrival, job.batch, job.slot)
        ahead = [
            j for j in jobs if j.start >= limit and (j.arrival, j.batch, j.slot) < age
        ]

        assert job.start <= limit + residual + sum(j.service for j in ahead)


@settings(max_examples=200, deadline=None)
@given(loads(), budgets)
def test_a_server_never_idles_while_a_job_waits(rows, budget):
    """A job starts when the one before it ends, or when the first of the rest comes."""
    jobs = sorted(play(rows, budget), key=lambda job: job.start)

    free = 0
    for number, job in enumerate(jobs):
        first = min(other.arrival for other in jobs[number:])

        assert job.start == max(free, first)
        free = job.start + job.service


@settings(max_examples=100, deadline=None)
@given(loads(), st.integers(0, 40))
def test_the_backlog_is_the_work_queued_or_in_service(rows, moment):
    """It counts a job whole from its arrival until it has been served."""
    clock = Clock()
    server = Server(clock)
    seen = []
    jobs = [make(s, b, slot, key) for _, s, key, b, slot in rows]
    for job, row in zip(jobs, rows, strict=True):
        clock.after(row[0], lambda event: server.submit(event._value), job)
    clock.after(
        moment, lambda _: clock.settle(PICK + 1, lambda _: seen.append(server.backlog))
    )
    clock.run()

    here = [
        job.service for job in jobs if job.arrival <= moment < job.start + job.service
    ]

    assert seen == [sum(here)]
    assert server.backlog == 0


def test_a_server_without_jobs_does_nothing():
    clock = Clock()
    server = Server(clock, 5)

    clock.run()

    assert (clock.now, server.busy, server.backlog) == (0, False, 0)


def test_a_job_alone_starts_at_once():
    (job,) = play([(7, 3, 0.0, 0, 0)], 5)

    assert (job.arrival, job.start, job.served) == (7, 7, True)


def test_a_job_is_told_when_it_starts_and_when_it_is_done():
    """Once each, at those instants, with the job itself."""
    clock = Clock()
    server = Server(clock)
    heard = []
    first, second = make(4, 0), make(2, 1)
    for job in (first, second):
        job.started = lambda job: heard.append(("starts", job, clock.now))
        job.done = lambda job: heard.append(("done", job, clock.now))
        server.submit(job)

    clock.run()

    assert heard == [
        ("starts", first, 0),
        ("done", first, 4),
        ("starts", second, 4),
        ("done", second, 6),
    ]


@pytest.mark.parametrize("floor", [-inf, 0.0])
def test_a_job_that_comes_as_another_ends_takes_part_in_the_choice(floor):
    """All that arrives at an instant is heard before the server chooses."""
    rows = [(0, 4, 0.0, 0, 0), (1, 4, 2.0, 1, 0), (4, 4, 1.0, 2, 1)]

    _, waiting, late = play(rows, NO_BUDGET, floor)

    assert (late.start, waiting.start) == (4, 8)


def test_what_a_finished_job_sets_off_takes_part_in_the_choice():
    """A job submitted by the end of another competes with those that wait."""
    clock = Clock()
    server = Server(clock)
    urgent = make(1, 9, 0, 0.0)
    server.submit(make(3, 0, 0, 0.0, done=lambda _: server.submit(urgent)))
    waiting = make(1, 1, 0, 1.0)
    server.submit(waiting)

    clock.run()

    assert (urgent.start, waiting.start) == (3, 4)


class Negative:
    """An order that prefers micro-batch 2."""

    def key(self, batch, view):
        return -1.0 if batch.batch == 2 else 0.0


def test_keys_below_zero_are_obeyed():
    """Micro-batch 2 reaches GPU 0 as micro-batch 0 leaves it, and passes 1."""
    costs = []
    for attention, experts in (([4, 0], 0), ([4, 0], 0), ([0, 4], 4)):
        nothing = np.zeros((1, 2, 2, 2), np.int64)
        services = np.zeros((1, 4, 2), np.int64)
        services[0, 0, 0] = experts
        each, tail = np.array([attention]), np.zeros(2, np.int64)
        latency = np.array([1, 1])
        costs.append(TickCost(each, each, services, nothing, nothing, tail, latency))
    batches = [batch_of(cost, number) for number, cost in enumerate(costs)]

    done, _ = play_batches(tiny_system(1, 8, 2), batches, Policy(order=Negative()))

    assert done == [4, 12, 8]


def test_micro_batches_are_formed_before_a_server_chooses():
    """What forming submits at an instant competes with what was there."""
    clock = Clock()
    server = Server(clock)
    waiting, formed = make(1, 1, 0, 1.0), make(1, 2, 0, 0.0)
    server.submit(waiting)
    clock.settle(FORM, lambda _: server.submit(formed))

    clock.run()

    assert (formed.start, waiting.start) == (0, 1)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, 0),
        (1e-15, 1),
        (1e-12, 1),
        (1.1e-12, 2),
        (3e-12, 3),
        (1.0005e-12, 1),
        (1.002e-12, 2),
        (1e-6, 10**6),
        (0.1 + 0.2, 3 * 10**11),
    ],
)
def test_durations_are_rounded_up_once(seconds, expected):
    """ticks = max(1, ceil(x * 1e12 - 1e-3)); no work stays no work."""
    assert ticks_of(np.array([seconds])).tolist() == [expected]


def test_a_single_duration_is_at_least_one_tick():
    assert ticks(1e-13) == 1


@pytest.mark.parametrize("bad", [-1e-9, float("nan"), float("inf")])
def test_impossible_durations_are_refused(bad):
    """SimPy would take NaN and lose the order of events."""
    with pytest.raises(ValueError, match="negative, not finite"):
        ticks_of(np.array([1.0, bad]))


def test_points_in_time_are_rounded_to_the_nearest():
    assert instant(np.array([0.0, 1.4e-12, 1.6e-12])).tolist() == [0, 1, 2]


def test_a_wait_budget_in_seconds_becomes_ticks():
    """None is none, and 0 is 0: FIFO."""
    budgets = [budget_ticks(seconds) for seconds in (float("inf"), 0.0, 5e-3)]

    assert budgets == [NO_BUDGET, 0, 5 * 10**9]
