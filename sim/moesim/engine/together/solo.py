"""Passes that have their clusters to themselves: no queue, no event, a closed form.

With one micro-batch in flight nothing waits for another one, so all instants of a pass
follow when it is admitted, layer by layer. It gives what the other engines of the
queued coupling give then, to the tick, for several passes at once.

Axes: ``n`` passes, last, since NumPy is fastest along them; ``G`` GPUs of each; ``N``
segments as in `engine.event.flow`; ``L`` MoE layers.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.microbatch import TickCost
from moesim.measure.columns import PARTS
from moesim.types import Bools, Ints

NEVER = -(2**62)
FAR = 2**62
"""Added to an instant to keep it out of a maximum or a minimum."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """When every GPU enters each segment and has computed it, counted from admission.

    Parameters
    ----------
    entered, posted : (N, G, n) arrays of int
        Picoseconds.
    """

    entered: Ints
    posted: Ints

    @property
    def end(self) -> Ints:
        """``(n,)``: how long each pass takes."""
        longest: Ints = self.posted[-1].max(axis=0)
        return longest


def parts_of(entered: Ints, posted: Ints) -> Ints:
    """Return ``(7, G, n)``: picoseconds of each of `PARTS` on each GPU.

    Service counts as ``queue`` as yet. Sums of instants may overflow and do not matter
    if they do: all that is used of them is differences, right modulo 2^64.

    Parameters
    ----------
    entered, posted : (N, G, n) arrays of int
        Instants of passes that have ended.
    """
    last = posted.max(axis=1)
    posts = posted.sum(axis=0)
    dispatched, combined = entered[1::2].sum(axis=0), entered[2::2].sum(axis=0)
    parts = np.zeros((len(PARTS), *posts.shape), np.int64)
    rows = dict(zip(PARTS, parts, strict=True))
    rows["queue"][:] = posts - dispatched - combined - entered[0]
    rows["straggler"][:] = last.sum(axis=0) - posts
    rows["dispatch"][:] = dispatched - last[:-1:2].sum(axis=0)
    rows["combine"][:] = combined - last[1::2].sum(axis=0)
    return parts


class Ports:
    """One port class of the segments of all passes: what it sends and receives.

    Parameters
    ----------
    tx, rx : (N - 1, G, n) arrays of int
        Picoseconds; 0 is no bytes.
    latency : int
        Fixed time of a phase.
    """

    def __init__(self, tx: Ints, rx: Ints, latency: int) -> None:
        sends: Bools = tx > 0
        receives: Bools = rx > 0
        self.tx, self.rx = tx, rx
        self.latency = latency
        self.used: Bools = np.any(sends, axis=1)
        self.always: list[bool] = self.used.all(axis=1).tolist()
        self.ever: list[bool] = self.used.any(axis=1).tolist()
        self.full: list[bool] = np.all(sends, axis=(1, 2)).tolist()
        self.fed: list[bool] = np.all(receives, axis=(1, 2)).tolist()
        self.silent = np.where(sends, 0, FAR)
        self.unfed = np.where(receives, 0, NEVER)
        self.free: Ints = np.full(tx.shape[1:], NEVER)
        self.sent: Ints = np.empty(tx.shape[1:], np.int64)

    def exchange(self, segment: int, post: Ints, ready: Ints) -> None:
        """Raise `ready` to when each GPU has received, where the class is in use.

        Parameters
        ----------
        post, ready : (G, n) arrays of int
            When each GPU hands over its bytes; and when it may go on.
        """
        first = post if self.full[segment] else post + self.silent[segment]
        begin = first.min(axis=0)
        np.add(post, self.tx[segment], out=self.sent)
        last = self.sent.max(axis=0)
        if not self.always[segment]:
            used = self.used[segment]
            begin, last = np.where(used, begin, NEVER), np.where(used, last, NEVER)
        begin += self.latency
        last += self.latency
        np.maximum(self.free, begin, out=self.free)
        np.add(self.free, self.rx[segment], out=self.free)
        own = self.free
        if not self.fed[segment]:
            own = own + self.unfed[segment]
        np.maximum(ready, own, out=ready)
        np.maximum(ready, last, out=ready)


def walk_alone(cost: TickCost, gpus: int) -> Timetable:
    """Return the timetable of each pass, from its admission on.

    Parameters
    ----------
    cost : TickCost
        Of all passes, each with a block of GPUs of its own.
    gpus : int
        How many GPUs each has, ``G``.
    """
    layers, width = cost.attention.shape
    final = 2 * layers
    work = np.empty((final + 1, gpus, width // gpus), np.int64)
    work[:-1:2] = by_pass(cost.attention, gpus)
    work[1::2] = by_pass(cost.experts.sum(axis=1), gpus)
    work[-1] = by_pass(cost.tail, gpus)
    ports = ports_of(cost, gpus)
    entered, posted = np.zeros_like(work), np.empty_like(work)
    for segment in range(final):
        post, ready = posted[segment], entered[segment + 1]
        np.add(entered[segment], work[segment], out=post)
        open_ = [port for port in ports if port.ever[segment]]
        if any(port.always[segment] for port in open_):
            ready.fill(NEVER)
        else:  # somebody may send nothing at all: they wait for the last to compute
            ready[:] = post.max(axis=0)
        for port in open_:
            port.exchange(segment, post, ready)
    np.add(entered[-1], work[-1], out=posted[-1])
    return Timetable(entered, posted)


def by_pass(values: Ints, gpus: int) -> Ints:
    """Return ``(..., G, n)`` of ``(..., n G)``, contiguous."""
    shape = (*values.shape[:-1], -1, gpus)
    return np.ascontiguousarray(values.reshape(shape).swapaxes(-1, -2))


def ports_of(cost: TickCost, gpus: int) -> list[Ports]:
    """Return the port classes that any pass uses."""
    found = []
    for port, latency in enumerate(cost.latency.tolist()):
        tx, rx = cost.tx[:, :, port], cost.rx[:, :, port]
        if tx.any():
            segments = (-1, tx.shape[-1])
            sent = by_pass(tx.reshape(segments), gpus)
            received = by_pass(rx.reshape(segments), gpus)
            found.append(Ports(sent, received, latency))
    return found
