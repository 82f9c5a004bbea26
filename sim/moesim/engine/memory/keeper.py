"""Lets micro-batches begin once there is memory for them, and keeps account of it.

A micro-batch may wait for KV blocks on the move (`Swap`), for its policy, and last for
activations: at most one does, since none is formed while it waits, and those that were
formed before line up behind it.
"""

from collections import deque
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from simpy import Event

from moesim.cost.buffers import exchange_bytes
from moesim.cost.footprint import Footprint, footprint
from moesim.cost.memory import kv_pool_bytes, memory_budget
from moesim.cost.relocation import staging_bytes
from moesim.engine.batch.seats import COMPUTED, FLIGHT, GONE, RANK, Counts
from moesim.engine.clock import FORM
from moesim.engine.memory.ledger import Ledger
from moesim.engine.memory.swap import Swap
from moesim.engine.microbatch import MicroBatch
from moesim.measure.kv_times import KvTimes
from moesim.measure.memory import MemoryLog, Oom, Reserved
from moesim.measure.series import Series
from moesim.policy.bundle import Policy
from moesim.spec.memory import MemorySpec
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.types import Ints

if TYPE_CHECKING:
    from moesim.engine.instance import Instance

UNWATCHED = MemorySpec(over_capacity="ignore")
"""Nothing waits and nothing fails where a scenario has no section ``memory``."""


class Keeper:
    """Memory of one instance."""

    def __init__(self, instance: "Instance", system: System) -> None:
        serving, gpus = instance.serving, system.topology.gpus
        self.instance = instance
        self.system = system
        self.spec = serving.memory or UNWATCHED
        self.log = MemoryLog(reserved(system, serving, instance.policy), gpus)
        instance.recorder.memory = self.log
        self.ledger = Ledger(self.log)
        self.waiting: deque[tuple[MicroBatch, Footprint]] = deque()
        self.watched = serving.memory is not None
        batcher = instance.batcher
        if self.watched:
            self.log.series = Series(gpus)
            tokens = serving.kv_blocks * serving.block_size
            self.log.kv = KvTimes(system.ranks, tokens)
        if self.spec.swaps:
            batcher.places.swap = Swap(system, self.spec, serving.block_size)

    @property
    def holds(self) -> bool:
        """Whether a micro-batch waits for memory, so that none should be formed."""
        return bool(self.waiting)

    def start(self, batch: MicroBatch) -> None:
        """Let a micro-batch begin now, or as soon as there is memory for it."""
        need = footprint(batch.load, self.system)
        if self.spec.over_capacity == "ignore":
            self._begin(batch, need)
        elif self.spec.over_capacity == "fail" and self._over(need):
            self._fail(batch, need)
        else:
            self.waiting.append((batch, need))
            self._next()
            self.log.waits += bool(self.waiting)

    def land(self, number: int) -> None:
        """Take a micro-batch out of memory, and let those begin that wait for it."""
        self.ledger.land(number)
        self.note()
        if self.waiting:
            self.instance.clock.settle(FORM, self._retry)

    def _retry(self, _: Event) -> None:
        self._next()
        if not self.waiting:
            self.instance.form_soon()

    def _next(self) -> None:
        """Let those begin that wait, in turn, as far as there is memory for them."""
        while self.waiting:
            batch, need = self.waiting[0]
            if self._over(need):
                if not self.ledger.held:
                    self._fail(batch, need)
                return
            self.waiting.popleft()
            self._begin(batch, need)

    def _over(self, need: Footprint) -> bool:
        return bool((self.ledger.excess(need) > 0).any())

    def _begin(self, batch: MicroBatch, need: Footprint) -> None:
        now = int(self.instance.clock.now)
        if now > batch.admitted:
            self.log.waited += now - batch.admitted
            batch = replace(batch, admitted=now)
        self.ledger.begin(batch.number, now, need)
        self.note()
        self.instance.admit(batch)

    def _fail(self, batch: MicroBatch, need: Footprint) -> None:
        """Write down which GPU is out of memory, and end the instance."""
        excess = self.ledger.excess(need)
        gpu = int(excess.argmax())
        known = self.log.reserved
        buffers, activations = (self.ledger.level + need.bytes)[:, gpu].tolist()
        sizes = known.weights, known.kv_pool, known.buffers + buffers, activations
        self.log.oom = Oom(
            at=int(self.instance.clock.now),
            gpu=gpu,
            rank=gpu // self.system.tensor_parallel,
            layer=int(need.layer[gpu]),
            batch=batch.number,
            parts=sizes,
            limit=known.limit,
        )
        self.waiting.clear()
        self.instance.die()

    def delay(self, ready: int) -> int:
        """Return for how long a pass waits that may begin at `ready`."""
        wait = max(0, ready - int(self.instance.clock.now))
        self.log.swap_waits += wait > 0
        self.log.swap_waited += wait
        return wait

    def note(self) -> None:
        """Write down what is in memory now, if anybody watches."""
        series, kv = self.log.series, self.log.kv
        if series is None or kv is None:
            return
        now, batcher = int(self.instance.clock.now), self.instance.batcher
        pool, stretches = batcher.pool, batcher.places.stretches
        held = (pool.blocks - pool.free) * pool.block_size
        blocks = pool.used_in(self.instance.serving.block_size)
        width = self.system.tensor_parallel
        used = np.repeat(blocks, width)[None] if width > 1 else blocks[None]
        series.set(now, np.concatenate([used, self.ledger.level]))
        blocked = np.zeros(len(held), bool) if stretches is None else stretches.blocked
        kv.set(now, held, computed(batcher.seats.table, len(held)), blocked)

    def finish(self) -> MemoryLog:
        """Return what was written down."""
        log, now = self.log, int(self.instance.clock.now)
        if log.kv is not None and log.series is not None:
            self.note()
            log.kv.finish(now)
        swap = self.instance.batcher.places.swap
        if swap:
            log.swaps, log.swapped_bytes = swap.count, swap.moved
            log.host_peak = swap.peak
        return log


def computed(table: Counts, ranks: int) -> Ints:
    """Return ``(R,)``: cached tokens of the requests that have seats."""
    alive = table[:, table[FLIGHT] != GONE]
    return np.bincount(alive[RANK], alive[COMPUTED], ranks).astype(np.int64)


def reserved(system: System, serving: ServingSpec, policy: Policy) -> Reserved:
    """Return what is taken on every GPU before anything runs."""
    spec = serving.memory or UNWATCHED
    budget = memory_budget(system, serving)
    staged = policy.rebalance.carriage().staged
    weights = budget.resident_bytes + budget.experts_bytes
    weights += staging_bytes(system) if staged else 0.0
    buffers = 0.0
    if system.dispatch == "low_latency":
        buffers = exchange_bytes(system, serving.max_num_batched_tokens, "balanced")
    return Reserved(
        device=int(budget.hbm_bytes),
        limit=int(budget.hbm_bytes * spec.capacity),
        weights=ceil(weights),
        kv_pool=ceil(kv_pool_bytes(system, serving)),
        buffers=ceil(buffers),
    )
