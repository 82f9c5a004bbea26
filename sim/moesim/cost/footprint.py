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
    model, pairs = system.model, load.slots.sum(axis=1)
    tokens = (load.tokens + load.padding).astype(float)
    if system.dispatch == "low_latency":
        buffers = np.zeros_like(tokens)
        layer = pairs.argmax(axis=0)
        activations = activated_bytes(system, tokens, _masked(tokens, system, copies))
    else:
        exchanged = _exchanged(load, pairs, system)
        computed = activated_bytes(system, tokens, pairs.astype(float))
        layer = (exchanged + computed).argmax(axis=0)
        every = np.arange(len(tokens))
        buffers, activations = exchanged[layer, every], computed[layer, every]
    logits = load.sequences * (4.0 * model.vocab / system.tensor_parallel)
    taken = np.stack([buffers, activations + logits])
    return Footprint(np.ceil(taken).astype(np.int64), layer)


def _exchanged(load: PassLoad, pairs: Ints, system: System) -> Floats:
    """Return ``(L, G)`` bytes of received rows; one GPU alone exchanges nothing."""
    if system.topology.gpus == 1:
        return np.zeros(pairs.shape)
    # Not known who comes twice: as if nobody did.
    rows = load.rows if load.rows.size else pairs
    return exchanged_bytes(system, rows.astype(float))


def _masked(tokens: Floats, system: System, copies: int) -> Floats:
    """Return ``(G,)``: rows of the masked array, one of each rank's at every slot."""
    most = tokens.reshape(copies, -1).max(axis=1)
    each = system.jobs_per_gpu * system.ranks
    rows = each * np.minimum(most, LOW_LATENCY_TOKENS)
    return np.repeat(rows, len(tokens) // copies)
