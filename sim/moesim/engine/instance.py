"""One serving instance: requests enter, are batched, gain tokens and end."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from simpy import Event

from moesim.engine.array import ArrayEngine, refusal
from moesim.engine.assemble import Assembler
from moesim.engine.batching import Batcher, checked_rows
from moesim.engine.clock import FORM, PS_PER_S, Clock, instant
from moesim.engine.event import EventEngine
from moesim.engine.lockstep import LockstepEngine
from moesim.engine.microbatch import MicroBatch
from moesim.errors import InputError, SimulationError
from moesim.measure.columns import FINISHED, NEVER, REJECTED, Recorder
from moesim.policy.bundle import Policy
from moesim.routing.source import RoutingSource
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.workload.requests import Requests


class Engine(Protocol):
    """Walks micro-batches through the layers."""

    def admit(self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]) -> None:
        """Start a micro-batch now; `on_done` is called when its last GPU is done."""
        ...


Maker = Callable[[Clock, System, Policy, Recorder], Engine]
ENGINES: dict[str, Maker] = {
    "event": EventEngine,
    "array": ArrayEngine,
    "lockstep": LockstepEngine,
}


def engine_for(serving: ServingSpec, policy: Policy) -> str:
    """Return the name of the engine that plays this policy under these limits.

    Raises
    ------
    InputError
        The array engine is asked for and would not be exact: why.
    """
    if serving.coupling == "lockstep":
        return "lockstep"
    reason = refusal(policy)
    if serving.engine == "array" and reason:
        raise InputError(f"serving.engine: array would not be exact: {reason}")
    if serving.engine == "auto":
        return "event" if reason else "array"
    return serving.engine


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
        self.recorder.engine = engine_for(serving, policy)
        self.batcher = Batcher(requests, serving, system.ranks)
        self.assembler = Assembler(system, source, policy)
        make = ENGINES[self.recorder.engine]
        self.engine = make(self.clock, system, policy, self.recorder)
        self.arrivals = instant(requests.arrival_s).tolist()
        self.entered = 0
        self.ended = 0
        self.passes = 0
        self.in_flight = 0
        self.forming = False
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
            waiting = sum(map(len, self.batcher.waiting))
            running = sum(map(len, self.batcher.running))
            message = (
                f"t={self.clock.now / PS_PER_S:.6f} s: nothing can happen any more, "
                f"but {left} requests have not ended ({waiting} wait, {running} run, "
                f"{self.in_flight} micro-batches in flight)"
            )
            raise SimulationError(message)
        self.recorder.span = int(self.clock.now)
        self.recorder.kv_peak = self.batcher.pool.peak
        self.recorder.requests.preemptions = self.batcher.preemptions
        return self.recorder

    def _enter_due(self, _: Event | None) -> None:
        """Let in every request that is due, as far as concurrency allows."""
        now = int(self.clock.now)
        while self._may_enter() and self.arrivals[self.entered] <= now:
            self._enter(self.entered, now)
        if self._may_enter() and self.expected != self.entered:
            self.expected = self.entered
            self.clock.after(self.arrivals[self.entered] - now, self._enter_due)

    def _may_enter(self) -> bool:
        limit = self.requests.max_concurrency
        open_ = not limit or self.entered - self.ended < limit
        return open_ and self.entered < len(self.requests)

    def _enter(self, request: int, now: int) -> None:
        rows = self.recorder.requests
        rows.arrival[request] = now
        self.entered += 1
        if self.batcher.refusal(request):
            self._end(request, now, REJECTED)
            return
        chosen = self.policy.assign.rank(request, self.batcher.view())
        (rank,) = checked_rows([chosen], self.batcher.ranks)
        rows.rank[request] = rank
        self.batcher.enqueue(request, rank, now)
        self._form_soon()

    def _form_soon(self) -> None:
        if not self.forming:
            self.forming = True
            self.clock.settle(FORM, self._form)

    def _form(self, _: Event) -> None:
        """Form micro-batches until all slots are taken or nothing can run."""
        self.forming = False
        now = int(self.clock.now)
        while self.in_flight < self.serving.max_in_flight:
            slots = self.serving.max_in_flight - self.in_flight
            draft = self.batcher.draft(self.passes, now, slots, self.policy.compose)
            if draft is None:
                return
            admitted = self.recorder.requests.admitted
            fresh = draft.requests[admitted[draft.requests] == NEVER]
            admitted[fresh] = now
            routed = self.serving.padding == "routed"
            padding = draft.padding if routed else np.zeros_like(draft.padding)
            self.passes += 1
            self.in_flight += 1
            self.engine.admit(self.assembler.assemble(draft, padding), self._land)

    def _land(self, batch: MicroBatch) -> None:
        """Take a finished pass back: tokens gained, requests ended, room for more."""
        now = int(self.clock.now)
        self.in_flight -= 1
        self.assembler.popularity.observe(batch.load.slots)
        gained, ended = self.batcher.land(batch.requests, batch.chunk)
        for request in gained.tolist():
            self.recorder.requests.emit(request, now)
        for request in ended.tolist():
            self._end(request, now, FINISHED)
        self._enter_due(None)
        self._form_soon()

    def _end(self, request: int, now: int, status: int) -> None:
        self.recorder.requests.end(request, now, status)
        self.ended += 1
