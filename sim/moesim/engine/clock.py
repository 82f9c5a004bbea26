"""Simulated time: whole picoseconds, and the order of what happens at one instant.

All arrivals of an instant come first, then the ends of passes by number, then the
forming of micro-batches, then the look for their experts, then the choices of servers;
so no choice depends on the order in which its candidates came.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from simpy import Environment, Event
from simpy.events import Timeout

from moesim.errors import InputError, SimulationError
from moesim.types import Floats, Ints

PS_PER_S = 10**12
LONGEST_S = 4.6e6
"""Half of what 63 bits of picoseconds hold, so that sums of two fit: 53 days."""
FAR = 2**63 - 1
"""An instant after all others."""
TELL = 2
"""SimPy priority of telling which passes have ended: after all arrivals (1)."""
FORM = 3
"""SimPy priority of forming micro-batches: after all ends of the instant."""
LOOK = 4
"""SimPy priority of looking which experts are in device memory, pass by pass."""
PICK = 5
"""SimPy priority of a server's choice: after everything else of the instant."""

Callback = Callable[[Event], None]


class Clock(Environment):
    """A SimPy environment whose time is a whole number of picoseconds from 0."""

    @property
    def now(self) -> int:
        """The time in picoseconds."""
        return self._now  # type: ignore[return-value]

    @property
    def next(self) -> int:
        """When the next event is due, or an instant after all others."""
        return self._queue[0][0] if self._queue else FAR  # type: ignore[return-value]

    def skip(self, instant: int) -> None:
        """Go to an instant before which no event is due."""
        self._now = instant

    def forget(self) -> None:
        """Let nothing happen of what is due."""
        self._queue.clear()

    def after(self, delay: int, callback: Callback, value: Any = None) -> None:
        """Call `callback` once `delay` picoseconds have passed."""
        event = Timeout(self, delay, value)
        event.callbacks.append(callback)

    def settle(self, priority: int, callback: Callback) -> None:
        """Call `callback` at this instant, after all events of a lower priority."""
        event = Event(self)
        event._ok = True
        event._value = None
        event.callbacks.append(callback)
        self.schedule(event, priority, 0)  # type: ignore[arg-type]


def ticks(seconds: float) -> int:
    """Return positive `seconds` in whole picoseconds, rounded up, at least 1.

    >>> ticks(1e-6), ticks(1e-15)
    (1000000, 1)
    """
    return int(ticks_of(np.array(seconds)))


def ticks_of(seconds: Floats) -> Ints:
    """Return durations in whole picoseconds; 0 stays 0: zero work makes no job.

    The thousandth of a picosecond that is forgiven keeps float noise from adding one.

    Raises
    ------
    ValueError
        A duration is negative, not finite or not a number.
    SimulationError
        A duration is beyond `LONGEST_S`, where the clock ends.
    """
    if not np.all((seconds >= 0) & (seconds < np.inf)):
        raise ValueError("a duration is negative, not finite or not a number")
    if np.any(seconds > LONGEST_S):
        long = f"a job or a wait of {seconds.max():g} s"
        raise SimulationError(f"{long}: simulated time ends at {LONGEST_S:g} s")
    whole = np.maximum(1.0, np.ceil(seconds * PS_PER_S - 1e-3))
    return np.where(seconds > 0, whole, 0.0).astype(np.int64)


def instant(seconds: Floats) -> Ints:
    """Return points in time (not durations) as the nearest whole picoseconds.

    Raises
    ------
    InputError
        A point lies beyond `LONGEST_S`, where the clock ends.
    """
    if seconds.max(initial=0.0) > LONGEST_S:
        late = f"{seconds.max():g} s: simulated time ends at {LONGEST_S:g} s"
        raise InputError(f"a request arrives at {late} (53 days)")
    return np.rint(seconds * PS_PER_S).astype(np.int64)
