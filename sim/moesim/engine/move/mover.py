"""Experts that move while an instance serves: when, and what waits for them.

Weights travel as micro-batches without tokens through the engine that plays the passes:
they queue at ports and GPUs like everything else. A placement holds for micro-batches
that are formed from its commit on; those in flight go on with the one that they were
formed with, so what they need stays there for that long.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from simpy import Event

from moesim.engine.clock import FORM, ticks_of
from moesim.engine.microbatch import MicroBatch
from moesim.engine.move.carry import Chunk, chunks
from moesim.errors import InputError
from moesim.measure.moves import MoveLog, PlanRow
from moesim.policy.rebalance import REBALANCES, Still
from moesim.spec.placement import Placement
from moesim.spec.system import System

if TYPE_CHECKING:
    from moesim.engine.instance import Instance

FIRST_NUMBER = -(1 << 40)
"""Number of the first move; passes count from 0, and moves come before them in ties."""


class Mover:
    """Moves the experts of one instance as its policy's loop says.

    Attributes
    ----------
    holds : bool
        Whether no micro-batch may be formed now.
    """

    def __init__(self, instance: "Instance", system: System) -> None:
        role = instance.policy.rebalance
        self.instance = instance
        self.system = system
        self.carriage = role.carriage()
        self.watch = role.watch(system)
        self.log = MoveLog(system)
        self.row = PlanRow(0)
        self.left: list[Chunk] = []
        self.planning = 0
        self.moving = False
        self.holds = False
        self.since = 0
        self.number = FIRST_NUMBER

    def land(self, batch: MicroBatch) -> None:
        """Take note of a pass that has ended, and go on with what is due."""
        slots = batch.load.slots.swapaxes(1, 2).reshape(len(batch.load.slots), -1)
        self.watch.observe(slots, self.log.of(batch.number))
        self.log.forget(batch.number)
        if self.moving:
            if self.carriage.way == "behind":
                self._hold()
        elif self.left:
            self._next()
        else:
            self._ask()
        if self.holds and self.left and not self.moving and not self.instance.in_flight:
            self._start()

    def _ask(self) -> None:
        """Ask for a plan, and begin with it: chunks between passes come a pass later."""
        found = self.watch.plan(self.log.placement)
        if found is None:
            return
        self._check(found)
        self.row = PlanRow(int(self.instance.clock.now))
        self.log.plans.append(self.row)
        self.left = chunks(self.log.placement, found, self.carriage, self.system)
        self.planning = int(ticks_of(np.array(self.carriage.planning_s)))
        if self.carriage.way != "stop" or len(self.left) == 1:
            self._next()

    def _check(self, found: object) -> None:
        """Raise `InputError` unless a loop's plan has the same slots, and all experts."""
        policy, here = self.instance.policy, self.log.placement
        if type(policy.rebalance) in REBALANCES.values():
            return
        shape = here.phy2log.shape
        alike = isinstance(found, Placement) and found.phy2log.shape == shape
        if not isinstance(found, Placement) or not alike or found.gpus != here.gpus:
            message = f"policy {policy.name!r}: a plan is a placement of the same slots"
            raise InputError(f"{message}, {shape} on {here.gpus} GPUs")
        try:
            found.check(*here.replicas.shape)
        except InputError as error:
            why = error.problems[0].message
            message = f"policy {policy.name!r}: its plan is no placement: {why}"
            raise InputError(message) from None

    def _next(self) -> None:
        """Go on with the next chunk, at once or when nothing is in flight any more."""
        if not self.left:
            return
        if self.carriage.way == "stop":
            self._hold()
        else:
            self._start()

    def _hold(self) -> None:
        if not self.holds:
            self.holds = True
            self.since = self.instance.clock.now

    def _start(self) -> None:
        self.moving = True
        delay, self.planning = self.planning + self.left[0].delay, 0
        if delay:
            self.instance.clock.after(delay, self._come)
        else:
            self._come(None)

    def _come(self, _: Event | None) -> None:
        self.instance.clock.settle(FORM, self._depart)

    def _depart(self, _: Event) -> None:
        now = int(self.instance.clock.now)
        batch = replace(self.left[0].batch, number=self.number, admitted=now)
        self.number += 1
        self.instance.engine.admit(batch, self._arrive)

    def _arrive(self, _: MicroBatch) -> None:
        """Commit the chunk whose weights have all come, and let passes be formed."""
        chunk, now = self.left.pop(0), int(self.instance.clock.now)
        self.moving = False
        self._commit(chunk)
        if not self.left:
            self.row.done = now
        if self.holds:
            self.holds = False
            self.row.held += now - self.since
            if self.carriage.way == "behind":
                self._ask()
            self.instance.form_soon()

    def _commit(self, chunk: Chunk) -> None:
        slots = self.log.placement.phy2log.copy()
        slots[chunk.layers] = chunk.slots
        placement = Placement(slots, self.log.placement.gpus)
        self.instance.assembler.place(placement)
        self.instance.recorder.relocate(placement)
        self.row.slots += chunk.changed
        self.row.experts += chunk.experts
        self.row.bytes += chunk.bytes


def mover_of(instance: "Instance", system: System) -> Mover | None:
    """Return what moves an instance's experts and is recorded, if anything moves them."""
    if type(instance.policy.rebalance) is Still:
        return None
    if system.fuses:
        message = f"kernels.shared_experts: {system.shared_experts} is not simulated "
        raise InputError(message + "where experts move while serving")
    if system.residency is not None:
        raise InputError("residency is not simulated where experts move while serving")
    mover = Mover(instance, system)
    instance.recorder.moves = mover.log
    return mover
