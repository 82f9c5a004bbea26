"""Run an instance to its end: steps, progress, and an orderly stop."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from simpy.core import EmptySchedule

from moesim.engine.clock import LONGEST_S, PS_PER_S
from moesim.engine.instance import Instance
from moesim.errors import SimulationError
from moesim.measure.columns import Recorder

STEPS = 4096
"""Events between looks at the wall clock."""
INTERVAL_S = 0.2
"""Wall seconds between reports of progress."""


def play(instance: Instance, report: Callable[[float], None] | None = None) -> Recorder:
    """Return what was written down once every request of the instance has ended.

    Parameters
    ----------
    instance : Instance
        A fresh instance.
    report : callable, optional
        Called now and then with the share of requests that have ended.

    Raises
    ------
    SimulationError
        Requests are left although nothing can happen any more, or time has run out.
    """
    total = len(instance.requests)
    told = monotonic()
    with few_collections():
        while instance.ended < total and _step(instance):
            if report is not None and monotonic() - told > INTERVAL_S:
                report(instance.ended / total)
                told = monotonic()
    return instance.finish()


def _step(instance: Instance) -> bool:
    """Run a block of events; return whether any are left."""
    step, total = instance.clock.step, len(instance.requests)
    try:
        for _ in range(STEPS):
            step()
            if instance.ended == total:
                return True
    except EmptySchedule:
        return False
    except OverflowError:
        if instance.clock.now <= LONGEST_S * PS_PER_S:
            raise
        raise SimulationError(f"simulated time ends at {LONGEST_S:g} s") from None
    return True


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the cyclic collector run rarely: events are many and form no cycles."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
