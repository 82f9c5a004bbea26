"""One micro-batch on its way through the layers, a row of instants for each segment.

Segments are those of `engine.event.flow`: attention, experts, and so on, then the LM
head. A walk stands in one segment at a time; what it did in the earlier ones is
history, from which its record is computed at the end.

Axes: ``N`` segments, ``L`` MoE layers, ``S`` slots of a GPU, ``C`` port classes, ``G``
GPUs.
"""

from collections.abc import Callable

import numpy as np

from moesim.engine.microbatch import MicroBatch, pass_record
from moesim.measure.columns import PARTS, PassRecord
from moesim.policy.view import BatchView
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Ints

FAR = 2**63 - 1
"""An instant after all others."""
NO_SLOTS: Ints = np.empty((0, 0, 0), np.int64)
IN_USE: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (0, 1))
"""Port classes with bytes, by the sum of one bit for each."""


class Walk:
    """A micro-batch in flight.

    Parameters
    ----------
    batch : MicroBatch
        What walks.
    on_done : callable
        Called with it when its last GPU is done.

    Attributes
    ----------
    work : (N, G) array of int
        Picoseconds of compute; 0 makes no job.
    entered, posted : (N, G) arrays of int
        When each GPU entered each segment, and had computed; true up to `segment`.
    begin, sent : sequences of C arrays (G,) of int
        When each port starts and ends sending in this segment, posts where it has
        nothing to send; true for the port classes in use.
    first, last : lists of C int
        When the first byte leaves anywhere, `FAR` once the port classes' receiving is
        settled or where there is none; and when the last sender is done.
    received : list of C arrays (G,) or None
        When each port ends receiving, if that is settled.
    started : (L, S, G) array of int
        When each slot's job starts, where slots may be parted by other jobs; else
        `NO_SLOTS`.
    end : int
        When the last sender of all, or the last post, is done: nothing of this
        micro-batch can arrive anywhere before that.
    """

    __slots__ = (
        "batch",
        "begin",
        "end",
        "entered",
        "fed",
        "final",
        "first",
        "key",
        "last",
        "latency",
        "number",
        "on_done",
        "ports",
        "posted",
        "received",
        "rx",
        "segment",
        "sent",
        "started",
        "tx",
        "whole",
        "work",
    )

    def __init__(
        self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]
    ) -> None:
        self.batch = batch
        self.on_done = on_done
        self.number = batch.number
        self.latency: list[int] = batch.cost.latency.tolist()
        self.key = 0.0
        self._spread()
        self._describe()
        self._stand()

    def _spread(self) -> None:
        """Lay the cost out by segment."""
        cost = self.batch.cost
        layers, gpus = cost.attention.shape
        ports = len(PORT_CLASSES)
        self.final = 2 * layers
        self.tx = cost.tx.reshape(self.final, ports, gpus)
        self.rx = cost.rx.reshape(self.final, ports, gpus)
        self.work: Ints = np.empty((self.final + 1, gpus), np.int64)
        self.work[:-1:2] = cost.attention
        np.sum(cost.experts, axis=1, out=self.work[1::2])
        self.work[-1] = cost.tail

    def _stand(self) -> None:
        """Stand before the first segment: nothing has happened yet."""
        ports, gpus = self.tx.shape[1:]
        self.segment = 0
        self.entered: Ints = np.empty_like(self.work)
        self.posted: Ints = np.empty_like(self.work)
        self.started: Ints = NO_SLOTS
        self.begin: list[Ints] = list(np.empty((ports, gpus), np.int64))
        self.sent: list[Ints] = list(np.empty((ports, gpus), np.int64))
        self.first = [FAR] * ports
        self.last = [0] * ports
        self.received: list[Ints | None] = [None] * ports
        self.end = FAR

    def _describe(self) -> None:
        """Tell segment by segment which port classes are in use, and if all GPUs are.

        `whole`: every GPU computes, and sends on each port class in use. `fed`: every
        GPU receives on each of them. Both are the common case, and the fast one.
        """
        least_tx, least_rx = self.tx.min(axis=2), self.rx.min(axis=2)
        used = least_tx > 0
        some = used if used.all() else self.tx.any(axis=2)
        codes = [*(some @ np.array([1, 2])).tolist(), 0]
        self.ports = [IN_USE[code] for code in codes]
        whole = (used | ~some).all(axis=1)
        self.whole: list[bool] = [
            *(whole & (self.work[:-1].min(axis=1) > 0)).tolist(),
            bool(self.work[-1].min() > 0),
        ]
        self.fed: list[bool] = ((least_rx > 0) | ~some).all(axis=1).tolist()

    def time_sending(self) -> None:
        """Bring `first`, `last` and `end` up to date with `begin`, `sent` and posts."""
        segment = self.segment
        ports = self.ports[segment]
        for port in ports:
            begin, sent = self.begin[port], self.sent[port]
            if not self.whole[segment]:
                begin = np.where(self.tx[segment, port] > 0, begin, FAR)
            if self.received[port] is None:
                self.first[port] = begin.item(begin.argmin())
            self.last[port] = sent.item(sent.argmax())
        if ports:
            self.end = max(self.last[port] for port in ports)
        else:
            post = self.posted[segment]
            self.end = post.item(post.argmax())

    def view(self) -> BatchView:
        """Return what a policy may see as this walk enters its segment."""
        layer, stage = divmod(self.segment, 2)
        if self.segment == self.final:
            return self.batch.view(layer - 1, "lm_head")
        return self.batch.view(layer, "experts" if stage else "attention")

    def record(self) -> PassRecord:
        """Return what is written down of the pass, once its last GPU is done.

        Sums of instants may overflow and do not matter if they do: all that is used of
        them is differences, which are right modulo 2^64.
        """
        last = self.posted.max(axis=1)
        posts = self.posted.sum(axis=0)
        dispatched = self.entered[1::2].sum(axis=0)
        combined = self.entered[2::2].sum(axis=0)
        parts = np.zeros((len(PARTS), posts.size), np.int64)
        rows = dict(zip(PARTS, parts, strict=True))
        rows["queue"][:] = posts - dispatched - combined - self.entered[0]
        rows["straggler"][:] = last.sum(keepdims=True) - posts
        rows["dispatch"][:] = dispatched - last[:-1:2].sum(keepdims=True)
        rows["combine"][:] = combined - last[1::2].sum(keepdims=True)
        return pass_record(self.batch, self.end, parts)
