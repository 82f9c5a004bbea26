"""The engine's all-to-all waits for the last GPU, as order statistics have it.

Random attention times and no bytes: a layer ends when its last GPU has computed.
"""

import numpy as np
import pytest

from moesim.engine.microbatch import TickCost
from theory.oracles import ORACLES
from theory.stations import (
    REPLICATIONS,
    TICK,
    assert_oracle,
    departures,
    estimate,
    ticks,
)
from worlds import batch_of, play_batches, tiny_system

SHIFT = 6.0
"""What makes normal draws positive (but one in 10^9)."""
LAWS = {
    "exponential": (lambda rng, shape: rng.exponential(1.0, shape), 1.0),
    "uniform": (lambda rng, shape: rng.uniform(0.0, 1.0, shape), 0.5),
    "normal": (lambda rng, shape: SHIFT + rng.normal(size=shape), SHIFT),
}


def only_attention(attention):
    """Return the cost of passes through one layer that do nothing but attend."""
    gpus = len(attention)
    nothing = np.zeros((1, 2, 2, gpus), np.int64)
    return TickCost(
        attention=attention[None],
        useful=attention[None],
        experts=np.zeros((1, 8 // gpus, gpus), np.int64),
        tx=nothing,
        rx=nothing,
        tail=np.zeros(gpus, np.int64),
        latency=np.array([3, 5]),
    )


def durations(attention, spacing):
    """Return how long passes with ``(passes, G)`` attention take, `spacing` apart."""
    costs = [only_attention(row) for row in attention]
    batches = [batch_of(c, n, n * spacing) for n, c in enumerate(costs)]
    done, _ = play_batches(tiny_system(1, 8, attention.shape[1]), batches)
    return np.array(done) - spacing * np.arange(len(done))


def barrier(law, gpus, passes, slower):
    draw, mean = LAWS[law]
    found, controls = [], []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([replication, 8])
        drawn = draw(rng, (passes, gpus))
        taken = durations(ticks(drawn * slower), 100 * TICK)
        found.append(taken.mean() / TICK)
        controls.append(drawn.mean())
    return estimate(found, controls, mean)


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    ("oracle", "law", "passes", "shift"),
    [
        ("A07a_max_exp", "exponential", 300, 0.0),
        ("A07b_max_uniform", "uniform", 150, 0.0),
        ("A07c_max_normal", "normal", 60, SHIFT),
    ],
)
def test_a_layer_takes_the_largest_of_n(oracle, law, passes, shift, gpus):
    """H_n for exponential, n/(n+1) for uniform, quadrature for normal attention."""
    assert_oracle(
        lambda slower: barrier(law, gpus, passes, slower),
        shift + ORACLES[oracle][gpus],
        share=0.0035,
    )


def test_two_gpus_are_a_fork_and_join():
    """A07d: micro-batches that queue at two GPUs and meet at the barrier (FIFO)."""
    count, prefix = 60_000, 60

    def play(slower):
        means = []
        for replication in range(REPLICATIONS):
            rng = np.random.default_rng([replication, 9])
            arrivals = np.cumsum(ticks(rng.exponential(1 / 0.8, count)))
            services = ticks(rng.exponential(1.0, (2, count)) * slower)
            ends = np.maximum(*(departures(arrivals, row) for row in services))
            batches = [
                batch_of(only_attention(services[:, n]), n, int(arrivals[n]))
                for n in range(prefix)
            ]
            done, _ = play_batches(tiny_system(1, 8, 2), batches)

            assert done == ends[:prefix].tolist()
            means.append((ends - arrivals)[count // 10 :].mean() / TICK)
        return estimate(means)

    assert_oracle(play, ORACLES["A07d_forkjoin_queue"][2])
