"""One micro-batch on its way through the layers.

Its way is a chain of segments: segment ``2 l`` is attention and dispatch of layer
``l``, segment ``2 l + 1`` its experts and combine, and the last one, after all layers,
the LM head. A GPU *enters* a segment, computes, *posts* what it sends, and has
*received* when its own bytes are in and the last sender anywhere is done: the
all-to-all is a collective.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from simpy import Event

from moesim.engine.microbatch import MicroBatch, pass_record
from moesim.engine.server import Job
from moesim.measure.columns import PARTS
from moesim.policy.view import Stage
from moesim.spec.system import ExpertKernel

if TYPE_CHECKING:
    from moesim.engine.event import EventEngine

ATTENTION_SLOT, TAIL_SLOT = -1, -2
"""Places of jobs that are no expert's, in the tie rule."""
Work = tuple[int, int, tuple[int, ...]]
"""A job to be: its place, its picoseconds, and the expert slots it serves."""


class Exchange:
    """One all-to-all of one micro-batch: who has posted, sent and received."""

    __slots__ = ("active", "index", "last_post", "need", "posts", "sending", "started")

    def __init__(self, index: int, tx: list[list[int]], rx: list[list[int]]) -> None:
        gpus = len(tx[0])
        self.index = index
        self.active = [c for c, port in enumerate(tx) if any(port)]
        self.started = [False] * len(tx)
        self.posts = gpus
        self.sending = [gpus] * len(tx)
        self.last_post = 0
        parts = len(self.active)
        self.need = [
            parts + sum(rx[c][g] > 0 for c in self.active) for g in range(gpus)
        ]


class Flow:
    """The state of one micro-batch: where each GPU is, and what it waits for."""

    def __init__(
        self,
        engine: "EventEngine",
        batch: MicroBatch,
        on_done: Callable[[MicroBatch], None],
    ) -> None:
        cost = batch.cost
        self.layers, self.gpus = cost.attention.shape
        self.slots = cost.experts.shape[1]
        self.engine = engine
        self.clock = engine.clock
        self.batch = batch
        self.on_done = on_done
        self.attention = cost.attention.tolist()
        self.experts = cost.experts.transpose(0, 2, 1).tolist()
        self.tx = cost.tx.tolist()
        self.rx = cost.rx.tolist()
        self.tail = cost.tail.tolist()
        self.latency = cost.latency.tolist()
        self.split = SPLITS[engine.system.experts]
        self.at = [0] * self.gpus
        self.entered = [0] * self.gpus
        self.posted = [0] * self.gpus
        self.jobs_left = [0] * self.gpus
        self.unfinished = self.gpus
        self.exchanges: dict[int, Exchange] = {}
        self.keys: dict[int, float] = {}
        self.parts = np.zeros((len(PARTS), self.gpus), np.int64).tolist()
        self.straggler = self.parts[PARTS.index("straggler")]
        self.moving = [self.parts[PARTS.index(p)] for p in ("dispatch", "combine")]
        self.computing = self.parts[PARTS.index("queue")]

    def start(self) -> None:
        """Let every GPU enter the first segment now."""
        for gpu in range(self.gpus):
            self._enter(gpu)

    def _enter(self, gpu: int) -> None:
        segment = self.at[gpu]
        self.entered[gpu] = self.clock.now
        work = self._work(segment, gpu)
        self.jobs_left[gpu] = len(work)
        if not work:
            self._post(gpu)
            return
        key = self._key(segment)
        server = self.engine.gpu[gpu]
        for place, service, slots in work:
            job = Job(service, self.batch.number, place, (gpu, segment >> 1, slots))
            job.key = key
            job.done = self._served
            server.submit(job)

    def _work(self, segment: int, gpu: int) -> list[Work]:
        layer = segment >> 1
        if layer == self.layers:
            service = self.tail[gpu]
            return [(TAIL_SLOT, service, ())] if service else []
        if segment & 1:
            return self.split(self.experts[layer][gpu])
        service = self.attention[layer][gpu]
        return [(ATTENTION_SLOT, service, ())] if service else []

    def _key(self, segment: int) -> float:
        """Return the segment's key, decided when its first GPU enters it."""
        key = self.keys.get(segment)
        if key is None:
            layer = segment >> 1
            if layer == self.layers:
                key = self.engine.key(self.batch, layer - 1, "lm_head")
            else:
                stage: Stage = "experts" if segment & 1 else "attention"
                key = self.engine.key(self.batch, layer, stage)
            self.keys[segment] = key
        return key

    def _served(self, job: Job) -> None:
        gpu, layer, slots = job.owner
        if slots:
            wait = job.start - job.arrival
            cell = (layer * self.gpus + gpu) * self.slots
            for slot in slots:
                self.engine.recorder.waits.add(cell + slot, wait)
        self.jobs_left[gpu] -= 1
        if not self.jobs_left[gpu]:
            self._post(gpu)

    def _post(self, gpu: int) -> None:
        """End the computing of a segment on one GPU: hand its bytes to the ports."""
        now = self.clock.now
        self.posted[gpu] = now
        self.computing[gpu] += now - self.entered[gpu]
        segment = self.at[gpu]
        if segment == 2 * self.layers:
            self.unfinished -= 1
            if not self.unfinished:
                self.engine.end(self)
            return
        tx, rx = (side[segment >> 1][segment & 1] for side in (self.tx, self.rx))
        exchange = self.exchanges.get(segment)
        if exchange is None:
            exchange = self.exchanges[segment] = Exchange(segment, tx, rx)
        exchange.posts -= 1
        if not exchange.posts:
            exchange.last_post = now
        for port in exchange.active:
            self._send(exchange, port, gpu, tx[port][gpu])
        if not exchange.active and not exchange.posts:
            self._all_received(exchange)

    def _send(self, exchange: Exchange, port: int, gpu: int, service: int) -> None:
        if not service:
            self._sent(exchange, port)
            return
        phase = exchange.index & 1
        job = Job(service, self.batch.number, phase, (exchange, port))
        job.done = self._sent_job
        if not exchange.started[port]:
            job.started = self._first_byte
        self.engine.tx[port][gpu].submit(job)

    def _first_byte(self, job: Job) -> None:
        exchange, port = job.owner
        if not exchange.started[port]:
            exchange.started[port] = True
            self.clock.after(self.latency[port], self._arrive, job.owner)

    def _arrive(self, event: Event) -> None:
        """Queue the receiving jobs: bytes cut through, so they overlap the sending."""
        exchange, port = event._value
        segment = exchange.index
        services = self.rx[segment >> 1][segment & 1][port]
        for gpu, service in enumerate(services):
            if service:
                job = Job(service, self.batch.number, segment & 1, (exchange, gpu))
                job.done = self._received_job
                self.engine.rx[port][gpu].submit(job)

    def _sent_job(self, job: Job) -> None:
        self._sent(*job.owner)

    def _sent(self, exchange: Exchange, port: int) -> None:
        exchange.sending[port] -= 1
        if not exchange.sending[port]:
            self.clock.after(self.latency[port], self._last_byte, exchange)

    def _last_byte(self, event: Event) -> None:
        self._all_received(event._value)

    def _received_job(self, job: Job) -> None:
        self._received(*job.owner)

    def _all_received(self, exchange: Exchange) -> None:
        for gpu in range(self.gpus):
            self._received(exchange, gpu)

    def _received(self, exchange: Exchange, gpu: int) -> None:
        exchange.need[gpu] -= 1
        if exchange.need[gpu] > 0:
            return
        last_post = exchange.last_post
        self.straggler[gpu] += last_post - self.posted[gpu]
        self.moving[exchange.index & 1][gpu] += self.clock.now - last_post
        self.at[gpu] += 1
        self._enter(gpu)

    def tell(self) -> None:
        """Write the pass down, now that it has ended, and tell who waits for it."""
        now = self.clock.now
        for gpu in range(self.gpus):
            self.straggler[gpu] += now - self.posted[gpu]
        record = pass_record(self.batch, now, np.array(self.parts))
        self.engine.recorder.end_pass(record)
        self.on_done(self.batch)


def per_expert(services: list[int]) -> list[Work]:
    """Return one job for each expert with tokens."""
    return [(s, service, (s,)) for s, service in enumerate(services) if service]


def grouped(services: list[int]) -> list[Work]:
    """Return one job for all experts with tokens: a grouped kernel."""
    slots = tuple(s for s, service in enumerate(services) if service)
    return [(slots[0], sum(services), slots)] if slots else []


SPLITS: dict[ExpertKernel, Callable[[list[int]], list[Work]]] = {
    "per_expert": per_expert,
    "grouped": grouped,
}
