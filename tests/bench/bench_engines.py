"""How much faster the array engine is than the event engine, on equal passes.

Run as a program, it measures the shapes of `SHAPES` with both engines in turn, in
rounds, in one process, and prints medians of processor time: the ratio, whether the two
were equal to the tick, microseconds a barrier (array) and an event (event), and the
exponent of the array engine's time in GPUs. Durations are made up (milliseconds mean
nothing); what counts is how many things happen.

``python tests/bench/bench_engines.py [--json FILE] [--rounds N] [--policy NAME] ...``
"""

import argparse
import gc
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from moesim.engine.array import ArrayEngine
from moesim.engine.clock import FORM, Clock
from moesim.engine.event import EventEngine
from moesim.engine.microbatch import TickCost
from moesim.measure.columns import Recorder
from moesim.policy.bundle import make_policy
from worlds import batch_of, requests_of, tiny_system

US = 10**6


@dataclass(frozen=True)
class Shape:
    """A model on a cluster, as far as an engine can tell."""

    name: str
    gpus: int
    nodes: int
    layers: int
    slots: int
    passes: int

    def system(self, kernel):
        experts = self.gpus * self.slots
        return tiny_system(
            self.layers, experts, self.gpus, self.nodes, top_k=1, experts=kernel
        )

    @property
    def barriers(self):
        """All-to-alls, and ends of passes."""
        return self.passes * (2 * self.layers + 1)


@dataclass(frozen=True)
class Trial:
    """How a shape is played."""

    policy: str = "fifo"
    kernel: str = "grouped"
    waits: bool = False
    in_flight: int = 2


SHAPES = [
    Shape("mixtral-8", 8, 1, 32, 1, 40),
    Shape("dsv3-ep32", 32, 4, 58, 8, 8),
    Shape("dsv3-ep72", 72, 9, 58, 4, 6),
    Shape("dsv3-ep144", 144, 18, 58, 2, 4),
    Shape("dsv3-ep320", 320, 40, 58, 1, 4),
]
SWEEP = (8, 16, 32, 64, 128, 256, 512)
"""GPUs over which the exponent is fitted."""


class Deaf:
    """Waits that nobody writes down."""

    def add(self, cell, wait):
        pass

    def extend(self, cells, waits):
        pass


def cost_of(shape, rng):
    """Return a pass with even attention, uneven experts, and bytes to match."""
    layers, gpus, slots = shape.layers, shape.gpus, shape.slots
    popular = rng.gamma(4.0, 0.25, (layers, slots, gpus))
    out = rng.gamma(50.0, 0.02, (layers, 2, gpus))
    into = popular.mean(axis=1)[:, None] * np.array([1.0, 0.7])[:, None]
    if shape.nodes == 1:
        out[:, 1] = into[:, 1] = 0
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


class Play:
    """Passes of a shape, a fixed number of them in flight."""

    def __init__(self, shape, engine, trial, costs):
        self.clock = Clock()
        system = shape.system(trial.kernel)
        self.recorder = Recorder(system, requests_of([0.0], 1, 1))
        if not trial.waits:
            self.recorder.waits = Deaf()
        self.batches = [batch_of(cost) for cost in costs]
        self.passes = shape.passes
        self.admitted = 0
        self.done = []
        policy = make_policy(trial.policy)
        self.engine = engine(self.clock, system, policy, self.recorder)
        for _ in range(trial.in_flight):
            self.clock.settle(FORM, self._admit)

    def _admit(self, _):
        if self.admitted < self.passes:
            batch = self.batches[self.admitted % len(self.batches)]
            batch = replace(batch, number=self.admitted, admitted=self.clock.now)
            self.admitted += 1
            self.engine.admit(batch, self._land)

    def _land(self, batch):
        self.done.append((batch.number, self.clock.now))
        self.clock.settle(FORM, self._admit)

    def run(self):
        """Return seconds of processor time."""
        with few_collections():
            start = process_time()
            self.clock.run()
            return process_time() - start

    def events(self):
        """Return how many events there are, by running to the end."""
        count = 0
        while self.clock.peek() < float("inf"):
            self.clock.step()
            count += 1
        return count


@contextmanager
def few_collections():
    """Collect cycles as rarely as a run of the simulator does."""
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def measure(shape, trial, rounds):
    """Return one row: medians over rounds in which both engines take turns."""
    rng = np.random.default_rng(1)
    costs = [cost_of(shape, rng) for _ in range(4)]
    seconds = {ArrayEngine: [], EventEngine: []}
    equal = True
    for _ in range(rounds):
        plays = [Play(shape, engine, trial, costs) for engine in seconds]
        for play, spent in zip(plays, seconds.values(), strict=True):
            spent.append(play.run())
        equal &= len({repr(same(play)) for play in plays}) == 1
    array, event = (median(spent) for spent in seconds.values())
    events = Play(shape, EventEngine, trial, costs).events()
    return {
        "shape": shape.name,
        **asdict(trial),
        "equal": equal,
        "ratio": event / array,
        "array_ms_per_pass": array / shape.passes * 1e3,
        "event_ms_per_pass": event / shape.passes * 1e3,
        "array_us_per_barrier": array / shape.barriers * 1e6,
        "event_us_per_event": event / events * 1e6,
    }


def same(play):
    """Return what both engines must agree on."""
    waits = play.recorder.waits
    heard = () if isinstance(waits, Deaf) else waits.histogram.tobytes()
    return play.done, play.recorder.digest() if heard else play.recorder.passes, heard


def sweep(trial, rounds, sizes=SWEEP):
    """Return the array engine's milliseconds a pass by GPUs, and the exponent.

    All sizes have two port classes; the recorder is told but writes nothing down, since
    what it adds up from GPU to GPU is quadratic, whatever the engine.
    """
    shapes = [Shape(f"sweep-{g}", g, max(2, g // 8), 32, 1, 8) for g in sizes]
    rng = np.random.default_rng(1)
    costs = [[cost_of(shape, rng) for _ in range(4)] for shape in shapes]
    spent = [[] for _ in shapes]
    for _ in range(rounds):
        for shape, known, seconds in zip(shapes, costs, spent, strict=True):
            play = Play(shape, ArrayEngine, trial, known)
            play.recorder.end_pass = lambda _: None
            seconds.append(play.run() / shape.passes)
    milliseconds = [1e3 * median(seconds) for seconds in spent]
    slope = np.polyfit(np.log(sizes), np.log(milliseconds), 1)[0]
    return dict(zip(sizes, milliseconds, strict=True)), float(slope)


def line(row):
    waits = "on" if row["waits"] else "off"
    return (
        f"{row['shape']:12} {row['policy']:11} {row['kernel']:10} waits {waits:3} "
        f"K={row['in_flight']} equal={row['equal']!s:5} x{row['ratio']:<6.1f} "
        f"array {row['array_ms_per_pass']:7.3f} event {row['event_ms_per_pass']:8.2f} "
        f"ms/pass {row['array_us_per_barrier']:6.1f} us/barrier "
        f"{row['event_us_per_event']:5.2f} us/event\n"
    )


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", nargs="+", default=["fifo", "oldest"])
    parser.add_argument("--kernel", nargs="+", default=["grouped", "per_expert"])
    parser.add_argument("--shape", nargs="+", default=[s.name for s in SHAPES])
    parser.add_argument("--in-flight", type=int, default=2)
    given = parser.parse_args(arguments)
    rows = []
    for policy, kernel, waits in product(given.policy, given.kernel, (False, True)):
        trial = Trial(policy, kernel, waits, given.in_flight)
        for shape in SHAPES:
            if shape.name in given.shape:
                rows.append(measure(shape, trial, given.rounds))
                sys.stdout.write(line(rows[-1]))
                sys.stdout.flush()
    times, exponent = sweep(Trial(in_flight=given.in_flight), given.rounds)
    shown = ", ".join(f"{g}: {ms:.3f}" for g, ms in times.items())
    sys.stdout.write(f"array ms/pass by GPUs: {shown}; exponent {exponent:.3f}\n")
    if given.json:
        result = {"rows": rows, "by_gpus_ms": times, "exponent_in_gpus": exponent}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
