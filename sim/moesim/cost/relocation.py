"""What moving experts costs: bytes on ports, bytes in device memory, bytes from hosts.

Weights move in steps. In each, GPUs first read what they send and copy what they have
in another slot into a buffer; then whole experts cross, over NVLink inside a node and
over the NIC between nodes; then what has arrived is written, and in the end copied from
the buffer into its slots. Every byte that device memory reads or writes is time of its
GPU, as bytes are everywhere in this model.

Axes: ``N`` steps, ``M`` experts that cross, ``G`` GPUs, ``S`` slots of a GPU, ``P``
phases, ``C`` port classes.
"""

from dataclasses import dataclass, replace

import numpy as np

from moesim.cost.pass_ import DISPATCH, PassCost
from moesim.cost.weights import expert_bytes
from moesim.spec.system import System
from moesim.spec.topology import NIC, NVLINK, PORT_CLASSES
from moesim.types import Ints

ONCE, COPY = 1, 2
"""How often device memory moves an expert: read or written; read and written."""


@dataclass(frozen=True, slots=True, eq=False)
class Relocation:
    """Experts that move, in steps.

    Parameters
    ----------
    step, source, target : (M,) arrays of int
        In which step an expert crosses, and from which GPU to which.
    kept : (N, G) array of int
        Slots filled from their own GPU's memory, into the buffer.
    filled : (N, G) array of int
        Slots filled from the buffer at the end of a step.
    """

    step: Ints
    source: Ints
    target: Ints
    kept: Ints
    filled: Ints

    def ports(self, system: System) -> tuple[Ints, Ints]:
        """Return ``(N, C, G)``: experts that leave and that reach each port."""
        node = system.topology.node
        port = np.where(node[self.source] == node[self.target], NVLINK, NIC)
        return self._count(port, self.source), self._count(port, self.target)

    def _count(self, port: Ints, gpu: Ints) -> Ints:
        steps, gpus = self.kept.shape
        shape = steps, len(PORT_CLASSES), gpus
        cell = np.ravel_multi_index((self.step, port, gpu), shape)
        return np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)


def relocation_cost(move: Relocation, system: System) -> PassCost:
    """Return what a move costs, as a pass whose layers are its steps.

    What comes before a step's crossing is its `attention`, together with what follows
    the crossing before; what follows the last is the `tail`.
    """
    tx, rx = move.ports(system)
    size = expert_bytes(system.model, system.precision.experts)
    before = ONCE * tx.sum(axis=1) + COPY * move.kept
    after = ONCE * rx.sum(axis=1) + COPY * move.filled
    before[1:] += after[:-1]
    rate = system.topology.gpu.memory_rate * system.topology.speeds
    steps, gpus = before.shape
    sends, receives = np.zeros((2, steps, 2, len(PORT_CLASSES), gpus))
    port_s = size / system.topology.bandwidth[:, None]
    sends[:, DISPATCH], receives[:, DISPATCH] = tx * port_s, rx * port_s
    return PassCost(
        attention=before * size / rate,
        useful=np.zeros((steps, gpus)),
        experts=np.zeros((steps, system.placement.slots_per_gpu, gpus)),
        tx=sends,
        rx=receives,
        tail=after[-1] * size / rate,
        latency=system.topology.latency,
    )


def host_cost(filled: Ints, system: System) -> tuple[PassCost, float]:
    """Return what slots filled from the hosts' memory cost, and how long that streams.

    Every GPU has a link to its host of its own, which nothing else uses here. Streaming
    ends with the GPU that gets the most; then what has come is written.

    Parameters
    ----------
    filled : (G,) array of int
        Slots of each GPU.
    """
    none = np.zeros(0, np.int64)
    nothing = np.zeros((1, len(filled)), np.int64)
    idle = relocation_cost(Relocation(none, none, none, nothing, nothing), system)
    size = expert_bytes(system.model, system.precision.experts)
    gpu = system.topology.gpu
    tail = ONCE * filled * size / (gpu.memory_rate * system.topology.speeds)
    streaming_s = float(filled.max(initial=0)) * size / gpu.host_bandwidth
    return replace(idle, tail=tail), streaming_s


def staging_bytes(system: System) -> float:
    """Return the buffer in which experts arrive: one layer's slots of a GPU.

    Until all have come, the GPU holds what it serves with and what comes: each expert
    that moves is there twice.
    """
    size = expert_bytes(system.model, system.precision.experts)
    return system.placement.slots_per_gpu * size
