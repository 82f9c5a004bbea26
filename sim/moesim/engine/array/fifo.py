"""First come, first served: append, and repair the columns where arrivals invert.

Axes: ``W`` walks in flight, ``G`` GPUs, ``m`` columns: GPUs under repair.
"""

import numpy as np

from moesim.engine.array.servers import Servers, Walks, pick
from moesim.engine.array.walk import Walk
from moesim.types import Ints


class FifoQueues:
    """Every GPU serves in order of local arrival."""

    def __init__(self, ports: int, gpus: int) -> None:
        self.servers = Servers(ports, gpus)
        self.latest = -1

    def enter(self, walk: Walk, walks: Walks, earliest: int, now: int) -> None:
        """Queue the jobs of a walk that enters a segment, and time all they change.

        Parameters
        ----------
        walk : Walk
            Who enters; its row `entered` is filled.
        walks : sequence of Walk
            All in flight, in order of number.
        earliest : int
            No GPU enters before that instant.
        now : int
            The time.
        """
        segment = walk.segment
        servers = self.servers
        arrival = walk.entered[segment]
        whole = walk.whole[segment]
        late = None
        if self.latest >= earliest or not whole:
            late = self._late(walk)
        if whole:
            servers.append(walk)
        else:
            servers.append_some(walk)
        servers.arrived = arrival
        self.latest = arrival.item(arrival.argmax())
        if late is not None and late.size:
            self._repair(walks, late, now)

    def _late(self, walk: Walk) -> Ints:
        """Return the GPUs at which the walk does not come after all that is known.

        Its jobs must arrive after all others, and so must its posts at the ports.
        """
        arrival = walk.entered[walk.segment]
        late = arrival <= self.servers.arrived
        if not walk.whole[walk.segment]:
            idle = walk.work[walk.segment] == 0
            late |= idle & (arrival <= self.servers.free)
        return np.flatnonzero(late)

    def _repair(self, walks: Walks, columns: Ints, now: int) -> None:
        """Serve some GPUs anew, those jobs excepted that arrived before now."""
        arrival = pick([walk.entered[walk.segment] for walk in walks], columns)
        work = pick([walk.work[walk.segment] for walk in walks], columns)
        post = pick([walk.posted[walk.segment] for walk in walks], columns)
        known = arrival < now
        queued = (work > 0) & ~known
        free = np.where(known, post, 0).max(axis=0)
        post = np.where(known, post, arrival)
        gpu = np.arange(len(columns))
        for row in arrival.argsort(axis=0, kind="stable"):
            waits = queued[row, gpu]
            done = np.maximum(free, arrival[row, gpu]) + work[row, gpu]
            post[row, gpu] = np.where(waits, done, post[row, gpu])
            free = np.where(waits, done, free)
        for walk, ends in zip(walks, post, strict=True):
            walk.posted[walk.segment][columns] = ends
        self.servers.resend(walks, columns, now)
        self.servers.recall(walks)
        self.latest = int(self.servers.arrived.max())
