"""The servers of all GPUs as rows of instants: compute, and the sending ports.

Only micro-batches in flight matter, each with the jobs of the segment it stands in: all
that came before has ended when anything new arrives. So a row ``(G,)`` says when each
server is free after all known jobs. A new job that arrives after them is *appended* to
its server's queue; where it does not, that column of GPUs is *repaired*.

Axes: ``W`` walks in flight, ``m`` columns: GPUs under repair.
"""

from collections.abc import Sequence

import numpy as np

from moesim.engine.array.walk import Walk
from moesim.types import Ints

Walks = Sequence[Walk]


class Servers:
    """When servers are free, and who came last, as of all known jobs.

    Rows are often those of the walk that was appended last, not copies: it writes them
    again only when what they say is over.

    Attributes
    ----------
    arrived : (G,) array of int
        Last arrival at each GPU.
    free : (G,) array of int
        Last end of computing there, and last post.
    sent : list of C arrays (G,) of int
        Last end of sending at each port.
    """

    __slots__ = ("arrived", "free", "sent")

    def __init__(self, ports: int, gpus: int) -> None:
        self.arrived: Ints = np.full(gpus, -1)
        self.free: Ints = np.full(gpus, -1)
        self.sent: list[Ints] = list(np.full((ports, gpus), -1))

    def append(self, walk: Walk) -> None:
        """Let a walk's jobs run after all others, when every GPU has one."""
        segment = walk.segment
        post = walk.posted[segment]
        np.maximum(self.free, walk.entered[segment], out=post)
        np.add(post, walk.work[segment], post)
        self.free = post
        ports = walk.ports[segment]
        if not ports:
            walk.end = post.item(post.argmax())
            return
        end = 0
        for port in ports:
            begin, sent = walk.begin[port], walk.sent[port]
            np.maximum(self.sent[port], post, out=begin)
            np.add(begin, walk.tx[segment, port], sent)
            self.sent[port] = sent
            walk.first[port] = begin.item(begin.argmin())
            last = walk.last[port] = sent.item(sent.argmax())
            end = max(last, end)
        walk.end = end

    def append_some(self, walk: Walk) -> None:
        """Let a walk's jobs run after all others, where it has any."""
        segment = walk.segment
        work, arrival = walk.work[segment], walk.entered[segment]
        served = np.maximum(self.free, arrival) + work
        post = walk.posted[segment]
        post[:] = np.where(work > 0, served, arrival)
        self.free = np.maximum(self.free, post)
        for port in walk.ports[segment]:
            load = walk.tx[segment, port]
            queue = np.where(load > 0, self.sent[port], 0)
            begin, sent = walk.begin[port], walk.sent[port]
            np.maximum(queue, post, out=begin)
            np.add(begin, load, sent)
            self.sent[port] = np.maximum(self.sent[port], sent)
        walk.time_sending()

    def resend(self, walks: Walks, columns: Ints, now: int) -> None:
        """Queue the sending jobs of some GPUs anew, those posted before now excepted.

        Parameters
        ----------
        walks : sequence of Walk
            All in flight, in order of number.
        columns : (m,) array of int
            The GPUs.
        now : int
            The time.
        """
        for port in range(len(self.sent)):
            users = [walk for walk in walks if port in walk.ports[walk.segment]]
            if users:
                _queue_again(users, port, columns, now)

    def recall(self, walks: Walks) -> None:
        """Bring the rows up to date with what is known of the walks in flight."""
        self.arrived = _latest([walk.entered[walk.segment] for walk in walks])
        self.free = _latest([walk.posted[walk.segment] for walk in walks])
        for port in range(len(self.sent)):
            rows = [w.sent[port] for w in walks if port in w.ports[w.segment]]
            if rows:
                self.sent[port] = _latest(rows)
        for walk in walks:
            walk.time_sending()


def _latest(rows: list[Ints]) -> Ints:
    return np.maximum.reduce(rows)


def _queue_again(users: Walks, port: int, columns: Ints, now: int) -> None:
    """Serve first come, first served: by post, then by number of the micro-batch."""
    post = pick([walk.posted[walk.segment] for walk in users], columns)
    load = pick([walk.tx[walk.segment, port] for walk in users], columns)
    begin = pick([walk.begin[port] for walk in users], columns)
    sends = load > 0
    known = post < now
    queued = sends & ~known
    free = np.where(sends & known, begin + load, 0).max(axis=0)
    begin = np.where(known, begin, post)
    gpu = np.arange(len(columns))
    for row in post.argsort(axis=0, kind="stable"):
        waits = queued[row, gpu]
        start = np.maximum(free, post[row, gpu])
        begin[row, gpu] = np.where(waits, start, begin[row, gpu])
        free = np.where(waits, start + load[row, gpu], free)
    for walk, start, end in zip(users, begin, begin + load, strict=True):
        walk.begin[port][columns] = start
        walk.sent[port][columns] = end


def pick(rows: list[Ints], columns: Ints) -> Ints:
    """Return ``(W, m)``: some columns of each row."""
    return np.stack([row[columns] for row in rows])
