"""The array engine: a whole all-to-all of all GPUs in a few NumPy steps.

It gives what `engine.event.engine` gives, to the tick. Since an all-to-all is a barrier,
nothing new can arrive at any GPU before the last sender of some micro-batch in flight
is done; up to then all is known, GPU by GPU, and can be computed ahead. SimPy keeps the
time of what is decided meanwhile: admissions, barriers, ends.

Axes: ``C`` port classes, ``G`` GPUs.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from simpy import Event

from moesim.engine.array.fifo import FifoQueues
from moesim.engine.array.keys import KeyedQueues
from moesim.engine.array.waits import waits_of
from moesim.engine.array.walk import FAR, Walk
from moesim.engine.clock import TELL, Clock
from moesim.engine.microbatch import MicroBatch
from moesim.measure.columns import Recorder
from moesim.policy.bundle import Policy
from moesim.policy.order import Fifo
from moesim.spec.system import System
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Ints

NEVER_DUE = -1


class Queues(Protocol):
    """How every GPU chooses among the jobs that wait."""

    def enter(self, walk: Walk, walks: list[Walk], earliest: int, now: int) -> None:
        """Queue the jobs of a walk that enters a segment, and time all they change."""
        ...


def refusal(policy: Policy) -> str:
    """Return why the array engine would not be exact, or nothing when it is.

    A policy that looks at the whole instance at an instant of its choice needs every
    event to happen in its turn; all others are decided GPU by GPU.
    """
    if policy.needs == "global_instant":
        return f"policy {policy.name!r} looks at the whole instance at any instant"
    return ""


def kernels_refusal(system: System) -> str:
    """Return which kernels the array engine does not play, or nothing.

    It takes an all-to-all for a barrier of all that a GPU does; a job beside it is none
    of its segments.
    """
    if system.shared_experts == "overlapped":
        return "kernels.shared_experts is overlapped"
    if system.attention == "split":
        return "kernels.attention is split"
    return ""


def has_keys(policy: Policy) -> bool:
    """Tell whether a GPU may serve a job before one that came earlier."""
    return type(policy.order) is not Fifo and policy.wait_budget_s > 0


class ArrayEngine:
    """Queued coupling, one step a barrier.

    Right wherever `refusal` returns nothing. All micro-batches must have the latencies
    of the system. Passes that end at one instant are told by number.
    """

    def __init__(
        self, clock: Clock, system: System, policy: Policy, recorder: Recorder
    ) -> None:
        gpus, ports = system.topology.gpus, len(PORT_CLASSES)
        self.clock = clock
        self.system = system
        self.recorder = recorder
        self.residents = None
        self.parting = False
        self.queues: Queues = FifoQueues(ports, gpus)
        if has_keys(policy):
            self.parting = system.experts == "per_expert"
            self.queues = KeyedQueues(ports, gpus, policy)
        self.walks: list[Walk] = []
        self.ended: list[Walk] = []
        self.due = NEVER_DUE
        self.receiving: list[Ints] = list(np.zeros((ports, gpus), np.int64))
        self.instant = np.array(0)
        self.barrier = np.array(0)

    def admit(self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]) -> None:
        """Start a micro-batch now; `on_done` is called when its last GPU is done."""
        now = self.clock.now
        walk = Walk(batch, on_done)
        walk.entered[0] = now
        if self.parting and batch.cost.experts.shape[1] > 1:
            walk.started = np.empty_like(batch.cost.experts)
        self.walks.append(walk)
        self.walks.sort(key=_number)
        self.queues.enter(walk, self.walks, now, now)
        self._expect()

    def _expect(self) -> None:
        """Let the clock come back at the next barrier."""
        due = min([walk.end for walk in self.walks], default=FAR)
        if due not in (self.due, FAR):
            self.due = due
            self.clock.after(due - self.clock.now, self._reach, due)

    def _reach(self, event: Event) -> None:
        """Move on all walks whose last sender is done now."""
        now: int = event._value
        if now != self.due:
            return
        self.due = NEVER_DUE
        walk = self._at_barrier(now)
        while walk is not None:
            if walk.segment == walk.final:
                self._end(walk)
            else:
                earliest = self._receive(walk, now)
                walk.segment += 1
                self.queues.enter(walk, self.walks, earliest, now)
            walk = self._at_barrier(now)
        self._expect()

    def _at_barrier(self, now: int) -> Walk | None:
        for walk in self.walks:
            if walk.end == now:
                return walk
        return None

    def _receive(self, walk: Walk, now: int) -> int:
        """Fill in when each GPU has received; return before which instant none has."""
        segment = walk.segment
        ready = walk.entered[segment + 1]
        ports = walk.ports[segment]
        if not ports:
            ready.fill(now)
            return now
        earliest = max([walk.last[port] + walk.latency[port] for port in ports])
        self.barrier[()] = earliest
        upto = self.barrier
        for port in ports:
            received = self._received(walk, port)
            if not walk.fed[segment]:
                received = np.where(walk.rx[segment, port] > 0, received, 0)
            np.maximum(received, upto, out=ready)
            upto = ready
            walk.first[port] = FAR
            walk.received[port] = None
        return earliest

    def _received(self, walk: Walk, port: int) -> Ints:
        """Return when each GPU's port is done receiving; others' bytes may be first."""
        received = walk.received[port]
        if received is not None:
            return received
        first = walk.first[port]
        for other in self.walks:
            if other.first[port] <= first and other is not walk:
                self._receive_others(walk, port)
                break
        return self._take(walk, port)

    def _receive_others(self, walk: Walk, port: int) -> None:
        """Let the ports receive what others began to send before this walk did."""
        turn = (walk.first[port], walk.number)
        others = [(other.first[port], other.number, other) for other in self.walks]
        for first, number, other in sorted(others, key=lambda item: item[:2]):
            if (first, number) < turn:
                other.received[port] = self._take(other, port).copy()
                other.first[port] = FAR

    def _take(self, walk: Walk, port: int) -> Ints:
        """Let the ports receive a walk's bytes, one latency after the first left."""
        row = self.receiving[port]
        self.instant[()] = walk.first[port] + walk.latency[port]
        np.maximum(row, self.instant, out=row)
        np.add(row, walk.rx[walk.segment, port], row)
        return row

    def _end(self, walk: Walk) -> None:
        self.walks.remove(walk)
        if not self.ended:
            self.clock.settle(TELL, self._tell)
        self.ended.append(walk)

    def _tell(self, _: Event) -> None:
        ended, self.ended = sorted(self.ended, key=_number), []
        for walk in ended:
            self.recorder.end_pass(walk.record())
            waits = self.recorder.waits_of(walk.number)
            waits.extend(*waits_of(walk, self.system.experts))
            walk.on_done(walk.batch)


def _number(walk: Walk) -> int:
    return walk.number
