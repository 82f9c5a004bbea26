"""Lockstep coupling: all ranks run one joint stage after another, as SPMD engines do.

A stage runs the attention of the micro-batches that stand before a new layer, then
dispatch, experts and combine of those the policy selects among the ready ones, each at
its own layer. Nothing else runs meanwhile, so a stage has a closed form.

Axes: ``B`` micro-batches of a stage, ``S`` slots of a GPU, ``G`` GPUs, ``C`` port
classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from simpy import Event

from moesim.cost.pass_ import COMBINE, DISPATCH
from moesim.engine.batching import checked_rows
from moesim.engine.clock import PICK, PS_PER_S, Clock
from moesim.engine.microbatch import MicroBatch, budget_ticks, checked_key, pass_record
from moesim.engine.server import NO_BUDGET
from moesim.errors import InputError
from moesim.measure.columns import PARTS, Recorder
from moesim.policy.bundle import Policy
from moesim.policy.view import View
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
    """

    batch: MicroBatch
    on_done: Callable[[MicroBatch], None]
    parts: Ints
    since: int
    layer: int = 0
    gated: bool = False
    ready: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """The timetable of one joint stage: ``(G,)`` instants, in order of time.

    Parameters
    ----------
    attended, received, computed, returned, finished : (G,) arrays of int
        When each GPU has done the attention, has its tokens, has run its experts, has
        its results back, and has run the LM heads of those that end.
    """

    start: int
    attended: Ints
    received: Ints
    computed: Ints
    returned: Ints
    finished: Ints

    @property
    def end(self) -> int:
        """The barrier: when the last GPU is done."""
        return int(self.finished.max())

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


class LockstepEngine:
    """One stage after another; micro-batches join at barriers."""

    def __init__(
        self, clock: Clock, system: System, policy: Policy, recorder: Recorder
    ) -> None:
        self.clock = clock
        self.system = system
        self.policy = policy
        self.recorder = recorder
        self.budget = budget_ticks(policy.wait_budget_s)
        self.walkers: list[Walker] = []
        self.running = False

    def admit(self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]) -> None:
        """Let a micro-batch join at the next barrier, or now if nothing runs."""
        gpus = self.system.topology.gpus
        parts = np.zeros((len(PARTS), gpus), np.int64)
        self.walkers.append(Walker(batch, on_done, parts, self.clock.now))
        if not self.running:
            self.running = True
            self.clock.settle(PICK, self._stage)

    def _stage(self, _: Event) -> None:
        entering = [walker for walker in self.walkers if not walker.gated]
        for walker in entering:
            walker.gated = True
            walker.ready = self.clock.now
        chosen = self._select()
        stage = timetable(self.clock.now, entering, chosen, self.system)
        self._account(stage, chosen)
        self._record_waits(stage.start, chosen)
        self.clock.after(stage.end - self.clock.now, self._barrier, chosen)

    def _select(self) -> list[Walker]:
        """Return who runs; who has waited out the budget goes before all others."""
        views = [
            replace(
                walker.batch.view(walker.layer, "experts"),
                ready_s=walker.ready / PS_PER_S,
            )
            for walker in self.walkers
        ]
        backlog = np.zeros(self.system.topology.gpus)
        view = View(self.clock.now / PS_PER_S, backlog)
        keys = np.array([checked_key(self.policy, batch, view) for batch in views])
        waited = self.clock.now - np.array([walker.ready for walker in self.walkers])
        if self.budget != NO_BUDGET:
            keys = np.where(waited >= self.budget, -np.inf, keys)
        given = self.policy.select.stage(views, keys)
        rows = checked_rows(given, len(views))
        if not rows:
            raise InputError(f"policy {self.policy.name!r} selected nobody")
        return [self.walkers[row] for row in rows]

    def _account(self, stage: Stage, chosen: Sequence[Walker]) -> None:
        queue = PARTS.index("queue")
        parts = stage.parts()
        for walker in self.walkers:
            walker.parts[queue] += stage.start - walker.since
            walker.since = stage.end
            if walker in chosen:
                walker.parts += parts
            else:
                walker.parts[queue] += stage.end - stage.start

    def _record_waits(self, start: int, chosen: Sequence[Walker]) -> None:
        """Write down how long each expert's job waited.

        That is while its micro-batch was ready but not selected, and then for the jobs
        served before it on its GPU.
        """
        service = np.stack([w.batch.cost.experts[w.layer] for w in chosen])
        wait = WAITS[self.system.experts](service)
        passed_over = np.array([start - walker.ready for walker in chosen])
        wait = wait + passed_over[:, None, None]
        row, slot, gpu = np.nonzero(service)
        _, slots, gpus = service.shape
        layer = np.array([walker.layer for walker in chosen])[row]
        cells = (layer * gpus + gpu) * slots + slot
        self.recorder.waits.extend(cells, wait[row, slot, gpu])

    def _barrier(self, event: Event) -> None:
        chosen: list[Walker] = event._value
        for walker in chosen:
            walker.layer += 1
            walker.gated = False
        ended = [walker for walker in chosen if walker.layer == last_layer(walker)]
        self.walkers = [walker for walker in self.walkers if walker not in ended]
        for walker in ended:
            record = pass_record(walker.batch, self.clock.now, walker.parts)
            self.recorder.end_pass(record)
            walker.on_done(walker.batch)
        self.running = True
        self.clock.settle(PICK, self._continue)

    def _continue(self, event: Event) -> None:
        self.running = bool(self.walkers)
        if self.running:
            self._stage(event)


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
    attention = sum((w.batch.cost.attention[w.layer] for w in entering), zeros)
    experts = sum((w.batch.cost.experts[w.layer].sum(axis=0) for w in chosen), zeros)
    ending = [w for w in chosen if w.layer + 1 == last_layer(w)]
    tail = sum((w.batch.cost.tail for w in ending), zeros)
    latency = chosen[0].batch.cost.latency
    attended = start + attention
    idle = np.zeros((len(latency), system.topology.gpus), np.int64)
    received = exchange(attended, *_ports(chosen, DISPATCH), latency, idle)
    computed = received.ready + experts
    returned = exchange(
        computed, *_ports(chosen, COMBINE), latency, received.free
    ).ready
    return Stage(start, attended, received.ready, computed, returned, returned + tail)


def _ports(chosen: Sequence[Walker], phase: int) -> tuple[Ints, Ints]:
    tx = np.stack([walker.batch.cost.tx[walker.layer, phase] for walker in chosen])
    rx = np.stack([walker.batch.cost.rx[walker.layer, phase] for walker in chosen])
    return tx.sum(axis=0), rx.sum(axis=0)


def waits_per_expert(service: Ints) -> Ints:
    """Return ``(B, S, G)``: what is served on the GPU before each slot's own job."""
    flat = service.reshape(-1, service.shape[-1])
    return (flat.cumsum(axis=0) - flat).reshape(service.shape)


def waits_grouped(service: Ints) -> Ints:
    """Return ``(B, S, G)``: what is served before each micro-batch's grouped kernel."""
    total = service.sum(axis=1, keepdims=True)
    return np.broadcast_to(total.cumsum(axis=0) - total, service.shape)


WAITS = {"per_expert": waits_per_expert, "grouped": waits_grouped}
