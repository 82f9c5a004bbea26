"""What micro-batches in flight take in the memory of every GPU.

Axis: ``G`` GPUs.
"""

import numpy as np

from moesim.cost.footprint import Footprint
from moesim.measure.memory import MemoryLog
from moesim.types import Ints


class Ledger:
    """Enters micro-batches as they begin, and takes them out as they land.

    Attributes
    ----------
    level : (2, G) array of int
        Bytes of buffers and of activations now.
    held : dict of int to Footprint
        What each micro-batch in flight takes.
    """

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.level: Ints = np.zeros_like(log.parts)
        self.held: dict[int, Footprint] = {}

    def begin(self, number: int, now: int, need: Footprint) -> None:
        """Enter a micro-batch."""
        self.held[number] = need
        self.level += need.bytes
        total = self.level[0] + self.level[1]
        more = total > self.log.peak
        if more.any():
            log = self.log
            log.peak[more] = total[more]
            log.parts[:, more] = self.level[:, more]
            log.at[more], log.batch[more] = now, number
            log.layer[more] = need.layer[more]

    def land(self, number: int) -> None:
        """Take a micro-batch out."""
        self.level -= self.held.pop(number).bytes

    def excess(self, need: Footprint) -> Ints:
        """Return ``(G,)``: bytes by which each GPU would be over its limit with it."""
        reserved = self.log.reserved
        taken = (self.level + need.bytes).sum(axis=0)
        return taken + (reserved.total - reserved.limit)
