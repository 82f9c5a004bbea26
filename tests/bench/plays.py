"""Passes played by one engine alone: no routing, no prices, no batching.

The passes are either recorded from a run or made up, with as many things happening in
them as in a real one (their milliseconds mean nothing).
"""

from dataclasses import dataclass, replace

import numpy as np

from bench.timing import seconds
from moesim.engine.clock import FORM, Clock
from moesim.engine.instance import ENGINES
from moesim.engine.microbatch import TickCost
from moesim.measure.columns import Recorder
from moesim.policy.bundle import make_policy
from worlds import batch_of, requests_of, tiny_system

US = 10**6


@dataclass(frozen=True)
class Trial:
    """How passes are played.

    Parameters
    ----------
    waits : bool
        Whether each expert's waiting times are written down.
    in_flight : int
        Passes under way at once.
    """

    policy: str = "fifo"
    waits: bool = False
    in_flight: int = 2


class Play:
    """Passes through one engine, a fixed number of them in flight.

    The passes are given again and again until `passes` have been played. Each claims
    that its oldest request came at some random time, so that ordering by age has
    something to change.
    """

    def __init__(self, engine, system, batches, passes, trial):
        self.clock = Clock()
        self.recorder = Recorder(system, requests_of([0.0], 1, 1))
        if not trial.waits:
            deafen(self.recorder.waits)
        self.batches = batches
        self.passes = passes
        self.ages = np.random.default_rng(passes).random(passes).tolist()
        self.admitted = 0
        self.done = []
        make = ENGINES[engine]
        policy = make_policy(trial.policy)
        self.engine = make(self.clock, system, policy, self.recorder)
        for _ in range(trial.in_flight):
            self.clock.settle(FORM, self._admit)

    def _admit(self, _):
        if self.admitted < self.passes:
            number, self.admitted = self.admitted, self.admitted + 1
            batch = replace(
                self.batches[number % len(self.batches)],
                number=number,
                admitted=self.clock.now,
                oldest_arrival_s=self.ages[number],
            )
            self.engine.admit(batch, self._land)

    def _land(self, batch):
        self.done.append((batch.number, self.clock.now))
        self.clock.settle(FORM, self._admit)

    def run(self):
        """Return seconds of processor time."""
        return seconds(self.clock.run)[0]

    def step_by_step(self):
        """Return how many events there are, by running to the end."""
        count = 0
        while self.clock.peek() < float("inf"):
            self.clock.step()
            count += 1
        return count

    def seen(self):
        """Return what engines must agree on: every pass, its parts, all waits."""
        return self.done, self.recorder.digest()


def deafen(listener):
    """Let the public methods of an object do nothing, whatever they are."""
    kind = type(listener)
    methods = [
        name
        for name, part in vars(kind).items()
        if callable(part) and not name.startswith("_")
    ]
    silent = dict.fromkeys(methods, _nothing) | {"__slots__": ()}
    listener.__class__ = type(kind.__name__, (kind,), silent)


def _nothing(*_, **__):
    pass


@dataclass(frozen=True)
class Shape:
    """A model on a cluster, as far as an engine can tell."""

    gpus: int = 32
    layers: int = 32
    slots: int = 1

    @property
    def nodes(self):
        """Two at least, so that both port classes are in use at every size."""
        return max(2, self.gpus // 8)

    def system(self):
        experts = self.gpus * self.slots
        return tiny_system(self.layers, experts, self.gpus, self.nodes, top_k=1)

    def batches(self, count=4):
        rng = np.random.default_rng(1)
        return [batch_of(made_up(self, rng)) for _ in range(count)]


def made_up(shape, rng):
    """Return a pass with even attention, uneven experts, and bytes to match."""
    layers, gpus, slots = shape.layers, shape.gpus, shape.slots
    popular = rng.gamma(4.0, 0.25, (layers, slots, gpus))
    out = rng.gamma(50.0, 0.02, (layers, 2, gpus))
    into = popular.mean(axis=1)[:, None] * np.array([1.0, 0.7])[:, None]
    tx = np.stack([out, into], axis=1) * 30
    rx = np.stack([into, out], axis=1) * 30
    attention = rng.gamma(60.0, 1.0, (layers, gpus))
    return TickCost(
        attention=whole(attention),
        useful=whole(attention) // 2,
        experts=whole(popular * 50 / slots + 14),
        tx=whole(tx),
        rx=whole(rx),
        tail=whole(rng.gamma(60.0, 1.0, gpus)),
        latency=np.array([3 * US, 8 * US]),
    )


def whole(microseconds):
    return np.ceil(microseconds * US).astype(np.int64)
