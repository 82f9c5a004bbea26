"""A FIFO station meets the formulas of queueing theory.

The server equals the recursion to the tick (seen again on a prefix of every path), so
the long paths that means need are the recursion's.
"""

import numpy as np
import pytest

from theory.oracles import ORACLES
from theory.stations import (
    REPLICATIONS,
    TICK,
    assert_oracle,
    checked_waits,
    estimate,
    ticks,
)


def hot_cold(rng, count):
    return np.where(rng.random(count) < 0.9, 0.5, 5.5)


def hyperexponential(rng, count):
    law = ORACLES["A04c_mg1_h2"]
    first = rng.random(count) < law["p"]
    return rng.exponential(np.where(first, law["mean1"], law["mean2"]))


def lognormal(rng, count):
    return rng.lognormal(-np.log(2) / 2, np.sqrt(np.log(2)), count)


LAWS = {
    "exponential": lambda rng, count: rng.exponential(1.0, count),
    "constant": lambda _, count: np.ones(count),
    "uniform": lambda rng, count: rng.uniform(0.0, 2.0, count),
    "hot_cold": hot_cold,
    "hyperexponential": hyperexponential,
    "lognormal": lognormal,
}


def paths(rate, law, count, slower):
    """Yield the waits and services of each replication, after its first tenth."""
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([replication, count])
        arrivals = np.cumsum(ticks(rng.exponential(1 / rate, count)))
        services = ticks(LAWS[law](rng, count) * slower)
        wait = checked_waits(arrivals, services)
        yield wait[count // 10 :] / TICK, services[count // 10 :] / TICK


@pytest.mark.parametrize(
    ("oracle", "rate", "law", "count"),
    [
        ("A01_mm1_rho0.3", 0.3, "exponential", 60_000),
        ("A01_mm1_rho0.5", 0.5, "exponential", 40_000),
        ("A01_mm1_rho0.7", 0.7, "exponential", 60_000),
        ("A01_mm1", 0.8, "exponential", 90_000),
        ("A01_mm1_rho0.9", 0.9, "exponential", 300_000),
        ("A01_mm1_rho0.95", 0.95, "exponential", 900_000),
        ("A03_md1", 0.8, "constant", 60_000),
        ("A04a_mg1_uniform", 0.8, "uniform", 80_000),
        ("A04b_mg1_hotcold", 0.8, "hot_cold", 150_000),
        ("A04c_mg1_h2", 0.7, "hyperexponential", 100_000),
        ("A04d_mg1_lognormal", 0.7, "lognormal", 100_000),
    ],
)
def test_the_mean_wait_is_the_formulas(oracle, rate, law, count):
    """Pollaczek and Khinchine, for six laws of service and loads from 0.3 to 0.95."""

    def play(slower):
        return estimate([wait.mean() for wait, _ in paths(rate, law, count, slower)])

    assert_oracle(play, ORACLES[oracle]["Wq"])


def test_waits_and_sojourns_are_distributed_as_the_formulas_say():
    """M/M/1 at 0.8: a fifth does not wait; sojourns are exponential of mean 5."""
    oracle = ORACLES["A01_mm1"]
    limits = [oracle["W_p50"], oracle["W_p95"], oracle["W_p99"]]
    shares = []
    for wait, service in paths(0.8, "exponential", 250_000, 1.0):
        beyond = [(wait + service > limit).mean() for limit in limits]
        shares.append([(wait == 0).mean(), *beyond])

    for values, share in zip(
        np.transpose(shares), [oracle["P_wait0"], 0.5, 0.05, 0.01], strict=True
    ):
        assert estimate(values).error <= 0.05 * share
        assert estimate(values).agrees(share)
