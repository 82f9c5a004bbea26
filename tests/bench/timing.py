"""How the benchmark measures: processor time, interleaved rounds, medians.

Absolute seconds depend on the machine and on what else it does; ratios taken inside one
round do so least. Every figure is therefore the median over rounds in which all rivals
take their turn, with its quartiles beside it.
"""

import gc
import platform
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import process_time

import numpy as np

LIBRARIES = ("numpy", "simpy", "pandas")


@dataclass(frozen=True)
class Form:
    """How much is measured.

    Parameters
    ----------
    rounds : int
        Turns of each rival.
    long : bool
        Whether the groups and sizes that take minutes are measured too.
    requests : int
        Requests of the memory run; 0 is its default.
    say : callable
        Told what is being measured.
    """

    rounds: int = 5
    long: bool = False
    requests: int = 0
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Spread:
    """A median between its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values):
        return cls(*(float(x) for x in np.percentile(list(values), (25, 50, 75))))

    def times(self, factor):
        return Spread(self.low * factor, self.median * factor, self.high * factor)

    def per(self, amount):
        return self.times(1 / amount)


@dataclass(frozen=True)
class Fit:
    """The exponent of a power law, and its standard error."""

    exponent: float
    error: float


def fit(sizes, seconds):
    """Return the slope of log(seconds) over log(sizes) by least squares.

    The standard error says how far the points lie from one power law, not how far
    one round lies from another.
    """
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(seconds, float))
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    left = y - y.mean() - slope * x
    freedom = max(1, len(x) - 2)
    return Fit(slope, float(np.sqrt(left @ left / freedom / (x @ x))))


@contextmanager
def few_collections():
    """Collect cycles as rarely as a run of the simulator does."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def seconds(work, *given):
    """Return processor seconds of one call, and what it returned."""
    with few_collections():
        start = process_time()
        result = work(*given)
        return process_time() - start, result


def per_call(work, calls):
    """Return processor seconds of one of many calls in a row."""

    def loop():
        for _ in range(calls):
            work()

    return seconds(loop)[0] / calls


def interleave(rivals: Mapping[str, Callable[[], float]], rounds):
    """Let every rival take its turn in every round; return each one's seconds."""
    spent = {name: [] for name in rivals}
    for _ in range(rounds):
        gc.collect()
        for name, turn in rivals.items():
            spent[name].append(turn())
    return spent


def ratio(above, below):
    """Return the spread of ratios taken round by round."""
    return Spread.of(a / b for a, b in zip(above, below, strict=True))


def machine():
    """Return what the figures were measured on: the processor, and versions."""
    return {
        "processor": processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def processor():
    """Return the model of the processor as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for row in info.read_text().splitlines():
            if row.startswith("model name"):
                return row.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
