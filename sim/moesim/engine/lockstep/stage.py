"""The timetable of one joint stage of lockstep coupling: nothing else runs meanwhile.

Shared experts that overlap dispatch are those of the selected micro-batches, and run
ahead of the experts.

Axes: ``B`` micro-batches of a stage, ``G`` GPUs, ``C`` port classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moesim.cost.pass_ import COMBINE, DISPATCH
from moesim.engine.microbatch import MicroBatch
from moesim.measure.columns import PARTS
from moesim.spec.system import System
from moesim.types import Ints


@dataclass(slots=True, eq=False)
class Walker:
    """A micro-batch in flight: where it stands, and where its time went.

    Parameters
    ----------
    parts : (7, G) array of int
        Picoseconds of each of `PARTS`; service still counts as ``queue``.
    since : int
        Up to when its time is accounted for.
    ready : int
        Since when it has been ready for its layer's experts.
    deferred : int
        For how many stages in a row it has been passed over.
    waits : list of (cells, picoseconds)
        How long its experts' jobs waited, stage by stage.
    """

    batch: MicroBatch
    on_done: Callable[[MicroBatch], None]
    parts: Ints
    since: int
    layer: int = 0
    gated: bool = False
    ready: int = 0
    deferred: int = 0
    waits: list[tuple[Ints, Ints]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stage:
    """The timetable of one joint stage: ``(G,)`` instants, in order of time.

    Parameters
    ----------
    attended, shared, received, computed, returned, finished : (G,) arrays of int
        When each GPU has done the attention, has done the shared experts that overlap
        dispatch, has its tokens, has run its experts, has its results back, and has run
        the LM heads of those that end.
    """

    start: int
    attended: Ints
    shared: Ints
    received: Ints
    computed: Ints
    returned: Ints
    finished: Ints

    @property
    def end(self) -> int:
        """The barrier: when the last GPU is done."""
        return int(self.finished.max())

    @property
    def delay(self) -> Ints:
        """``(G,)``: how long experts wait for shared ones."""
        return np.maximum(self.shared - self.received, 0)

    def exposed(self, chosen: Sequence[Walker]) -> Ints:
        """Return ``(B, G)``: what of each one's shared experts nothing hides."""
        service = np.stack([behind(walker) for walker in chosen])
        ended = self.attended + service.cumsum(axis=0)
        computes = self.computed > self.received
        since = np.where(computes, self.received, self.returned)
        return np.clip(ended - since, 0, service)

    def parts(self) -> Ints:
        """Return ``(7, G)``: where the stage's time goes on each GPU."""
        computing = self.attended - self.start
        computing = computing + (self.computed - self.received)
        computing = computing + (self.finished - self.returned)
        late = (self.attended.max() - self.attended) + (self.end - self.finished)
        rows = dict.fromkeys(PARTS, np.zeros_like(computing))
        rows["queue"] = computing
        rows["straggler"] = late + (self.computed.max() - self.computed)
        rows["dispatch"] = self.received - self.attended.max()
        rows["combine"] = self.returned - self.computed.max()
        return np.stack([rows[part] for part in PARTS])


class Received(NamedTuple):
    """How an all-to-all that runs alone ends.

    Parameters
    ----------
    ready : (G,) array of int
        When each GPU has received.
    free : (C, G) array of int
        When each receiving port is free again.
    """

    ready: Ints
    free: Ints


def exchange(post: Ints, tx: Ints, rx: Ints, latency: Ints, free: Ints) -> Received:
    """Return when each GPU has received, if nothing else uses the ports.

    Parameters
    ----------
    post : (G,) array of int
        When each GPU has computed and hands over its bytes.
    tx, rx : (C, G) arrays of int
        How long each port sends and receives; 0 is no bytes.
    latency : (C,) array of int
        Fixed time of a phase on each port class.
    free : (C, G) array of int
        When each receiving port is done with the phase before.
    """
    ready, free = np.full_like(post, post.max()), free.copy()
    for port, delay in enumerate(latency):
        sends = tx[port] > 0
        if not sends.any():
            continue
        first, last = post[sends].min(), (post + tx[port]).max()
        receives = rx[port] > 0
        arrived = np.maximum(first + delay, free[port]) + rx[port]
        free[port] = np.where(receives, arrived, free[port])
        own = np.where(receives, arrived, 0)
        ready = np.maximum(ready, np.maximum(own, last + delay))
    return Received(ready, free)


def last_layer(walker: Walker) -> int:
    """Return how many MoE layers the walker's model has."""
    return len(walker.batch.cost.attention)


def timetable(
    start: int, entering: Sequence[Walker], chosen: Sequence[Walker], system: System
) -> Stage:
    """Return the timetable of a stage that begins at `start` with nothing else running.

    Parameters
    ----------
    entering, chosen : sequences of Walker
        Those whose attention runs first, and those whose experts run then.
    """
    zeros = np.zeros(system.topology.gpus, np.int64)
    attention = sum((w.batch.cost.ahead[w.layer] for w in entering), zeros)
    experts = sum((w.batch.cost.experts[w.layer].sum(axis=0) for w in chosen), zeros)
    ending = [w for w in chosen if w.layer + 1 == last_layer(w)]
    tail = sum((w.batch.cost.tail for w in ending), zeros)
    latency = chosen[0].batch.cost.latency
    attended = start + attention
    idle = np.zeros((len(latency), system.topology.gpus), np.int64)
    received = exchange(attended, *_ports(chosen, DISPATCH), latency, idle)
    shared = attended + sum((behind(walker) for walker in chosen), zeros)
    free = np.where(experts > 0, np.maximum(received.ready, shared), received.ready)
    computed = free + experts
    returned = exchange(
        computed, *_ports(chosen, COMBINE), latency, received.free
    ).ready
    finished = np.maximum(returned, shared) + tail
    return Stage(start, attended, shared, received.ready, computed, returned, finished)


def behind(walker: Walker) -> Ints:
    """Return ``(G,)``: the walker's shared experts that overlap this dispatch."""
    cost = walker.batch.cost
    if cost.shared.size:
        return cost.shared[walker.layer]
    return np.zeros(cost.attention.shape[1], np.int64)


def _ports(chosen: Sequence[Walker], phase: int) -> tuple[Ints, Ints]:
    tx = np.stack([walker.batch.cost.tx[walker.layer, phase] for walker in chosen])
    rx = np.stack([walker.batch.cost.rx[walker.layer, phase] for walker in chosen])
    return tx.sum(axis=0), rx.sum(axis=0)
