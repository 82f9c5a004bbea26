"""The product's server as a station of a queueing network, and the plain recursion.

Times are whole ticks; `TICK` of them make one mean service.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.clock import Clock
from moesim.engine.event.server import NO_BUDGET, Job, Server

TICK = 10**6
REPLICATIONS = 24
SLOWER = 1.03
"""The fault that every statistical check has to find: services 3 % too long."""


def ticks(times):
    """Return times as whole ticks, services never 0: zero work makes no job."""
    return np.maximum(1, np.rint(np.asarray(times) * TICK)).astype(np.int64)


def serve(arrivals, services, keys=None, budget=NO_BUDGET):
    """Return when the server begins and ends each job, submitted as time goes by."""
    clock = Clock()
    server = Server(clock, budget)
    jobs = []
    ends = np.zeros(len(arrivals), np.int64)
    for number, service in enumerate(np.asarray(services).tolist()):
        job = Job(service, number, 0, number)
        job.key = 0.0 if keys is None else float(keys[number])
        job.done = lambda job: ends.__setitem__(job.owner, clock.now)
        jobs.append(job)
    for job, arrival in zip(jobs, np.asarray(arrivals).tolist(), strict=True):
        clock.after(arrival, lambda event: server.submit(event._value), job)
    clock.run()
    return np.array([job.start for job in jobs], np.int64), ends


def chain(arrivals, services):
    """Return ``(stations, jobs)``: when each job leaves each server of a line."""
    clock = Clock()
    servers = [Server(clock) for _ in services]
    left = np.zeros(np.shape(services), np.int64)

    def enter(number, station):
        if station == len(servers):
            return
        job = Job(int(services[station][number]), number, 0, (number, station))
        job.done = leave
        servers[station].submit(job)

    def leave(job):
        number, station = job.owner
        left[station, number] = clock.now
        enter(number, station + 1)

    for number, arrival in enumerate(np.asarray(arrivals).tolist()):
        clock.after(arrival, lambda event: enter(event._value, 0), number)
    clock.run()
    return left


def departures(arrivals, services):
    """Return when jobs leave a FIFO station: ``max(A_i, D_{i-1}) + S_i``, unrolled."""
    work = np.cumsum(services)
    return work + np.maximum.accumulate(arrivals - (work - services))


def waits(arrivals, services):
    """Return the wait of each job of a FIFO station, by the recursion."""
    return departures(arrivals, services) - services - arrivals


def checked_waits(arrivals, services, prefix=400):
    """Return the recursion's waits, once the server has been seen to have the same."""
    start, _ = serve(arrivals[:prefix], services[:prefix])
    found = waits(arrivals, services)

    assert (start - arrivals[:prefix] == found[:prefix]).all()
    return found


@dataclass(frozen=True)
class Estimate:
    mean: float
    error: float

    def agrees(self, value):
        return abs(self.mean - value) <= 4 * self.error


def estimate(samples, controls=None, expected=None):
    """Return mean and standard error of independent replications.

    `controls` are ``(replications, C)`` figures of the same replications whose means
    are known to be `expected`; what they explain of the samples is taken off.
    """
    samples = np.asarray(samples, float)
    count, spent = len(samples), 1
    if controls is not None:
        off = np.asarray(controls, float).reshape(count, -1) - np.asarray(expected)
        centred = off - off.mean(axis=0)
        slope = np.linalg.lstsq(centred, samples - samples.mean(), rcond=None)[0]
        samples = samples - off @ slope
        spent += off.shape[1]
    spread = np.sqrt(((samples - samples.mean()) ** 2).sum() / (count - spent))
    return Estimate(float(samples.mean()), float(spread / np.sqrt(count)))


def assert_oracle(play, value, share=0.01):
    """Assert that ``play(1.0)`` finds the value, and that 3 % slower service does not.

    `play` returns an `Estimate`. The standard error is at most `share` of the value, so
    that agreeing means something.
    """
    right, wrong = play(1.0), play(SLOWER)

    assert right.error <= share * value
    assert right.agrees(value)
    assert not wrong.agrees(value)
