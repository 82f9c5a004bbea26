"""The experts in one GPU's device memory: who is there, in use, or on the way.

A slot that a job uses, or that is being filled, is locked: it does not leave. A job
never waits for a lock while it holds one, so every lock is let go in the end, and with
one place that is not pinned every load finds one.
"""

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moesim.engine.clock import Clock
from moesim.engine.residency.port import Load, Port, Verdict
from moesim.measure.residency import ResidencyLog
from moesim.policy.cache import RankedCache
from moesim.types import Bools

Key = tuple[int, int]
"""Layer and slot."""


class Supply(Protocol):
    """Where experts come from: the host's memory, or what lies behind it."""

    def fetch(self, load: Load, port: Port) -> None:
        """Queue a load at a port, once the host has the expert."""
        ...

    def promote(self, load: Load, port: Port, batch: int) -> None:
        """Let a load that has not begun be one that this pass waits for."""
        ...

    def cancel(self, load: Load, port: Port) -> None:
        """Let a load go that has not begun."""
        ...

    def let_go(self, load: Load) -> None:
        """Note that a load needs the host's copy no longer."""
        ...

    def delay(self, key: Key, gpu: int) -> int:
        """Return the picoseconds before an expert is in the host's memory."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """What the GPUs of one node have in common.

    Parameters
    ----------
    clock, log : Clock, ResidencyLog
        The time, and where everything is written down.
    supply : Supply
        The host.
    service, size : int, float
        Picoseconds of one expert on a port, and its bytes.
    arrived : callable
        Called with a load that has come.
    """

    clock: Clock
    log: ResidencyLog
    supply: Supply
    service: int
    size: float
    arrived: Callable[[Load], None]


class GpuExperts:
    """The experts of one GPU.

    Parameters
    ----------
    site : Site
        Where it stands.
    gpu : int
        Its number.
    caches : list of RankedCache
        By layer; with one cache for all, the same object.
    there : (L, S) array of bool
        Which slots are in device memory; kept up to date.

    Attributes
    ----------
    locks : dict of key to int
        How many jobs and loads keep a slot from leaving.
    awaited : dict of key to passes
        Who is believed to need a slot soon.
    """

    def __init__(
        self, site: Site, gpu: int, caches: list[RankedCache], there: Bools
    ) -> None:
        self.site = site
        self.log = site.log
        self.gpu = gpu
        self.caches = caches
        self.supply = site.supply
        self.there = there
        self.port = Port(site.clock, site.service, self._take, self._came)
        self.loads: dict[Key, Load] = {}
        self.locks: dict[Key, int] = {}
        self.awaited: dict[Key, set[int]] = {}
        self.asked: dict[Key, list[Key]] = {}
        self.unused: set[Key] = set()
        self.kept = ChainMap[Key, Any](self.locks, self.awaited)
        for layer, cache in enumerate(caches):
            for key in cache.resident:
                there[key] |= key[0] == layer

    def has(self, key: Key) -> bool:
        """Return whether a slot is in device memory, whole."""
        load = self.loads.get(key)
        return key in self.caches[key[0]] and not (load and load.begun)

    def use(self, key: Key) -> None:
        """Note that a pass needs a slot that is there, and lock it."""
        self.caches[key[0]].use(key)
        if key in self.unused:
            self.unused.remove(key)
            self.log.useful[self.gpu] += 1
        self.lock(key)

    def miss(self, key: Key) -> None:
        """Note that a pass needs a slot that is not there, or not yet."""
        self.caches[key[0]].use(key)
        self.overtake(key)

    def overtake(self, key: Key) -> None:
        """Note that a pass waits for a slot: if a guess brings it, that one is late."""
        if key in self.unused:
            self.unused.remove(key)
            self.log.late[self.gpu] += 1

    def lock(self, key: Key) -> None:
        """Keep a slot from leaving."""
        self.locks[key] = self.locks.get(key, 0) + 1

    def unlock(self, key: Key) -> None:
        """Let go of a slot, for which a load may have waited."""
        left = self.locks[key] - 1
        if left:
            self.locks[key] = left
            return
        del self.locks[key]
        self.port.wake()

    def demand(self, key: Key, batch: int, who: Any) -> None:
        """Let `who` wait for a slot that is not there."""
        load = self.loads.get(key)
        if load is None:
            load = self._ask(key, batch, urgent=True)
        elif not load.urgent and not load.begun:
            self.supply.promote(load, self.port, batch)
        load.waiting.append(who)

    def expect(self, layer: int, slots: Sequence[int], batch: int) -> None:
        """Ask for slots of a layer that a pass is believed to need."""
        keys = [(layer, slot) for slot in slots]
        self.asked[layer, batch] = keys
        for key in keys:
            self.awaited.setdefault(key, set()).add(batch)
        for key in keys:
            if key not in self.caches[layer] and key not in self.loads:
                self._ask(key, batch, urgent=False)

    def reach(self, layer: int, batch: int, needed: Sequence[int]) -> None:
        """Let go of what a pass was believed to need, now that the truth is known."""
        for key in self.asked.pop((layer, batch), ()):
            others = self.awaited[key]
            others.discard(batch)
            if others:
                continue
            del self.awaited[key]
            load = self.loads.get(key)
            if load and not load.urgent and not load.begun and key[1] not in needed:
                self.drop(load)

    def spare(self, key: Key) -> None:
        """Note that a pass does without a slot that it needs."""
        self.caches[key[0]].forget(key)
        load = self.loads.get(key)
        if load and key not in self.awaited:
            self.drop(load)

    def drop(self, load: Load) -> None:
        """Let a guess go that has not begun."""
        self.supply.cancel(load, self.port)
        self.forgotten(load)

    def forgotten(self, load: Load) -> None:
        """Note that a guess will not come."""
        del self.loads[load.place[:2]]

    def _ask(self, key: Key, batch: int, *, urgent: bool) -> Load:
        load = Load((*key, self.gpu), batch, urgent=urgent)
        self.loads[key] = load
        self.supply.fetch(load, self.port)
        return load

    def _take(self, load: Load) -> Verdict:
        """Give a load its place, if there is one for it.

        A guess takes a free place, or that of a slot that would leave before it does
        and that nobody is believed to need soon.
        """
        key: Key = load.place[:2]
        cache = self.caches[key[0]]
        if not cache.free:
            victim = cache.victim(self.locks if load.urgent else self.kept)
            if victim is None and load.urgent:
                return Verdict.WAIT
            if victim is None or not (load.urgent or cache.outranks(key, victim)):
                self._refuse(load)
                return Verdict.DROP
            self._evict(cache, victim)
        cache.admit(key)
        self.lock(key)
        if not load.urgent:
            self.unused.add(key)
            self.log.prefetches[self.gpu] += 1
        return Verdict.TAKE

    def _refuse(self, load: Load) -> None:
        self.supply.let_go(load)
        self.forgotten(load)

    def _evict(self, cache: RankedCache, victim: Key) -> None:
        cache.evict(victim)
        self.there[victim] = False
        self.log.evictions[self.gpu] += 1
        if victim in self.unused:
            self.unused.remove(victim)
            self.log.wasted[self.gpu] += 1

    def _came(self, load: Load) -> None:
        key: Key = load.place[:2]
        del self.loads[key]
        self.there[key] = True
        self.log.loads[self.gpu] += 1
        self.log.bytes[self.gpu] += self.site.size
        self.log.busy[self.gpu] += self.port.service
        self.supply.let_go(load)
        self.site.arrived(load)
        self.unlock(key)
