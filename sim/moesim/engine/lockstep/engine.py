"""Lockstep coupling: all ranks run one joint stage after another, as SPMD engines do.

A stage runs the attention of the micro-batches that stand before a new layer, then
dispatch, experts and combine of those the policy selects among the ready ones, each at
its own layer. Nothing else runs meanwhile, so a stage has a closed form.

Axes: ``B`` micro-batches of a stage, ``S`` slots of a GPU, ``G`` GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from simpy import Event

from moesim.engine.batch.waiting import checked_rows
from moesim.engine.clock import PICK, PS_PER_S, Clock
from moesim.engine.event.server import NO_BUDGET
from moesim.engine.lockstep.stage import Stage, Walker, last_layer, timetable
from moesim.engine.microbatch import MicroBatch, budget_ticks, checked_key, pass_record
from moesim.errors import InputError
from moesim.measure.columns import PARTS, Recorder
from moesim.policy.bundle import Policy
from moesim.policy.view import View
from moesim.spec.system import System
from moesim.types import Ints


class LockstepEngine:
    """One stage after another; micro-batches join at barriers."""

    def __init__(
        self, clock: Clock, system: System, policy: Policy, recorder: Recorder
    ) -> None:
        self.clock = clock
        self.system = system
        self.policy = policy
        self.recorder = recorder
        self.residents = None
        self.budget = budget_ticks(policy.wait_budget_s)
        self.walkers: list[Walker] = []
        self.running = False
        self.cohort = 0

    def admit(self, batch: MicroBatch, on_done: Callable[[MicroBatch], None]) -> None:
        """Let a micro-batch join at the next barrier, or now if nothing runs."""
        gpus = self.system.topology.gpus
        parts = np.zeros((len(PARTS), gpus), np.int64)
        self.walkers.append(Walker(batch, on_done, parts, self.clock.now))
        tokens = sum(not walker.batch.weights for walker in self.walkers)
        self.cohort = max(self.cohort, tokens)
        if not self.running:
            self.running = True
            self.clock.settle(PICK, self._stage)

    def _stage(self, _: Event) -> None:
        entering = [walker for walker in self.walkers if not walker.gated]
        for walker in entering:
            walker.gated = True
            walker.ready = self.clock.now
        chosen = self._chosen()
        stage = timetable(self.clock.now, entering, chosen, self.system)
        self._account(stage, chosen)
        self._weigh(chosen)
        self._record_waits(stage, chosen)
        self.clock.after(stage.end - self.clock.now, self._barrier, chosen)

    def _chosen(self) -> list[Walker]:
        """Return who runs: some of those with tokens, and weights on the move."""
        moving = [walker for walker in self.walkers if walker.batch.weights]
        tokens = [walker for walker in self.walkers if not walker.batch.weights]
        return [*(self._select(tokens) if tokens else []), *moving]

    def _select(self, walkers: Sequence[Walker]) -> list[Walker]:
        """Return who runs; who has waited out the budget goes before all others."""
        views = [
            replace(
                walker.batch.view(walker.layer, "experts"),
                ready_s=walker.ready / PS_PER_S,
                loads=walker.batch.load.slots[walker.layer].sum(axis=0),
                deferred=walker.deferred,
                cohort=self.cohort,
            )
            for walker in walkers
        ]
        backlog = np.zeros(self.system.topology.gpus)
        view = View(self.clock.now / PS_PER_S, backlog)
        keys = np.array([checked_key(self.policy, batch, view) for batch in views])
        waited = self.clock.now - np.array([walker.ready for walker in walkers])
        if self.budget != NO_BUDGET:
            keys = np.where(waited >= self.budget, -np.inf, keys)
        given = self.policy.select.stage(views, keys)
        rows = checked_rows(given, len(views))
        if not rows:
            raise InputError(f"policy {self.policy.name!r} selected nobody")
        return [walkers[row] for row in rows]

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
        for walker, exposed in zip(chosen, stage.exposed(chosen), strict=True):
            walker.parts[queue] -= exposed
            walker.parts[PARTS.index("attention")] += exposed

    def _weigh(self, chosen: Sequence[Walker]) -> None:
        """Write down how evenly the stage's tokens lie on the GPUs."""
        loads = [w.batch.load.slots[w.layer] for w in chosen if not w.batch.weights]
        if loads:
            self.recorder.stages.add(np.sum(loads, axis=(0, 1))[None])

    def _record_waits(self, stage: Stage, chosen: Sequence[Walker]) -> None:
        """Note how long each expert's job waited, to be told when its pass ends.

        That is while its micro-batch was ready but not selected, and then for the jobs
        served before it on its GPU.
        """
        service = np.stack([w.batch.cost.experts[w.layer] for w in chosen])
        wait = WAITS[self.system.experts](service) + stage.delay
        passed_over = np.array([stage.start - walker.ready for walker in chosen])
        wait = wait + passed_over[:, None, None]
        row, slot, gpu = np.nonzero(service)
        _, slots, gpus = service.shape
        layer = np.array([walker.layer for walker in chosen])[row]
        cells = (layer * gpus + gpu) * slots + slot
        waited = wait[row, slot, gpu]
        for number, walker in enumerate(chosen):
            mine = row == number
            walker.waits.append((cells[mine], waited[mine]))

    def _barrier(self, event: Event) -> None:
        chosen: list[Walker] = event._value
        for walker in chosen:
            walker.layer += 1
            walker.gated = False
        ended = [walker for walker in chosen if walker.layer == last_layer(walker)]
        self._line_up(chosen)
        self.walkers = [walker for walker in self.walkers if walker not in ended]
        for walker in ended:
            record = pass_record(walker.batch, self.clock.now, walker.parts)
            self.recorder.end_pass(record)
            cells, waits = map(np.concatenate, zip(*walker.waits, strict=True))
            self.recorder.waits_of(walker.batch.number).extend(cells, waits)
            walker.on_done(walker.batch)
        self.running = True
        self.clock.settle(PICK, self._continue)

    def _line_up(self, chosen: Sequence[Walker]) -> None:
        """Put who was passed over first, then who ran, then who came meanwhile."""
        passed = [walker for walker in self.walkers if walker.gated]
        came = [w for w in self.walkers if not w.gated and w not in chosen]
        for walker in passed:
            walker.deferred += 1
        for walker in chosen:
            walker.deferred = 0
        self.walkers = [*passed, *chosen, *came]

    def _continue(self, event: Event) -> None:
        self.running = bool(self.walkers)
        if not self.running:
            self.cohort = 0
        if self.running:
            self._stage(event)


def waits_per_expert(service: Ints) -> Ints:
    """Return ``(B, S, G)``: what is served on the GPU before each slot's own job."""
    flat = service.reshape(-1, service.shape[-1])
    return (flat.cumsum(axis=0) - flat).reshape(service.shape)


def waits_grouped(service: Ints) -> Ints:
    """Return ``(B, S, G)``: what is served before each micro-batch's grouped kernel."""
    total = service.sum(axis=1, keepdims=True)
    return np.broadcast_to(total.cumsum(axis=0) - total, service.shape)


WAITS = {"per_expert": waits_per_expert, "grouped": waits_grouped}
