"""One serving instance: requests enter, are batched, gain tokens and end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from simpy import Event

from moesim.engine.array.engine import ArrayEngine, has_keys, kernels_refusal, refusal
from moesim.engine.assemble.assembler import Assembler
from moesim.engine.batch.batcher import Batcher
from moesim.engine.batch.sight import Sight
from moesim.engine.batch.waiting import checked_row
from moesim.engine.clock import FORM, PS_PER_S, Clock, instant
from moesim.engine.draft import Draft
from moesim.engine.event.engine import EventEngine
from moesim.engine.lockstep.engine import LockstepEngine
from moesim.engine.memory.keeper import Keeper
from moesim.engine.microbatch import MicroBatch, held_ticks
from moesim.engine.move.mover import mover_of
from moesim.engine.residency.residents import Residents, residency_refusal
from moesim.engine.residency.scout import scout_of
from moesim.errors import InputError, SimulationError
from moesim.measure.columns import (
    FAILED,
    FINISHED,
    NEVER,
    REJECTED,
    UNFINISHED,
    Recorder,
)
from moesim.policy.bundle import Policy
from moesim.policy.outlook import Outlook
from moesim.policy.release import AtOnce
from moesim.policy.steer import steered
from moesim.policy.view import View
from moesim.routing.source import RoutingSource
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.types import Ints
from moesim.workload.requests import Requests


class Engine(Protocol):
    """Walks micro-batches through the layers."""

    @property
    def residents(self) -> Residents | None:
        """Who looks after experts that are not all there; None where all are."""
        ...

    def admit(self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]) -> None:
        """Start a micro-batch now; `on_done` is called when its last GPU is done."""
        ...


Maker = Callable[[Clock, System, Policy, Recorder], Engine]
ENGINES: dict[str, Maker] = {
    "event": EventEngine,
    "array": ArrayEngine,
    "lockstep": LockstepEngine,
}


FEW_GPUS, MANY_IN_FLIGHT = 8, 4


def engine_for(serving: ServingSpec, policy: Policy, system: System) -> str:
    """Return the name of the engine that plays this policy under these limits.

    Raises
    ------
    InputError
        The array engine is asked for and would not be exact: why.
    """
    if "lockstep" in (serving.coupling, policy.coupling):
        if system.residency:
            raise InputError(f"lockstep: {residency_refusal(system)}")
        return "lockstep"
    reason = refusal(policy) or kernels_refusal(system) or residency_refusal(system)
    if serving.engine == "array" and reason:
        raise InputError(f"serving.engine: array would not be exact: {reason}")
    if serving.engine == "auto":
        return "event" if reason or crowded(serving, policy, system) else "array"
    return serving.engine


def crowded(serving: ServingSpec, policy: Policy, system: System) -> bool:
    """Tell whether the event engine is the faster one: few GPUs, many keys in flight.

    With keys the array engine chooses anew among all micro-batches in flight: measured
    at 8 GPUs it takes 0.6 times the event engine's time with 2, 1.1 with 4, 1.4 with 8.
    """
    few = system.topology.gpus <= FEW_GPUS and serving.max_in_flight >= MANY_IN_FLIGHT
    return few and has_keys(policy)


class Instance:
    """A system that serves requests on the SimPy clock.

    Build it, then step the environment until `ended` equals the number of requests.
    """

    def __init__(
        self,
        system: System,
        serving: ServingSpec,
        source: RoutingSource,
        requests: Requests,
        policy: Policy,
    ) -> None:
        self.clock = Clock()
        self.serving = serving
        self.policy = policy
        self.requests = requests
        self.recorder = Recorder(system, requests)
        self.recorder.engine = engine_for(serving, policy, system)
        self.batcher = Batcher(self.recorder.requests, serving, system.ranks)
        source, kinds = steered(source, policy), len(requests.class_names)
        sees, feedback = policy.foresight, policy.feedback
        self.outlook = Outlook(system, source, sees, kinds, feedback)
        if sees.look:
            self.batcher.waiting.sight = Sight(self.outlook, requests)
        make = ENGINES[self.recorder.engine]
        self.engine = make(self.clock, system, policy, self.recorder)
        self.scout = scout_of(self.engine.residents, self.outlook, source, kinds)
        routes = self.scout.source if self.scout else source
        self.assembler = Assembler(system, routes, policy, self.outlook)
        self.begin: Callable[[Draft, Ints], None] = self._begin
        self.mover = mover_of(self, system)
        self.memory = Keeper(self, system)
        instant(requests.arrival_s[-1:])  # refuses what lies beyond the clock
        self.entered = self.ended = self.passes = self.in_flight = 0
        self.forming = self.dead = False
        self.expected = NEVER
        self._enter_due(None)

    def finish(self) -> Recorder:
        """Return what was written down, once every request has ended.

        Raises
        ------
        SimulationError
            Requests are left although nothing can happen any more.
        """
        left = len(self.requests) - self.ended
        if left:
            waiting = len(self.batcher.waiting)
            running = int(self.batcher.running.sum())
            message = (
                f"t={self.clock.now / PS_PER_S:.6f} s: nothing can happen any more, "
                f"but {left} requests have not ended ({waiting} wait, {running} run, "
                f"{self.in_flight} micro-batches in flight)"
            )
            raise SimulationError(message)
        self.recorder.span = int(self.clock.now)
        self.recorder.kv_peak = self.batcher.pool.peak_in(self.serving.block_size)
        self.memory.finish()
        self.recorder.requests.forget_draws()
        return self.recorder

    def _enter_due(self, _: Event | None) -> None:
        """Let in every request that is due, as far as concurrency allows."""
        now = int(self.clock.now)
        while self._may_enter() and self._due(self.entered) <= now:
            self._enter(self.entered, now)
        if self._may_enter() and self.expected != self.entered:
            self.expected = self.entered
            self.clock.after(self._due(self.entered) - now, self._enter_due)

    def _due(self, request: int) -> int:
        """Return the instant at which a request may come: `instant` of one number."""
        return round(float(self.requests.arrival_s[request]) * PS_PER_S)

    def _may_enter(self) -> bool:
        limit = self.requests.max_concurrency
        open_ = not limit or self.entered - self.ended < limit
        return open_ and self.entered < len(self.requests)

    def _enter(self, request: int, now: int) -> None:
        rows = self.recorder.requests
        rows.arrival[request] = now
        self.entered += 1
        if self.dead:
            self._end(np.array([request]), now, FAILED)
            return
        if why := self.batcher.refusal(request):
            self.recorder.refused = self.recorder.refused or f"request {request}: {why}"
            self._end(np.array([request]), now, REJECTED)
            return
        chosen = self.policy.assign.rank(request, self.batcher.view())
        rank = checked_row(chosen, self.batcher.ranks)
        self.batcher.enqueue(request, rank, now)
        self.form_soon()

    def form_soon(self) -> None:
        """Let micro-batches be formed once all that ends now has ended."""
        if not self.forming and self.in_flight < self.serving.max_in_flight:
            self.forming = True
            self.clock.settle(FORM, self._form)

    def _form(self, _: Event) -> None:
        """Form micro-batches until all slots are taken or nothing can run."""
        self.forming = False
        now = int(self.clock.now)
        while self.in_flight < self.serving.max_in_flight and not self._held():
            draft = self.batcher.draft(self.passes, now, self.policy.compose)
            self.memory.note()
            if draft is None:
                return
            self.recorder.requests.admit(draft.requests, now)
            routed = self.serving.padding == "routed"
            padding = draft.padding if routed else np.zeros_like(draft.padding)
            self.passes += 1
            self.in_flight += 1
            if self.mover:
                self.mover.log.form(draft.number)
            self.outlook.queue = len(self.batcher.waiting)
            self.begin(draft, padding)

    def _held(self) -> bool:
        """Return whether experts that move, or memory, keep passes from being formed."""
        moving = self.mover is not None and self.mover.holds
        return moving or self.memory.holds or self.dead

    def _begin(self, draft: Draft, routed_padding: Ints) -> None:
        """Start a micro-batch now; who advances several instances does it instead."""
        batch = self.assembler.assemble(draft, routed_padding)
        if self.scout:
            batch = self.scout.look(batch, draft)
        delay = self.memory.delay(draft.ready)
        if type(self.policy.release) is not AtOnce:
            view = View(self.clock.now / PS_PER_S, np.zeros(0))
            held = held_ticks(self.policy, batch.view(0, "attention"), view)
            delay = max(delay, held)
        if delay:
            self.clock.after(delay, self._release, batch)
        else:
            self.memory.start(batch)

    def _release(self, event: Event) -> None:
        """Let a pass begin that was held back: the time it was held is no part of it."""
        batch = replace(event._value, admitted=int(self.clock.now))
        self.clock.settle(FORM, lambda _: self.memory.start(batch))

    def admit(self, batch: MicroBatch) -> None:
        """Let the engine play a micro-batch from now on."""
        self.engine.admit(batch, self._land)

    def die(self) -> None:
        """Stop serving: what is in flight ends nowhere, and every request fails.

        A collective needs all ranks, so one that is gone takes the others with it.
        Whoever arrives later fails as they arrive.
        """
        now = int(self.clock.now)
        self.dead = True
        self.clock.forget()
        inside = self.recorder.requests.status[: self.entered] == UNFINISHED
        self._end(np.flatnonzero(inside), now, FAILED)
        self.expected = NEVER
        self._enter_due(None)

    def _land(self, batch: MicroBatch) -> None:
        self.land(batch.number)
        if self.mover:
            self.mover.land(batch)

    def land(self, number: int) -> None:
        """Take a finished pass back: tokens gained, requests ended, room for more."""
        now = int(self.clock.now)
        self.in_flight -= 1
        self.outlook.land(number, now / PS_PER_S)
        if self.scout:
            self.scout.land(number)
        gained, ended = self.batcher.land(number)
        self.memory.land(number)
        self.recorder.requests.emit(gained, now)
        self._end(ended, now, FINISHED)
        self._enter_due(None)
        self.form_soon()

    def _end(self, requests: Ints, now: int, status: int) -> None:
        self.recorder.requests.end(requests, now, status)
        self.ended += len(requests)
