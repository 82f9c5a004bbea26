"""One port class of several instances: what is sent and received, and when.

Axes: as in `engine.together.rounds`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.engine.clock import FAR
from moesim.engine.together.costs import Shape
from moesim.types import Bools, Ints


class Turn:
    """The micro-batches that take part in a round, one of each of some lanes.

    Attributes
    ----------
    lane, place, spot : (n,) arrays of int
        Whose, at which place, and both as one number: an index of ``(W, B)`` arrays.
    cell : (G, n) array of int
        The same of ``(W, G, B)`` arrays.
    """

    __slots__ = ("cell", "lane", "place", "spot")

    def __init__(self, lane: Ints, place: Ints, shape: Shape) -> None:
        self.lane = lane
        self.place = place
        self.spot = place * shape.lanes + lane
        gpu = np.arange(shape.gpus)[:, None]
        self.cell = (place * shape.gpus + gpu) * shape.lanes + lane


class Port:
    """One port class of all GPUs: its sending and receiving servers.

    Attributes
    ----------
    tx, rx, begin, sent, received : (W, G, B) arrays of int
        Picoseconds to send and to receive; when it starts and ends sending, and ends
        receiving if that is settled.
    used, settled : (W, B) arrays of bool
        Whether anybody sends, and whether the receiving is settled.
    first, last : (W, B) arrays of int
        When the first byte leaves, `FAR` where there is none or it is settled; and
        when the last sender is done.
    free : (G, B) array of int
        When the receiving servers are done with all that is settled.
    """

    def __init__(self, shape: Shape, latency: int) -> None:
        rows = (shape.places, shape.gpus, shape.lanes)
        size = (shape.places, shape.lanes)
        self.latency = latency
        self.tx: Ints = np.zeros(rows, np.int64)
        self.rx: Ints = np.zeros(rows, np.int64)
        self.begin: Ints = np.full(rows, -1)
        self.sent: Ints = np.full(rows, -1)
        self.received: Ints = np.zeros(rows, np.int64)
        self.used: Bools = np.zeros(size, bool)
        self.settled: Bools = np.zeros(size, bool)
        self.first: Ints = np.full(size, FAR)
        self.last: Ints = np.full(size, -1)
        self.free: Ints = np.full(rows[1:], -1)
        self.place: Ints = np.arange(shape.places)[:, None]

    def receive(self, turn: Turn) -> Ints:
        """Return ``(G, n)``: when the GPUs are done receiving; others may be first."""
        mine = self.first.take(turn.spot)
        fresh = mine < FAR
        first = self.first.take(turn.lane, axis=1)
        # Of equal instants the smaller number, that is the earlier place, is first.
        bound = np.where(fresh, mine, -1) + (self.place < turn.place)
        before = first < bound
        if before.any():
            self._receive_others(turn.lane, first, before)
        row = self.free.take(turn.lane, axis=1)
        np.maximum(row, np.where(fresh, mine + self.latency, -1), out=row)
        row += self.rx.take(turn.cell) * fresh
        self.free[:, turn.lane] = row
        return np.where(fresh, row, self.received.take(turn.cell))

    def _receive_others(self, lane: Ints, first: Ints, before: Bools) -> None:
        """Let the ports receive what others began to send before, in that order."""
        order = np.where(before, first, FAR).argsort(axis=0, kind="stable")
        counts = before.sum(axis=0)
        for turn in range(int(counts.max())):
            some = np.flatnonzero(counts > turn)
            place, mine = order[turn, some], lane[some]
            begin = first[place, some] + self.latency
            row = np.maximum(self.free[:, mine].T, begin[:, None])
            row += self.rx[place, :, mine]
            self.free[:, mine] = row.T
            self.received[place, :, mine] = row
            self.settled[place, mine] = True
            self.first[place, mine] = FAR

    def time(self) -> None:
        """Find when the first byte of everybody leaves, and the last sender is done."""
        begin = np.where(self.tx > 0, self.begin, FAR).min(axis=1)
        np.copyto(begin, FAR, where=self.settled)
        self.first[:] = begin
        np.max(self.sent, axis=1, out=self.last)

    def rows(self) -> Iterator[tuple[NDArray[Any], int]]:
        """Yield all arrays by place, with what stands at an empty one."""
        yield from ((self.tx, 0), (self.rx, 0), (self.begin, -1), (self.sent, -1))
        yield from ((self.received, 0), (self.used, 0), (self.settled, 0))
        yield from ((self.first, FAR), (self.last, -1))
