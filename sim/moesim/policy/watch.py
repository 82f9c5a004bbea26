"""What rebalancing loops see of an instance, and the placements that follow.

Loads are tokens of whole passes. They are noted when a pass ends.

Axes: ``L`` MoE layers, ``E`` logical experts, ``P`` slots of a layer, ``G`` GPUs, ``w``
passes of a window.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moesim.policy.place.eplb import eplb
from moesim.policy.place.flat import tensorrt_llm
from moesim.policy.place.moves import preserve_slots
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Floats, Ints


class Watch(Protocol):
    """Sees the passes of one instance, and says when experts should move."""

    def observe(self, slots: Ints, placement: Placement) -> None:
        """Take in a pass: ``(L, P)`` tokens of slots, placed as when it was formed."""
        ...

    def plan(self, placement: Placement) -> Placement | None:
        """Return where experts should be instead, or None to leave them.

        It is asked after each pass unless experts are on the move.
        """
        ...


class Idle:
    """Sees nothing."""

    def observe(self, slots: Ints, placement: Placement) -> None:
        """Forget it."""

    def plan(self, placement: Placement) -> Placement | None:
        """Leave experts where they are."""
        return None


class SlidingWindow:
    """vLLM's: the last `window` passes by slot, looked at every `interval` passes."""

    def __init__(self, system: System, window: int, interval: int) -> None:
        self.system = system
        self.window = window
        self.interval = interval
        self.step = interval - interval // 4
        self.ring: list[NDArray[np.int32]] = []
        self.total: Ints = np.zeros_like(system.placement.phy2log)
        self.next = 0

    def observe(self, slots: Ints, placement: Placement) -> None:
        """Take in a pass; the oldest leaves a full window."""
        self.step += 1
        self.total += slots
        if len(self.ring) < self.window:
            self.ring.append(slots.astype(np.int32))
            return
        self.total -= self.ring[self.next]
        self.ring[self.next] = slots.astype(np.int32)
        self.next = (self.next + 1) % self.window

    def plan(self, placement: Placement) -> Placement | None:
        """Return EPLB's placement, slots kept where they can be, when it is time."""
        if self.step < self.interval:
            return None
        self.step = 0
        loads = by_expert(self.total, placement).astype(float)
        return preserve_slots(placement, _eplb(loads, self.system))


class SinceLastPlan:
    """SGLang's: all passes since the last look, by expert, and how even they were."""

    def __init__(self, system: System, interval: int, threshold: float) -> None:
        self.system = system
        self.interval = interval
        self.threshold = threshold
        self.step = 0
        self._forget()

    def _forget(self) -> None:
        self.loads: Ints = np.zeros_like(self.system.placement.replicas)
        self.passes = 0
        self.utilisation = 0.0

    def observe(self, slots: Ints, placement: Placement) -> None:
        """Take in a pass."""
        self.passes += 1
        self.loads += by_expert(slots, placement)
        gpus = slots.reshape(len(slots), placement.gpus, -1).sum(axis=2)
        busiest = gpus.max(axis=1)
        used = busiest > 0
        ratio = gpus.mean(axis=1)[used] / busiest[used]
        self.utilisation += float(ratio.mean()) if used.any() else 1.0

    def plan(self, placement: Placement) -> Placement | None:
        """Return EPLB's placement when it is time, and GPUs were uneven enough.

        As in the loop of SGLang's manager, the pass after the interval is the one that
        looks, and it already counts for the next interval; passes after which chunks
        move do not count.
        """
        self.step += 1
        if self.step <= self.interval:
            return None
        self.step = 1
        even = self.utilisation / self.passes > self.threshold
        loads = self.loads.astype(float)
        self._forget()
        return None if even else _eplb(loads, self.system)


class RoundOfLayers:
    """TensorRT-LLM's: layers in turn, by loads that fade."""

    def __init__(self, system: System, layers_per_pass: int, decay: float) -> None:
        layers = len(system.placement.phy2log)
        self.decay = decay
        self.spare = system.placement.phy2log.shape[1] - system.model.experts
        self.loads: Floats = np.zeros(system.placement.replicas.shape)
        rounds = -(-layers // layers_per_pass)
        self.turns = [np.arange(first, layers, rounds) for first in range(rounds)]
        if len(self.turns[0]) == len(self.turns[-1]):
            self.turns.append(np.zeros(0, np.int64))
        self.turn = -1

    def observe(self, slots: Ints, placement: Placement) -> None:
        """Take in a pass."""
        self.turn += 1
        self.loads *= self.decay
        self.loads += by_expert(slots, placement)

    def plan(self, placement: Placement) -> Placement | None:
        """Return the placement with the layers changed whose turn it is."""
        layers = self.turns[self.turn % len(self.turns)]
        if not len(layers):
            return None
        found = tensorrt_llm(self.loads[layers], placement.gpus, redundant=self.spare)
        self.loads[layers] = 0.0
        slots = placement.phy2log.copy()
        slots[layers] = found.phy2log
        return Placement(slots, placement.gpus)


def by_expert(slots: Ints, placement: Placement) -> Ints:
    """Return ``(L, E)`` tokens of experts, of ``(L, P)`` tokens of their slots."""
    layers, experts = placement.replicas.shape
    cell = placement.phy2log + (np.arange(layers) * experts)[:, None]
    found = np.zeros(layers * experts, np.int64)
    np.add.at(found, cell.ravel(), slots.ravel())
    return found.reshape(layers, experts)


def gpu_loads(tokens: Ints | Floats, placement: Placement) -> Floats:
    """Return ``(L, G)`` tokens of GPUs if copies share ``(L, E)`` tokens evenly."""
    each = tokens / placement.replicas
    held = np.take_along_axis(each, placement.phy2log, axis=1)
    return held.reshape(len(held), placement.gpus, -1).sum(axis=2)


def _eplb(loads: Floats, system: System) -> Placement:
    topology, model = system.topology, system.model
    spare = system.placement.phy2log.shape[1] - model.experts
    return eplb(loads, topology.gpus, topology.nodes, model.groups, spare)
