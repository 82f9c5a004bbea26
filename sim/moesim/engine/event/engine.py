"""The event engine: every job of every micro-batch as a callback on the SimPy clock.

Right for any policy, and the yardstick for faster engines. Each GPU's compute and each
direction of its two ports is one server shared by all micro-batches in flight.
"""

from collections.abc import Callable
from math import inf

import numpy as np
from simpy import Event

from moesim.engine.clock import PS_PER_S, TELL, Clock
from moesim.engine.event.flow import Flow
from moesim.engine.event.server import Server
from moesim.engine.microbatch import MicroBatch, budget_ticks, checked_key
from moesim.engine.residency.residents import residents_of
from moesim.measure.columns import Recorder
from moesim.policy.bundle import Policy
from moesim.policy.order import Fifo
from moesim.policy.view import Stage, View
from moesim.spec.system import System
from moesim.spec.topology import PORT_CLASSES

OnDone = Callable[[MicroBatch], None]


class EventEngine:
    """Queued coupling: micro-batches in flight meet in the queues of GPUs and ports."""

    def __init__(
        self, clock: Clock, system: System, policy: Policy, recorder: Recorder
    ) -> None:
        gpus = system.topology.gpus
        budget = budget_ticks(policy.wait_budget_s)
        self.clock = clock
        self.system = system
        self.policy = policy
        self.recorder = recorder
        floor = 0.0 if type(policy.order) is Fifo else -inf
        self.unseen = np.full(gpus, np.nan)
        self.residents = residents_of(clock, system, recorder)
        self.ended: list[Flow] = []
        self.gpu = [Server(clock, budget, floor) for _ in range(gpus)]
        self.tx = [
            [Server(clock, floor=0.0) for _ in range(gpus)] for _ in PORT_CLASSES
        ]
        self.rx = [
            [Server(clock, floor=0.0) for _ in range(gpus)] for _ in PORT_CLASSES
        ]

    def admit(self, batch: MicroBatch, on_done: OnDone) -> None:
        """Start a micro-batch now; `on_done` is called when its last GPU is done."""
        Flow(self, batch, on_done).start()

    def key(self, batch: MicroBatch, layer: int, stage: Stage) -> float:
        """Return the policy's key for a micro-batch about to queue for a stage."""
        if type(self.policy.order) is Fifo:
            return 0.0
        backlog = self.unseen
        if self.policy.needs == "global_instant":
            backlog = np.array([server.backlog for server in self.gpu]) / PS_PER_S
        view = View(self.clock.now / PS_PER_S, backlog)
        return checked_key(self.policy, batch.view(layer, stage), view)

    def end(self, flow: Flow) -> None:
        """Take a pass whose last GPU is done now; passes are told by number."""
        if not self.ended:
            self.clock.settle(TELL, self._tell)
        self.ended.append(flow)

    def _tell(self, _: Event) -> None:
        ended, self.ended = sorted(self.ended, key=lambda flow: flow.batch.number), []
        for flow in ended:
            flow.tell()
