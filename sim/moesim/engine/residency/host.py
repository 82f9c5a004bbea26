"""A node's host: experts in its memory, drives behind it, and a processor.

Everything is on the drives. What is in host memory does not go by what GPUs hold: it
starts with the first experts of each layer, and what a GPU loads comes through it and
stays until others displace it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from simpy import Event

from moesim.engine.clock import Clock
from moesim.engine.event.server import Job, Server
from moesim.engine.residency.port import Load, Port, Verdict
from moesim.measure.residency import ResidencyLog
from moesim.policy.cache import RankedCache, make_cache
from moesim.spec.placement import Placement

Expert = tuple[int, int]
"""Layer and logical expert."""


class Memory:
    """The host's memory, when it holds every expert."""

    def fetch(self, load: Load, port: Port) -> None:
        """Queue a load at a port."""
        port.submit(load)

    def promote(self, load: Load, port: Port, batch: int) -> None:
        """Let a load that has not begun be one that this pass waits for."""
        port.promote(load, batch)

    def cancel(self, load: Load, port: Port) -> None:
        """Let a load go that has not begun."""
        port.remove(load)

    def let_go(self, load: Load) -> None:
        """Nothing leaves this memory."""

    def delay(self, key: tuple[int, int], gpu: int) -> int:
        """Return 0: every expert is there."""
        return 0


class Tier:
    """The host's memory, when drives hold what it does not: the least recently used
    expert leaves.

    Parameters
    ----------
    clock, log : Clock, ResidencyLog
        The time, and where reads are written down.
    node : int
        Its number.
    cache : RankedCache
        The experts in memory.
    placement : Placement
        Which expert each slot holds.
    """

    def __init__(
        self,
        clock: Clock,
        log: ResidencyLog,
        node: int,
        cache: RankedCache,
        placement: Placement,
    ) -> None:
        self.log = log
        self.node = node
        self.cache = cache
        self.placement = placement
        self.port = Port(clock, 0, self._take, self._came)
        self.size = 0.0
        self.reads: dict[Expert, Load] = {}
        self.locks: dict[Expert, int] = {}
        self.refused: Callable[[Load], None] = _nothing

    def fetch(self, load: Load, port: Port) -> None:
        """Queue a load at a port, once its expert has been read if it must be."""
        expert = self._expert(load.place[:2], load.place[2])
        self._lock(expert)
        there = self.cache.use(expert)
        read = self.reads.get(expert)
        if there and read is None:
            port.submit(load)
            return
        if read is None:
            place = (*expert, self.node)
            read = self.reads[expert] = Load(place, load.batch, urgent=load.urgent)
            self.port.submit(read)
        elif load.urgent and not read.urgent and not read.begun:
            self.port.promote(read, load.batch)
        read.waiting.append((load, port))

    def promote(self, load: Load, port: Port, batch: int) -> None:
        """Let a load that has not begun be one that this pass waits for."""
        read = self._read_for(load)
        if read is None:
            port.promote(load, batch)
            return
        load.urgent, load.batch = True, batch
        if not read.urgent and not read.begun:
            self.port.promote(read, batch)

    def cancel(self, load: Load, port: Port) -> None:
        """Let a load go that has not begun, and its read with the last that wants it."""
        read = self._read_for(load)
        if read is None:
            port.remove(load)
        else:
            read.waiting = [item for item in read.waiting if item[0] is not load]
            if not read.waiting and not read.begun:
                self.port.remove(read)
                del self.reads[read.place[:2]]
        self.let_go(load)

    def let_go(self, load: Load) -> None:
        """Note that a load needs the host's copy no longer."""
        expert = self._expert(load.place[:2], load.place[2])
        left = self.locks[expert] - 1
        if left:
            self.locks[expert] = left
        else:
            del self.locks[expert]
            self.port.wake()

    def delay(self, key: tuple[int, int], gpu: int) -> int:
        """Return the picoseconds before an expert is in memory, as far as is known."""
        expert = self._expert(key, gpu)
        if expert in self.cache and expert not in self.reads:
            return 0
        return self.port.backlog + self.port.service

    def _expert(self, key: tuple[int, int], gpu: int) -> Expert:
        layer, slot = key
        column = gpu * self.placement.slots_per_gpu + slot
        return layer, int(self.placement.phy2log[layer, column])

    def _read_for(self, load: Load) -> Load | None:
        read = self.reads.get(self._expert(load.place[:2], load.place[2]))
        waits = read is not None and any(item[0] is load for item in read.waiting)
        return read if waits else None

    def _lock(self, expert: Expert) -> None:
        self.locks[expert] = self.locks.get(expert, 0) + 1

    def _take(self, read: Load) -> Verdict:
        """Give a read its place; locks keep what is being loaded from leaving.

        A guess that finds none is dropped, with the loads that wait for it.
        """
        if not self.cache.free:
            victim = self.cache.victim(self.locks)
            if victim is None and read.urgent:
                return Verdict.WAIT
            if victim is None:
                self._refuse(read)
                return Verdict.DROP
            self.cache.evict(victim)
        self.cache.admit(read.place[:2])
        return Verdict.TAKE

    def _refuse(self, read: Load) -> None:
        del self.reads[read.place[:2]]
        for load, _ in read.waiting:
            self.let_go(load)
            self.refused(load)

    def _came(self, read: Load) -> None:
        del self.reads[read.place[:2]]
        self.log.read_bytes[self.node] += self.size
        self.log.reading[self.node] += self.port.service
        for load, port in read.waiting:
            port.submit(load)


def tier_cache(capacity: int, experts: Iterable[Expert]) -> RankedCache:
    """Return a host's memory, which starts full: with the first experts of each layer."""
    cache = make_cache("lru", capacity)
    order = sorted(experts, key=lambda expert: (expert[1], expert[0]))
    for expert in reversed(order[:capacity]):
        cache.touch(expert)
    return cache


class Processor:
    """A node's processor: one server for all its GPUs, first come, first served."""

    def __init__(self, clock: Clock, log: ResidencyLog, node: int) -> None:
        self.clock = clock
        self.log = log
        self.node = node
        self.server = Server(clock, floor=0.0)
        self.coming = 0

    @property
    def backlog(self) -> int:
        """Picoseconds of what is being computed, waits, or whose rows are coming."""
        return self.server.backlog + self.coming

    def compute(
        self, times: tuple[int, int], batch: int, place: int, done: Callable[[], None]
    ) -> None:
        """Compute an expert: its rows come over, wait, are computed, and go back.

        Parameters
        ----------
        times : tuple of int
            Picoseconds of the arithmetic, and of moving the rows one way.
        batch, place : int
            The pass, and its expert's place among all: the tie rule.
        done : callable
            Called when the rows are back.
        """
        service, rows = times
        job = Job(service, batch, place, None)

        def served(_: Job) -> None:
            self.log.computing[self.node] += service
            self.clock.after(rows, lambda _: done())

        def arrived(_: Event) -> None:
            self.coming -= service
            self.server.submit(job)

        job.done = served
        self.coming += service
        self.clock.after(rows, arrived)


def _nothing(_: Any) -> None:
    """Tell nobody."""
