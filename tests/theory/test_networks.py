"""Lines and loops of servers meet the product form."""

import numpy as np

from moesim.engine.clock import Clock
from moesim.engine.event.server import Job, Server
from theory.oracles import ORACLES
from theory.stations import (
    REPLICATIONS,
    TICK,
    assert_oracle,
    chain,
    departures,
    estimate,
    ticks,
)


def test_a_tandem_takes_the_sum_of_its_stations():
    """A06a: three M/M/1 in a line, W = sum 1/(mu_i - lambda)."""
    count, prefix = 20_000, 300

    def play(slower):
        means = []
        for replication in range(REPLICATIONS):
            rng = np.random.default_rng([replication, 6])
            arrivals = np.cumsum(ticks(rng.exponential(2.0, count)))
            mean = np.array([[1.0], [1 / 0.8], [0.5]])
            services = ticks(rng.exponential(mean, (3, count)) * slower)
            left = [arrivals]
            for station in services:
                left.append(departures(left[-1], station))
            served = chain(arrivals[:prefix], services[:, :prefix])

            assert (served == np.array(left)[1:, :prefix]).all()
            sojourn = left[-1] - arrivals
            means.append(sojourn[count // 10 :].mean() / TICK)
        return estimate(means)

    assert_oracle(play, ORACLES["A06a_tandem"]["W"])


def circulate(services, customers, laps):
    """Return when each lap ends: `customers` go round and round the servers."""
    clock = Clock()
    servers = [Server(clock) for _ in services]
    draws = [iter(enumerate(row)) for row in services.tolist()]
    ended = []

    def enter(customer, station):
        _, service = next(draws[station])
        job = Job(service, customer, 0, (customer, station))
        job.done = leave
        servers[station].submit(job)

    def leave(job):
        customer, station = job.owner
        if station == len(servers) - 1:
            ended.append(clock.now)
        enter(customer, (station + 1) % len(servers))

    for customer in range(customers):
        enter(customer, 0)
    while len(ended) < laps:
        clock.step()
    return np.array(ended)


def throughput(demands, customers, laps, slower):
    """Return laps per mean service, with the mean services drawn as controls."""
    rates, controls = [], []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([replication, 7])
        mean = np.array(demands)[:, None]
        drawn = rng.exponential(mean, (len(demands), laps + customers))
        ended = circulate(ticks(drawn * slower), customers, laps)
        skip = laps // 10
        rates.append((laps - 1 - skip) / (ended[-1] - ended[skip]) * TICK)
        controls.append(drawn[:, skip:laps].mean(axis=1))
    return estimate(rates, controls, demands)


def test_a_closed_loop_of_equal_stations():
    """A06c: X = N / (N + M - 1), four stations and eight customers."""
    assert_oracle(
        lambda slower: throughput([1.0] * 4, 8, 700, slower),
        ORACLES["A06c_closed_mva_balanced"]["X"],
        share=0.0035,
    )


def test_a_closed_loop_of_unequal_stations():
    """A06d: exact mean-value analysis, below the bound of the slowest station."""
    oracle = ORACLES["A06d_closed_mva"]

    def play(slower):
        return throughput([1.0, 0.5, 2.0], 6, 900, slower)

    assert_oracle(play, oracle["X"], share=0.0035)
    assert play(1.0).mean < oracle["X_bound"]
