"""One micro-batch on its way through the layers.

Its way is a chain of segments: segment ``2 l`` is attention and dispatch of layer
``l``, segment ``2 l + 1`` its experts and combine, and the last one, after all layers,
the LM head. A GPU *enters* a segment, computes, *posts* what it sends, and has
*received* when its own bytes are in and the last sender anywhere is done: the
all-to-all is a collective.

Shared experts that overlap dispatch are a job *behind* the segment of attention: a GPU
queues it as it posts, with the key of that segment, and enters the next layer when it
is done.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from simpy import Event

from moesim.engine.event.exchange import Exchange
from moesim.engine.event.jobs import SPLITS, Work
from moesim.engine.event.server import Job
from moesim.engine.microbatch import (
    MicroBatch,
    TickCost,
    computed_elsewhere,
    pass_record,
)
from moesim.measure.columns import NEVER, PARTS
from moesim.policy.view import Stage

if TYPE_CHECKING:
    from moesim.engine.event.engine import EventEngine

ATTENTION_SLOT, TAIL_SLOT, FIRST_SLOT, SHARED_SLOT = -1, -2, -3, -4
"""Places of jobs that are no expert's, in the tie rule."""


class Flow:
    """The state of one micro-batch: where each GPU is, and what it waits for."""

    def __init__(
        self,
        engine: "EventEngine",
        batch: MicroBatch,
        on_done: Callable[[MicroBatch], None],
    ) -> None:
        self.layers, self.gpus = batch.cost.attention.shape
        self.slots = batch.cost.experts.shape[1]
        self.engine = engine
        self.clock = engine.clock
        self.batch = batch
        self.on_done = on_done
        self._spread(batch.cost)
        self.sharing = [False] * self.gpus
        self.awaited = [NEVER] * self.gpus
        self.split = SPLITS[engine.system.experts]
        self.residents = None if batch.weights else engine.residents
        self.elsewhere: list[tuple[int, int, int]] = []
        self.waits: list[tuple[int, int]] = []
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
        self.exposed = self.parts[PARTS.index("attention")]

    def _spread(self, cost: TickCost) -> None:
        """Lay the cost out as lists, which are faster to look into."""
        self.attention = cost.ahead.tolist()
        self.core = cost.core.tolist()
        self.shared = cost.shared.tolist()
        self.experts = cost.experts.transpose(0, 2, 1).tolist()
        self.tx = cost.tx.tolist()
        self.rx = cost.rx.tolist()
        self.tail = cost.tail.tolist()
        self.latency = cost.latency.tolist()

    def start(self) -> None:
        """Let every GPU enter the first segment now."""
        for gpu in range(self.gpus):
            self._enter(gpu)

    def _enter(self, gpu: int) -> None:
        segment = self.at[gpu]
        self.entered[gpu] = self.clock.now
        if self.residents is not None and segment < 2 * self.layers:
            self.residents.enter(self, segment, gpu)
            if segment & 1:
                if any(self.experts[segment >> 1][gpu]):
                    self._key(segment)
                return
        self.begin(segment, gpu, self._work(segment, gpu), 0)

    def begin(self, segment: int, gpu: int, work: list[Work], later: int) -> None:
        """Queue what a GPU has to do in a segment; so many jobs more come `later`."""
        self.jobs_left[gpu] = len(work) + later
        if not self.jobs_left[gpu]:
            self._post(gpu)
        for one in work:
            done = self._projected if one[0] == FIRST_SLOT else self._served
            self._submit(segment, gpu, one, done)

    def queue(self, segment: int, gpu: int, work: Work) -> None:
        """Queue a job that was to come later."""
        self._submit(segment, gpu, work, self._served)

    def _submit(
        self, segment: int, gpu: int, work: Work, done: Callable[[Job], None]
    ) -> None:
        place, service, slots = work
        job = Job(service, self.batch.number, place, (gpu, segment >> 1, slots))
        job.key = self._key(segment)
        job.done = done
        self.engine.gpu[gpu].submit(job)

    def _work(self, segment: int, gpu: int) -> list[Work]:
        layer = segment >> 1
        if layer == self.layers:
            service = self.tail[gpu]
            return [(TAIL_SLOT, service, ())] if service else []
        if segment & 1:
            return self.split(self.experts[layer][gpu])
        service = self.attention[layer][gpu]
        if self.core and self.core[layer][gpu]:
            return [(FIRST_SLOT, service - self.core[layer][gpu], ())]
        return [(ATTENTION_SLOT, service, ())] if service else []

    def _projected(self, job: Job) -> None:
        """Queue the second job of attention: others may have come before it."""
        gpu, layer, _ = job.owner
        work = ATTENTION_SLOT, self.core[layer][gpu], ()
        self._submit(2 * layer, gpu, work, self._served)

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
            self.waits += [(cell + slot, wait) for slot in slots]
            if self.residents is not None:
                self.residents.served(self.batch.number, gpu, layer, slots)
        self.end_one(gpu)

    def end_one(self, gpu: int) -> None:
        """Note that one job of a GPU's segment is done."""
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
        if self.shared and not segment & 1:
            self._share(segment, gpu)
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
        if self.sharing[gpu] and exchange.index & 1:
            self.awaited[gpu] = self.clock.now
        else:
            self._go_on(gpu)

    def _go_on(self, gpu: int) -> None:
        self.at[gpu] += 1
        self._enter(gpu)

    def _share(self, segment: int, gpu: int) -> None:
        """Queue the shared experts behind the attention that ends now."""
        service = self.shared[segment >> 1][gpu]
        if service:
            self.sharing[gpu] = True
            work = SHARED_SLOT, service, ()
            self._submit(segment, gpu, work, self._shared_served)

    def _shared_served(self, job: Job) -> None:
        """Tell what was exposed: what ran while the pass waited for nothing else."""
        gpu, now = job.owner[0], self.clock.now
        self.sharing[gpu] = False
        since, self.awaited[gpu] = self.awaited[gpu], NEVER
        if since != NEVER:
            self.computing[gpu] += now - since
            self._expose(gpu, now - max(since, job.start))
            self._go_on(gpu)
        elif self.at[gpu] & 1 and self.jobs_left[gpu]:
            self._expose(gpu, now - max(self.entered[gpu], job.start))

    def _expose(self, gpu: int, spent: int) -> None:
        self.exposed[gpu] += spent
        self.computing[gpu] -= spent

    def tell(self) -> None:
        """Write the pass down, now that it has ended, and tell who waits for it."""
        now = self.clock.now
        for gpu in range(self.gpus):
            self.straggler[gpu] += now - self.posted[gpu]
        batch = computed_elsewhere(self.batch, self.elsewhere)
        record = pass_record(batch, now, np.array(self.parts))
        recorder = self.engine.recorder
        recorder.end_pass(record)
        if self.waits:
            recorder.waits_of(batch.number).extend(*np.array(self.waits).T)
        if recorder.residency and self.elsewhere:
            cells = tuple(zip(*self.elsewhere, strict=True))
            recorder.residency.cpu_tokens += int(batch.load.slots[cells].sum())
        self.on_done(self.batch)
