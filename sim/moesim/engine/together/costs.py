"""What micro-batches in flight in several instances ask for, and went through.

Axes: ``B`` lanes, ``W`` homes of micro-batches, ``C`` port classes, ``G`` GPUs, ``N``
segments as in `engine.event.flow`; ``n`` micro-batches that were priced together.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.together.shares import Whole
from moesim.types import Bools, Ints


@dataclass(frozen=True, slots=True)
class Shape:
    """How many lanes, places, segments, port classes and GPUs there are."""

    lanes: int
    places: int
    segments: int
    ports: int
    gpus: int


class Costs:
    """Micro-batches by lane and home, and each of their segments: a *row*.

    Attributes
    ----------
    work, came, post : (B, W, N, G) arrays of int
        Picoseconds of compute; when each GPU entered each segment, and had computed.
    tx, rx : (B, W, N, C, G) arrays of int
        Picoseconds of sending and receiving.
    used : (B, W, N, C) array of bool
        Whether anybody sends.
    """

    def __init__(self, shape: Shape) -> None:
        size = (shape.lanes, shape.places, shape.segments)
        self.shape = shape
        self.work: Ints = np.zeros((*size, shape.gpus), np.int64)
        self.came: Ints = np.zeros_like(self.work)
        self.post: Ints = np.zeros_like(self.work)
        self.tx: Ints = np.zeros((*size, shape.ports, shape.gpus), np.int64)
        self.rx: Ints = np.zeros_like(self.tx)
        self.used: Bools = np.zeros((*size, shape.ports), bool)

    def load(self, lane: Ints, home: Ints, whole: Whole) -> None:
        """Take in ``(n,)`` micro-batches that have been priced together."""
        cost, shape = whole.batch.cost, self.shape
        layers, copies = len(cost.attention), len(lane)
        work = np.empty((copies, shape.segments, shape.gpus), np.int64)
        by_copy = (layers, copies, shape.gpus)
        work[:, :-1:2] = cost.attention.reshape(by_copy).swapaxes(0, 1)
        work[:, 1::2] = cost.experts.sum(axis=1).reshape(by_copy).swapaxes(0, 1)
        work[:, -1] = cost.tail.reshape(copies, shape.gpus)
        self.work[lane, home] = work
        tx, rx = (self._by_copy(given, copies) for given in (cost.tx, cost.rx))
        used: Bools = np.any(tx, axis=-1)
        self.used[lane, home, :-1] = used
        self.tx[lane, home, :-1] = tx
        self.rx[lane, home, :-1] = rx * used[..., None]

    def _by_copy(self, given: Ints, copies: int) -> Ints:
        """Return ``(n, N - 1, C, G)`` of ``(L, P, C, n G)``."""
        ports = self.shape.ports
        cells = given[:, :, :ports].reshape(self.shape.segments - 1, ports, copies, -1)
        return cells.transpose(2, 0, 1, 3)
