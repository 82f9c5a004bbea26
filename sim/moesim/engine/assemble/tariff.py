"""What passes cost in whole picoseconds: looked up, since most prices depend on a count.

The cost functions price every possible count once; a pass then takes its prices from
these tables. So a table holds exactly what the functions give, and `quantise` of `price`
gives the same for a pass (which a test demands).

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``U`` speeds of GPUs, ``K``
kinds of layer, ``P`` phases, ``C`` port classes, ``N`` counts.
"""

from dataclasses import replace

import numpy as np

from moesim.cost.attention import kinds_of_layer, times_by_kind
from moesim.cost.cuts import core_by_kind, shared_by_kind
from moesim.cost.experts import expert_time
from moesim.cost.pass_ import NO_PART, PassLoad
from moesim.cost.price import port_seconds, price
from moesim.engine.clock import LONGEST_S, PS_PER_S, ticks_of
from moesim.engine.microbatch import TickCost, cut, quantise
from moesim.spec.system import System
from moesim.spec.topology import Topology
from moesim.types import Floats, Ints

MOST_CELLS = 1 << 22
"""Cells of a table; passes with larger counts are priced one by one."""
FEWEST = 256
"""Counts of the smallest table."""


class Tariff:
    """Prices passes of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.speeds, self.speed_of = np.unique(
            system.topology.speeds, return_inverse=True
        )
        self.kind_of = kinds_of_layer(system.model)
        self.latency = np.maximum(ticks_of(system.topology.latency), 1)
        self.counts = 0
        self.experts: Ints = np.zeros(0, np.int64)
        self.ports: Ints = np.zeros(0, np.int64)

    def price(self, load: PassLoad) -> TickCost:
        """Return what a pass costs."""
        most = 1 + max(int(load.slots.max()), int(load.tx.max()), int(load.rx.max()))
        if most * 2 * max(len(self.speeds), 2) > MOST_CELLS:
            return quantise(price(load, self.system))
        if most > self.counts:
            self._extend(most)
        spent, useful, tail = times_by_kind(load, self.system)
        attention = ticks_of(spent)
        useful_ticks = np.floor(useful * PS_PER_S).astype(np.int64)
        tx, rx = self._ports(load)
        return TickCost(
            attention=attention.take(self.kind_of, axis=0),
            useful=np.minimum(useful_ticks, attention).take(self.kind_of, axis=0),
            experts=self._experts(load.slots),
            tx=tx,
            rx=rx,
            tail=ticks_of(tail),
            latency=self.latency,
            **self._cut(spent, load),
        )

    def _cut(self, spent: Floats, load: PassLoad) -> dict[str, Ints]:
        """Return the parts of attention that are cut off, ``(L, G)``."""
        system, shared, core = self.system, NO_PART, NO_PART
        if system.shared_experts == "overlapped":
            shared = shared_by_kind(load, system)
        if system.attention == "split":
            core = core_by_kind(load, system)
        parts = cut(spent, shared, core)
        return {name: part.take(self.kind_of, axis=0) for name, part in parts.items()}

    def _extend(self, most: int) -> None:
        """Price every count below a power of two that is at least `most`."""
        self.counts = max(FEWEST, 1 << (most - 1).bit_length())
        count = np.arange(self.counts)
        few = self._few_gpus()
        every = np.stack(_tables(count, few))
        ports = port_seconds(self.system).T[:, :, None] * count
        self.experts = _ticks(every.transpose(0, 2, 1), most).ravel()
        self.ports = _ticks(ports, most).ravel()

    def _few_gpus(self) -> System:
        """Return the system with one GPU of each speed: ``G`` is then ``U``."""
        gpu, speeds = self.system.topology.gpu, tuple(self.speeds.tolist())
        return replace(self.system, topology=Topology(gpu, 1, len(speeds), speeds))

    def _experts(self, slots: Ints) -> Ints:
        """Return ``(L, S, G)``; a GPU's first slot with tokens may pay the launch."""
        cell = slots
        if len(self.speeds) > 1:
            cell = cell + self.speed_of * self.counts
        if slots.shape[1] > 1:
            active = slots > 0
            later = np.logical_or.accumulate(active[:, :-1], axis=1)
            cell = cell.copy()
            cell[:, 1:] += later * (self.counts * len(self.speeds))
        if self.system.fuses:
            cell[:, -1] += 2 * self.counts * len(self.speeds)
        return self.experts.take(cell)

    def _ports(self, load: PassLoad) -> tuple[Ints, Ints]:
        """Return ``(L, P, C, G)`` sending and receiving times; combine swaps the two."""
        layers, classes, gpus = load.tx.shape
        shape = (layers, 2, classes, gpus)
        tx, rx = np.empty(shape, np.int64), np.empty(shape, np.int64)
        port = (np.arange(classes) * (2 * self.counts))[:, None]
        there, back = load.tx + port, load.rx + port
        self.ports.take(there, out=tx[:, 0], mode="clip")
        self.ports.take(back, out=rx[:, 0], mode="clip")
        there += self.counts
        back += self.counts
        self.ports.take(back, out=tx[:, 1], mode="clip")
        self.ports.take(there, out=rx[:, 1], mode="clip")
        return tx, rx


def _tables(count: Ints, system: System) -> list[Floats]:
    """Return ``(N, U)`` seconds of a GPU's first slot with tokens, and of a later one.

    Where shared experts are fused, the same follows for theirs, which is the last.
    """
    rows, last = 2, system.jobs_per_gpu - 1
    kinds = [(0, False), (1, True)]
    if system.fuses:
        # With one routed slot there is no later one, and nobody asks for it.
        rows, kinds = last + 1, [(0, False), (min(1, last - 1), last > 1)]
        kinds += [(last, False), (last, True)]
    found = []
    for at, later in kinds:
        slots = np.zeros((len(count), rows, system.topology.gpus), np.int64)
        slots[:, 0] = later
        slots[:, at] = count[:, None]
        found.append(expert_time(slots, system)[:, at])
    return found


def _ticks(seconds: Floats, most: int) -> Ints:
    """Return ticks by count, the last axis; counts from `most` on are not asked yet."""
    spare = seconds[..., most:]
    np.minimum(spare, LONGEST_S, out=spare)
    return ticks_of(seconds)
