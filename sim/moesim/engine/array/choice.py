"""What GPUs serve when jobs have keys: a choice for all GPUs at once, block by block.

A block is a run of slots of one micro-batch between which no other job could come: it
ends when the micro-batch has no more, when another one arrives, or when the oldest job
has waited out the budget.

Axes: ``W`` walks in flight, ``S`` slots of a GPU, ``m`` columns: GPUs under repair.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.array.servers import Walks, pick
from moesim.engine.array.walk import FAR, Walk
from moesim.engine.event.server import NO_BUDGET
from moesim.types import Bools, Ints


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one walk, each a job: ``(S, m)`` picoseconds.

    Parameters
    ----------
    before : array of int
        Work of the walk's earlier slots.
    service, start : arrays of int
        Its own work, 0 is no job; and when it starts.
    """

    before: Ints
    service: Ints
    start: Ints

    def upto(self, begin: Ints, room: Ints, whole: Ints) -> Ints:
        """Return the work served by the first end of a slot after `room` or more.

        Parameters
        ----------
        begin, whole : (m,) arrays of int
            Work served already, and in all.
        room : (m,) array of int
            For how long nothing can come between the slots.
        """
        over = (self.before > begin) & (self.before - begin >= room)
        return np.minimum(np.where(over, self.before, FAR).min(axis=0), whole)

    def write(self, here: Bools, begin: Ints, end: Ints, now: Ints) -> None:
        """Note the start of the slots of a block that begins at `now`."""
        block = here & (self.before >= begin) & (self.before < end)
        np.copyto(self.start, now + self.before - begin, where=block)


class Choice:
    """The choices of some GPUs from the arrival of a new job on.

    Parameters
    ----------
    walks : sequence of Walk
        All in flight, in order of number.
    new : Walk
        The one of them that enters; jobs that started before it came stay as they are.
    columns : (m,) array of int
        The GPUs.
    budget : int
        Wait in picoseconds after which age decides, or `NO_BUDGET`.
    """

    def __init__(self, walks: Walks, new: Walk, columns: Ints, budget: int) -> None:
        self.walks = walks
        self.columns = columns
        self.budget = budget
        self.arrival = pick([walk.entered[walk.segment] for walk in walks], columns)
        self.work = pick([walk.work[walk.segment] for walk in walks], columns)
        self.post = pick([walk.posted[walk.segment] for walk in walks], columns)
        self.rank = ranks([walk.key for walk in walks], self.arrival)
        self.slots = {
            row: slots_of(walk, columns)
            for row, walk in enumerate(walks)
            if has_slots(walk)
        }
        self.gpu = np.arange(len(columns))
        self._keep(walks.index(new))

    def _keep(self, new: int) -> None:
        """Keep what starts before the new jobs arrive: how much, and until when.

        All that is left waits for a choice after that, for the server or for itself.
        """
        cut = self.arrival[new]
        kept = (self.work > 0) & (self.post - self.work < cut)
        kept[new] = False
        self.done = np.where(kept, self.work, 0)
        ends = np.where(kept, self.post, 0)
        for row, slots in self.slots.items():
            if row != new:
                some = (slots.service > 0) & (slots.start < cut)
                self.done[row] = np.where(some, slots.service, 0).sum(axis=0)
                ends[row] = np.where(some, slots.start + slots.service, 0).max(axis=0)
        self.free = np.maximum(ends.max(axis=0), cut)

    def play(self) -> None:
        """Serve all that is left."""
        left = self.done < self.work
        while left.any():
            self._serve(np.where(left, self.arrival, FAR))
            left = self.done < self.work

    def _serve(self, arrival: Ints) -> None:
        """Serve one block on each GPU that has jobs left: `FAR` is none."""
        oldest = arrival.min(axis=0)
        now = np.maximum(self.free, oldest)
        rank = np.where(arrival <= now, self.rank, len(arrival))
        row = rank.argmin(axis=0)
        room = self._room(arrival, now) if self.slots else now
        if self.budget != NO_BUDGET:
            left = oldest + self.budget - now
            row = np.where(left <= 0, arrival.argmin(axis=0), row)
            room = np.where(left <= 0, FAR, np.minimum(room, left))
        here = oldest < FAR
        begin, end = self.done[row, self.gpu], self.work[row, self.gpu]
        for mine, slots in self.slots.items():
            own = here & (row == mine)
            end = np.where(own, slots.upto(begin, room, end), end)
            slots.write(own, begin, end, now)
        until = now + end - begin
        self.free = np.where(here, until, self.free)
        self.done[row, self.gpu] = end
        self.post[row, self.gpu] = np.where(here, until, self.post[row, self.gpu])

    def _room(self, arrival: Ints, now: Ints) -> Ints:
        """Return for how long nobody else arrives."""
        return np.where(arrival > now, arrival, FAR).min(axis=0) - now

    def write(self) -> None:
        """Tell the walks when their jobs start and end."""
        for row, walk in enumerate(self.walks):
            walk.posted[walk.segment][self.columns] = self.post[row]
            if row in self.slots:
                walk.started[walk.segment >> 1][:, self.columns] = self.slots[row].start


def has_slots(walk: Walk) -> bool:
    """Tell whether the jobs of a GPU in this segment are several."""
    stands_at_experts = walk.segment & 1 == 1
    return stands_at_experts and walk.started.shape[1] > 1


def slots_of(walk: Walk, columns: Ints) -> Slots:
    """Return the slots of a walk on some GPUs."""
    layer = walk.segment >> 1
    service = walk.batch.cost.experts[layer][:, columns]
    before = service.cumsum(axis=0) - service
    return Slots(before, service, walk.started[layer][:, columns])


def ranks(keys: list[float], arrival: Ints) -> Ints:
    """Return ``(W, m)`` or ``(W, 1)``: places by (key, arrival, number).

    Parameters
    ----------
    keys : list of W float
        The smallest goes first.
    arrival : (W, m) array of int
        Among equal keys the earliest goes first, then the smallest number.
    """
    key = np.array(keys)[:, None]
    if len(set(keys)) == len(keys):
        return key.argsort(axis=0).argsort(axis=0)
    keyed = np.broadcast_to(key, arrival.shape)
    return np.lexsort((arrival, keyed), axis=0).argsort(axis=0)
