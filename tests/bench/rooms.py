"""Where the processor time of a run goes, seen from outside.

A timer of the operating system looks at the stack every few milliseconds of processor
time and asks which part of the simulator called what is running. Nothing in the
product knows of it, and it costs next to nothing. The error of a share is that of as
many coin tosses as there were looks, and is given beside it.
"""

import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

import simpy

import moesim

INTERVAL_S = 0.002
ROOT = Path(moesim.__file__).parent
CLOCK = Path(simpy.__file__).parent
PLACES = {
    "engine/array": "engine",
    "engine/event": "engine",
    "engine/lockstep": "engine",
    "engine/clock": "engine",
    "engine/residency": "engine",
    "engine/assemble": "cost",
    "engine/batch": "batching",
    "engine/instance": "batching",
    "engine/memory": "measurement",
    "routing": "routing",
    "cost": "cost",
    "measure": "measurement",
    "workload": "set-up",
    "scenario": "set-up",
    "replicate": "set-up",
    "simulate": "set-up",
}
"""Parts of a run by the beginning of a file's name; the longest that fits counts.

Time in a file of no part belongs to its caller: prices are rounded for the assembler,
keys are computed for an engine.
"""
PARTS = ("engine", "routing", "cost", "batching", "measurement", "set-up")


@dataclass
class Looks:
    """How often each part of a run was found at work."""

    count: Counter = field(default_factory=Counter)

    @property
    def total(self):
        return sum(self.count.values())

    def share(self, part):
        return self.count[part] / max(1, self.total)

    def error(self, share):
        """Return the standard error of a share."""
        return sqrt(share * (1 - share) / max(1, self.total))

    def look(self, _, frame):
        self.count[part_of(frame)] += 1


def part_of(frame):
    """Return the part at work: the innermost frame that belongs to one."""
    while frame is not None:
        place = place_of(frame.f_code.co_filename)
        if place:
            return place
        frame = frame.f_back
    return "set-up"


def place_of(name, known={}):  # noqa: B006 - a memory, on purpose
    if name not in known:
        known[name] = _place_of(Path(name))
    return known[name]


def _place_of(path):
    if path.is_relative_to(CLOCK):
        return "engine"
    if not path.is_relative_to(ROOT):
        return ""
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    fits = [start for start in PLACES if name.startswith(start)]
    return PLACES[max(fits, key=len)] if fits else ""


@contextmanager
def looking():
    """Count what is at work while the block runs; only in the main thread."""
    looks = Looks()
    before = signal.signal(signal.SIGPROF, looks.look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        yield looks
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
