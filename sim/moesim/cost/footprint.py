"""What one micro-batch takes in the memory of each GPU while it is in flight.

By the tokens that *this* GPU received, in the layer where they are most; the formulas
are those of the plan (`moesim.cost.buffers`).

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``n`` copies of a system.
"""

from dataclasses import dataclass

import numpy as np

from moesim.cost.buffers import LOW_LATENCY_TOKENS, activated_bytes, exchanged_bytes
from moesim.cost.pass_ import PassLoad
from moesim.spec.system import System
from moesim.types import Floats, Ints

BUFFERS, ACTIVATIONS = 0, 1
"""Rows of `Footprint.bytes`."""


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """What a micro-batch takes, in whole bytes, rounded up.

    Parameters
    ----------
    bytes : (2, G) array of int
        Buffers of dispatch and combine; activations, and the logits of its sequences.
    layer : (G,) array of int
        Index of the MoE layer in which it takes most.
    """

    bytes: Ints
    layer: Ints

    def part(self, gpus: slice) -> "Footprint":
        """Return what is taken on some of the GPUs."""
        return Footprint(self.bytes[:, gpus], self.layer[gpus])


def footprint(load: PassLoad, system: System, copies: int = 1) -> Footprint:
    """Return what a pass takes on each GPU.

    Padding is computed, so it takes activations. Buffers of ``low_latency`` kernels are
    reserved before anything runs (`reserved_bytes`), and nothing is added to them here.

    Parameters
    ----------
    load : PassLoad
        What it asks of each GPU; of ``n`` copies of the system, one after the other.
    """
    model, width = system.model, system.placement.slots_per_gpu
    pairs, shared = load.slots[:, :width].sum(axis=1), load.slots[:, width:].sum(axis=1)
    tokens = (load.tokens + load.padding).astype(float)
    if system.dispatch == "low_latency":
        buffers = np.zeros_like(tokens)
        layer = (pairs + shared).argmax(axis=0)
        masked = _masked(tokens, system, copies)
        activations = activated_bytes(system, tokens, *masked)
    else:
        exchanged = _exchanged(load, system)
        at_experts = pairs.astype(float), shared.astype(float)
        computed = activated_bytes(system, tokens, *at_experts)
        layer = (exchanged + computed).argmax(axis=0)
        every = np.arange(len(tokens))
        buffers, activations = exchanged[layer, every], computed[layer, every]
    logits = load.sequences * (4.0 * model.vocab / system.tensor_parallel)
    taken = np.stack([buffers, activations + logits])
    return Footprint(np.ceil(taken).astype(np.int64), layer)


def _exchanged(load: PassLoad, system: System) -> Floats:
    """Return ``(L, G)`` bytes of received rows; one GPU alone exchanges nothing."""
    if system.topology.gpus == 1:
        return np.zeros((len(load.slots), 1))
    return exchanged_bytes(system, load.rows.astype(float))


def _masked(tokens: Floats, system: System, copies: int) -> tuple[Floats, Floats]:
    """Return ``(G,)`` rows of the masked array, one of each rank's at every slot.

    Those of routed experts, and those of the fused shared one.
    """
    most = tokens.reshape(copies, -1).max(axis=1)
    each = system.ranks * np.minimum(most, LOW_LATENCY_TOKENS)
    rows = np.repeat(each, len(tokens) // copies)
    return system.placement.slots_per_gpu * rows, system.fuses * rows
