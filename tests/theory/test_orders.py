"""Orders by key at one server meet the formulas for priorities.

All jobs are served by the product's server. The FIFO wait of the same path, whose mean
is known, serves as control variate.
"""

from functools import cache

import numpy as np

from theory.oracles import ORACLES
from theory.stations import (
    REPLICATIONS,
    TICK,
    assert_oracle,
    estimate,
    serve,
    ticks,
    waits,
)

RATE, COUNT, SKIP = 0.8, 12_000, 1_000
PRIORITY = ORACLES["A05a_mg1_prio_nonpreemptive"]
FIFO_WAIT = ORACLES["A01_mm1"]["Wq"]


@cache
def paths(key, slower):
    """Return (class, wait, FIFO wait) of the jobs of each replication.

    `key` gets the classes (0: 3 jobs of 8, 1: the others) and the services. The FIFO
    wait is that of the path as drawn, not slowed down.
    """
    found = []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([replication, 5])
        arrivals = np.cumsum(ticks(rng.exponential(1 / RATE, COUNT)))
        drawn = ticks(rng.exponential(1.0, COUNT))
        classes = (rng.random(COUNT) >= 3 / 8).astype(int)
        services = ticks(drawn * slower / TICK)
        start, _ = serve(arrivals, services, key(classes, services))
        columns = [classes, start - arrivals, waits(arrivals, drawn)]
        found.append([column[SKIP:] for column in columns])
    return found


def played(figure, key, slower):
    """Return the estimate of ``figure(classes, wait)``."""
    found = [
        (figure(classes, wait / TICK), fifo.mean() / TICK)
        for classes, wait, fifo in paths(key, slower)
    ]
    samples, controls = np.transpose(found)
    return estimate(samples, controls, FIFO_WAIT)


def by_class(classes, _):
    return classes


def by_service(_, services):
    return services


def test_the_preferred_class_waits_as_cobham_says():
    """Non-preemptive priority: Wq1 = W0 / (1 - rho1)."""

    def play(slower):
        return played(lambda c, w: w[c == 0].mean(), by_class, slower)

    assert_oracle(play, PRIORITY["Wq1"])


def test_the_other_class_waits_as_cobham_says():
    """Non-preemptive priority: Wq2 = W0 / ((1 - rho1) (1 - rho))."""

    def play(slower):
        return played(lambda c, w: w[c == 1].mean(), by_class, slower)

    assert_oracle(play, PRIORITY["Wq2"])


def test_shortest_job_first_waits_as_phipps_says():
    """A key that is the service time is shortest job first."""

    def play(slower):
        return played(lambda c, w: w.mean(), by_service, slower)

    assert_oracle(play, ORACLES["A05c_mm1_sjf_nonpreemptive"]["Wq"])


def test_the_conservation_law_holds_in_the_mean():
    """The sum of rho_i Wq_i is the same for any order that ignores services."""

    def play(slower):
        loads = np.array([3 / 8, 5 / 8]) * RATE

        def weighted(classes, wait):
            means = [wait[classes == c].mean() for c in (0, 1)]
            return loads @ means

        return played(weighted, by_class, slower)

    assert_oracle(play, PRIORITY["conservation"])
