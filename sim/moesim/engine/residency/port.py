"""A port over which experts come, one at a time, as soon as there is a place for them.

Who is waited for comes before who is only guessed to be needed, and of each kind the
oldest first. A load takes its place as it begins, not as it queues, so who leaves for it
is chosen as late as possible. One that finds no place lets others go first.
"""

from bisect import insort
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from simpy import Event

from moesim.engine.clock import PICK, Clock

Place = tuple[int, int, int]
"""Layer, slot and GPU; or layer, expert and node."""


class Verdict(Enum):
    """What is to become of a load whose turn it is."""

    TAKE = auto()
    WAIT = auto()
    DROP = auto()


class Load:
    """One expert on its way over one port.

    Parameters
    ----------
    place : Place
        Which expert, and where to.
    batch : int
        The pass that asked for it.
    urgent : bool
        Whether a pass waits for it, or it is only guessed to be needed.

    Attributes
    ----------
    waiting : list
        Who is told when it has come.
    begun : bool
        Whether it is on the wire.
    """

    __slots__ = ("arrival", "batch", "begun", "place", "urgent", "waiting")

    def __init__(self, place: Place, batch: int, *, urgent: bool) -> None:
        self.place = place
        self.batch = batch
        self.urgent = urgent
        self.arrival = 0
        self.begun = False
        self.waiting: list[Any] = []

    @property
    def turn(self) -> tuple[bool, int, int, Place]:
        """What decides who goes first: the smallest."""
        return not self.urgent, self.arrival, self.batch, self.place


class Port:
    """One port.

    Parameters
    ----------
    clock : Clock
        The time.
    service : int
        Picoseconds of one expert.
    take : callable
        Finds a place for a load whose turn it is, or tells what else to do with it.
    done : callable
        Called with a load that has come.
    """

    def __init__(
        self,
        clock: Clock,
        service: int,
        take: Callable[[Load], Verdict],
        done: Callable[[Load], None],
    ) -> None:
        self.clock = clock
        self.service = service
        self.take = take
        self.done = done
        self.queue: list[tuple[tuple[bool, int, int, Place], Load]] = []
        self.busy = False
        self.armed = False
        self.urgent = 0
        self.ends = 0

    @property
    def backlog(self) -> int:
        """Picoseconds of loads that somebody waits for, and left of the one on the wire."""
        left = self.ends - self.clock.now if self.busy else 0
        return self.urgent * self.service + left

    def submit(self, load: Load) -> None:
        """Queue a load that is asked for now."""
        load.arrival = self.clock.now
        self.urgent += load.urgent
        insort(self.queue, (load.turn, load))
        self.wake()

    def promote(self, load: Load, batch: int) -> None:
        """Let a load that waits as a guess wait as one that this pass waits for."""
        self.remove(load)
        load.urgent, load.batch = True, batch
        self.submit(load)

    def remove(self, load: Load) -> None:
        """Let a load go that has not begun."""
        self.queue.remove((load.turn, load))
        self.urgent -= load.urgent

    def wake(self) -> None:
        """Choose once all of this instant is known: a place may be free now."""
        if self.queue and not self.busy and not self.armed:
            self.armed = True
            self.clock.settle(PICK, self._pick)

    def _pick(self, _: Event) -> None:
        self.armed = False
        for _turn, load in list(self.queue):
            verdict = self.take(load)
            if verdict is Verdict.WAIT:
                continue
            self.remove(load)
            if verdict is Verdict.TAKE:
                self.busy = load.begun = True
                self.ends = self.clock.now + self.service
                self.clock.after(self.service, self._finish, load)
                return

    def _finish(self, event: Event) -> None:
        load: Load = event._value
        self.busy = False
        self.done(load)
        self.wake()
