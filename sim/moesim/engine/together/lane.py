"""One replication among several: an instance that waits for the others.

Axes: ``G`` GPUs, ``N`` segments as in `engine.event.flow`, ``n`` passes.
"""

from typing import NamedTuple

import numpy as np
from simpy import Event
from simpy.core import EmptySchedule

from moesim.engine.clock import FAR, TELL
from moesim.engine.draft import Draft
from moesim.engine.instance import Instance
from moesim.engine.together.ensemble import Order
from moesim.engine.together.shares import Share
from moesim.engine.together.solo import parts_of
from moesim.types import Ints

DONE, FORMED, WALKING = range(3)
"""What a lane waits for: nothing any more, its passes' prices, or others' walks."""
UNTOLD = 64
"""Ended passes that are written down together."""


class Ended(NamedTuple):
    """A pass that has ended, and its ``(N, G)`` instants."""

    share: Share
    done: int
    came: Ints
    post: Ints


class Lane:
    """One replication: its instance, and what it has formed but not yet begun."""

    def __init__(self, instance: Instance, number: int) -> None:
        self.instance = instance
        self.number = number
        self.clock = instance.clock
        self.total = len(instance.requests)
        self.formed: list[Order] = []
        self.ended: list[Share] = []
        instance.begin = self._take

    def _take(self, draft: Draft, padding: Ints) -> None:
        loads = self.instance.assembler.loads
        self.formed.append(Order(draft, padding, loads, self.number))

    def advance(self, due: int) -> int:
        """Let things happen until the lane must wait, at the latest before `due`."""
        clock, instance = self.clock, self.instance
        try:
            while not self.formed and instance.ended < self.total:
                if due <= clock.next and due < FAR:
                    clock.skip(due)
                    return WALKING
                clock.step()
        except EmptySchedule:
            return DONE
        return FORMED if self.formed else DONE

    def end(self, share: Share) -> None:
        """Take a pass that ends now; passes are told of by number."""
        if not self.ended:
            self.clock.settle(TELL, self._tell)
        self.ended.append(share)

    def _tell(self, _: Event) -> None:
        ended, self.ended = sorted(self.ended, key=_number), []
        for share in ended:
            self.instance.land(share.draft.number)


def _number(share: Share) -> int:
    return share.draft.number


class Ledger:
    """Passes that have ended and are yet to be written down, some at a time."""

    def __init__(self) -> None:
        self.pages: list[tuple[Lane, Ended]] = []

    def add(self, lane: Lane, ended: Ended) -> None:
        """Take a pass; those of one lane come in the order in which they end."""
        self.pages.append((lane, ended))
        if len(self.pages) >= UNTOLD:
            self.write()

    def write(self) -> None:
        """Write down all that is yet to be."""
        if not self.pages:
            return
        came = np.stack([ended.came for _, ended in self.pages], axis=2)
        post = np.stack([ended.post for _, ended in self.pages], axis=2)
        parts, spent = parts_of(came, post), post[1::2] - came[1::2]
        waits: dict[Lane, list[tuple[Ints, Ints]]] = {}
        for row, (lane, ended) in enumerate(self.pages):
            share = ended.share
            record = share.record(ended.done, parts[..., row])
            lane.instance.recorder.end_pass(record)
            waits.setdefault(lane, []).append(share.waits(spent[..., row]))
        for lane, found in waits.items():
            cells, times = (np.concatenate(part) for part in zip(*found, strict=True))
            lane.instance.recorder.waits.extend(cells, times)
        self.pages.clear()
