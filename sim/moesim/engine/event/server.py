"""A server with a queue: a GPU's compute, or one direction of a port.

It serves one job at a time, never interrupts, and never idles while a job waits. At an
instant it first hears of every arrival, then chooses: the smallest (key, arrival,
micro-batch, slot), unless a job has waited out the budget; those go first, by age.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from simpy import Event

from moesim.engine.clock import PICK, Clock

NO_BUDGET = -1


class Job:
    """One piece of work for one server.

    `done` is called with `owner` and the job when it has been served; `started`, if
    there is one, when service begins.
    """

    __slots__ = (
        "arrival",
        "batch",
        "done",
        "key",
        "owner",
        "served",
        "service",
        "slot",
        "start",
        "started",
    )

    def __init__(self, service: int, batch: int, slot: int, owner: Any) -> None:
        self.service = service
        self.batch = batch
        self.slot = slot
        self.owner = owner
        self.key = 0.0
        self.arrival = 0
        self.start = 0
        self.served = False
        self.done: Callable[[Job], None] = _nothing
        self.started: Callable[[Job], None] | None = None


class Server:
    """One server.

    Parameters
    ----------
    clock : Clock
        The time.
    budget : int
        Wait in picoseconds after which age alone decides; `NO_BUDGET`: never.
    floor : float
        No job will ever have a smaller key: one that has it, and came before this
        instant, may start without hearing what else arrives. Plain first-come,
        first-served has all keys 0.
    """

    __slots__ = (
        "armed",
        "backlog",
        "budget",
        "busy",
        "by_age",
        "by_key",
        "clock",
        "floor",
    )

    def __init__(
        self, clock: Clock, budget: int = NO_BUDGET, floor: float = -inf
    ) -> None:
        self.clock = clock
        self.floor = floor
        self.budget = budget
        self.by_key: list[tuple[float, int, int, int, Job]] = []
        self.by_age: list[tuple[int, int, int, Job]] = []
        self.busy = False
        self.armed = False
        self.backlog = 0

    def submit(self, job: Job) -> None:
        """Queue a job that arrives now."""
        now = job.arrival = self.clock.now
        heappush(self.by_key, (job.key, now, job.batch, job.slot, job))
        if self.budget != NO_BUDGET:
            heappush(self.by_age, (now, job.batch, job.slot, job))
        self.backlog += job.service
        if not self.busy and not self.armed:
            self._arm()

    def _arm(self) -> None:
        self.armed = True
        self.clock.settle(PICK, self._pick)

    def _pick(self, _: Event) -> None:
        self.armed = False
        overdue = self._overdue() if self.by_age else None
        self._serve(overdue or self._first())

    def _serve(self, job: Job) -> None:
        job.served = True
        job.start = self.clock.now
        self.busy = True
        if job.started is not None:
            job.started(job)
        self.clock.after(job.service, self._finish, job)

    def _first(self) -> Job:
        while True:
            job = heappop(self.by_key)[-1]
            if not job.served:
                return job

    def _overdue(self) -> Job | None:
        by_age = self.by_age
        while by_age and by_age[0][-1].served:
            heappop(by_age)
        if by_age and self.clock.now - by_age[0][0] >= self.budget:
            return heappop(by_age)[-1]
        return None

    def _finish(self, event: Event) -> None:
        job: Job = event._value
        self.busy = False
        self.backlog -= job.service
        self._go_on()
        job.done(job)

    def _go_on(self) -> None:
        """Serve what waits: at once when nothing that arrives now could come before."""
        by_key = self.by_key
        while by_key and by_key[0][-1].served:
            heappop(by_key)
        if not by_key:
            return
        key, arrival = by_key[0][:2]
        certain = key <= self.floor and arrival < self.clock.now
        if certain and self.budget == NO_BUDGET:
            self._serve(heappop(by_key)[-1])
        else:
            self._arm()


def _nothing(_: Job) -> None:
    """Do nothing: the default end of a job."""
