"""Who waits at each data-parallel rank, and in what order they are tried.

Axes: ``R`` ranks, ``W`` waiting requests that the compose role sees.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesim.engine.batch.line import Line
from moesim.engine.batch.seats import CHUNK, REQUEST, Seated, Seats
from moesim.engine.batch.sight import Sight
from moesim.engine.clock import PS_PER_S
from moesim.engine.memory.places import Places
from moesim.errors import InputError
from moesim.measure.columns import RequestColumns
from moesim.policy.compose import ArrivalOrder
from moesim.policy.view import Compose, View, WaitingView
from moesim.types import Ints

WINDOW = 256
"""How many of a rank's waiting requests the compose role sees."""


class Room(NamedTuple):
    """What a micro-batch still takes on a rank, and when it is formed."""

    rank: int
    seats: int
    budget: int
    now: int


class Waiting:
    """The waiting lines of all ranks; in static mode, the open cohorts before them.

    Parameters
    ----------
    rows : RequestColumns
        State of every request.
    ranks : int
        ``R``.
    cohort : int
        Members of a static batch on each rank; 0: whoever waits may come in.
    places : Places
        Which requests have computed tokens on the host.
    """

    def __init__(
        self, rows: RequestColumns, ranks: int, cohort: int, places: Places
    ) -> None:
        self.rows = rows
        self.sight: Sight | None = None
        self.places = places
        self.size = cohort
        self.lines = [Line() for _ in range(ranks)]
        self.open = [Line() for _ in range(ranks)] if cohort else self.lines
        self.count: Ints = np.zeros(ranks, np.int64)

    def __len__(self) -> int:
        """Return how many wait at all ranks, inside a cohort or not."""
        outside = sum(map(len, self.lines)) if self.size else 0
        return outside + int(self.count.sum())

    def append(self, rank: int, request: int) -> None:
        """Let a request that has arrived wait behind all others."""
        self.lines[rank].append(request)
        if not self.size:
            self.count[rank] += 1

    def prepend(self, rank: int, request: int) -> None:
        """Let a request that was put back wait before all others."""
        self.open[rank].prepend(request)
        self.count[rank] += 1

    def open_cohort(self) -> None:
        """Let the next static batch in, as nobody of the last one is left."""
        for rank, line in enumerate(self.lines):
            members = line.first(self.size)
            line.remove(members.tolist(), self.size)
            self.count[rank] = len(members)
            for request in members.tolist():
                self.open[rank].append(request)

    def tried(self, room: Room, compose: Compose) -> list[int]:
        """Return the waiting requests of a rank to try, in order.

        First come, first served needs to look no further than there are seats.
        """
        line = self.open[room.rank]
        if type(compose) is ArrivalOrder:
            return line.first(min(room.seats, WINDOW)).tolist()
        seen = line.first(WINDOW)
        view = View(room.now / PS_PER_S, np.zeros(0))
        waiting = self._view(seen, room)
        if self.sight is not None:
            waiting = self.sight.show(waiting)
        rows = checked_rows(compose.sequence(waiting, view), len(seen))
        return seen[rows[: room.seats]].tolist()

    def look(self, seats: Seats, number: int) -> None:
        """Show the sight of paths, if there is one, what a pass holds already."""
        if self.sight is not None:
            running = seats.of_pass(number)
            request = seats.request[running].astype(np.int64)
            self.sight.start(request, seats.chunk[running].astype(np.int64))

    def take(self, rank: int, seated: list[Seated]) -> None:
        """Let requests that were tried wait no longer: they have seats."""
        self.open[rank].remove([row[REQUEST] for row in seated], WINDOW)
        self.count[rank] -= len(seated)
        if self.sight is not None and seated:
            columns = np.array(seated).T
            self.sight.add(columns[REQUEST], columns[CHUNK])

    def tokens(self, request: int) -> int:
        """Return how many tokens a request knows: its prompt and answer so far."""
        prompt = int(self.rows.requests.input_tokens[request])
        return prompt + int(self.rows.generated[request])

    def _view(self, seen: NDArray[np.int32], room: Room) -> WaitingView:
        tokens = self.rows.requests.input_tokens[seen].astype(np.int64)
        tokens += self.rows.generated[seen]
        if self.places.swap:
            tokens -= [self.places.kept(request) for request in seen.tolist()]
        return WaitingView(
            request=seen.astype(np.int64),
            klass=self.rows.requests.klass[seen].astype(np.int64),
            arrival_s=self.rows.arrival[seen] / PS_PER_S,
            tokens=tokens,
            budget=room.budget,
            seats=room.seats,
        )


def checked_rows(given: object, count: int) -> list[int]:
    """Return the rows that a policy's role chose, each once.

    Raises
    ------
    InputError
        They are no whole numbers from 0 up to, not including, `count`.
    """
    rows = np.asarray(given)
    good = rows.ndim == 1 and (rows.dtype.kind in "iu" or not rows.size)
    if not good or ((rows < 0) | (rows >= count)).any():
        message = f"a policy chose the rows {given!r:.80}; expected numbers from 0 to "
        raise InputError(f"{message}{count - 1}")
    return list(dict.fromkeys(rows.tolist()))


def checked_row(given: object, count: int) -> int:
    """Return the one row that a policy's role chose; as `checked_rows`, but quick."""
    if type(given) is int and 0 <= given < count:
        return given
    (row,) = checked_rows([given], count)
    return row
