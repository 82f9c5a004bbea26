"""Who sends how many copies of tokens to whom in one all-to-all, and on which port.

Every copy takes one hop: it leaves one port of its sender and reaches the same class of
port of its receiver. Combine is the same set of hops the other way.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` choices of a token, ``S`` slots of a GPU,
``G`` GPUs, ``C`` port classes (NVLink, NIC).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.spec.system import System
from moesim.spec.topology import NIC, NVLINK, PORT_CLASSES
from moesim.types import Bools, Ints

Slots = NDArray[np.integer]
"""``(T, L, k)``: physical slots, ``0 <= slot < S G``, as numbered by `Placement`."""
_CHUNK = 1 << 14
"""(Token, layer) pairs handled together, ``N``: what keeps the work in the cache."""
_Small = NDArray[np.unsignedinteger]
"""GPUs in the smallest type that counts the slots."""


@dataclass(frozen=True, slots=True)
class _Hops:
    """Copies on one port class: where `uses` is true, one from `sender` to `receiver`.

    Parameters
    ----------
    layer : (N,) array
    uses : (k, N) array of bool
    sender, receiver : (k, N) arrays of GPUs; `sender` may be (N,), the same for all k
    """

    port: int
    layer: Ints
    uses: Bools
    sender: _Small
    receiver: _Small


def copies(slots: Slots, source: Ints, system: System) -> tuple[Ints, Ints]:
    """Return how many token copies each port sends and receives during dispatch.

    With the ``normal`` kernel a token goes once to each other node that needs it, over
    the NIC, to the GPU of the source's local index; from there (on its own node: from
    the source) it goes over NVLink once to each other GPU that needs it. With
    ``low_latency`` it goes once for each choice, straight to the choice's GPU: over
    NVLink on the same node, the source itself included, otherwise over the NIC.

    Parameters
    ----------
    slots : (T, L, k) array of int
        Physical slots chosen for each token in each layer.
    source : (T,) array of int
        The GPU that holds each token.

    Returns
    -------
    tx, rx : (L, C, G) arrays of int
        Copies that leave and that reach each port. Combine swaps the two.
    """
    layers, gpus = slots.shape[1], system.topology.gpus
    shape = (layers, len(PORT_CLASSES), gpus)
    tx, rx = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for hops in _hops(slots, source, system):
        for ports, end in ((tx, hops.sender), (rx, hops.receiver)):
            found = _count(hops.layer * gpus + end, hops.uses, layers * gpus)
            ports[:, hops.port] += found.reshape(layers, gpus)
    return tx, rx


def traffic(slots: Slots, source: Ints, system: System) -> Ints:
    """Return ``(C, G, G)``: dispatch copies from GPU to GPU, hop by hop, all layers.

    Rows are senders. Its row and column sums are what `copies` counts at the ports; the
    transpose is combine.
    """
    gpus = system.topology.gpus
    matrix = np.zeros((len(PORT_CLASSES), gpus, gpus), np.int64)
    for hops in _hops(slots, source, system):
        pair = hops.sender.astype(np.int64) * gpus + hops.receiver
        matrix[hops.port] += _count(pair, hops.uses, gpus * gpus).reshape(gpus, gpus)
    return matrix


def slot_counts(slots: Slots, system: System) -> Ints:
    """Return ``(L, S, G)``: how many tokens each expert slot receives."""
    layers, gpus = slots.shape[1], system.topology.gpus
    width = system.placement.slots_per_gpu
    row = np.arange(layers)[:, None] * (gpus * width)
    found = np.bincount((slots + row).ravel(), minlength=layers * gpus * width)
    return np.ascontiguousarray(found.reshape(layers, gpus, width).swapaxes(1, 2))


def _count(key: Ints, uses: Bools, size: int) -> Ints:
    """Return how often each key below `size` is used; rows share a 1-D key."""
    if key.ndim == 1:
        return np.bincount(key, uses.sum(axis=0), size).astype(np.int64)
    # Unused keys go to a bin of their own: four times faster than leaving them out.
    spare = (key + 1) * uses
    return np.bincount(spare.ravel(), minlength=size + 1)[1:]


def _hops(slots: Slots, source: Ints, system: System) -> Iterator[_Hops]:
    """Yield the hops of dispatch, a chunk of tokens and a port class at a time."""
    layers, choices = slots.shape[1:]
    topology, width = system.topology, system.placement.slots_per_gpu
    small = np.min_scalar_type(topology.gpus * width)
    find = _normal if system.dispatch == "normal" else _low_latency
    step = max(1, _CHUNK // layers)
    for start in range(0, len(slots), step):
        part = slots[start : start + step].astype(small).reshape(-1, choices)
        gpu = np.ascontiguousarray(part.T) // small.type(width)
        home = np.repeat(source[start : start + step].astype(small), layers)
        layer = np.tile(np.arange(layers), len(part) // layers)
        yield from find(gpu, home, layer, small.type(topology.gpus_per_node))


def _low_latency(
    gpu: _Small, home: _Small, layer: Ints, per_node: np.unsignedinteger
) -> Iterator[_Hops]:
    """Yield one hop per choice; `gpu` is ``(k, N)``, `home` and `layer` ``(N,)``."""
    near = gpu // per_node == home // per_node
    yield _Hops(NVLINK, layer, near, home, gpu)
    yield _Hops(NIC, layer, ~near, home, gpu)


def _normal(
    gpu: _Small, home: _Small, layer: Ints, per_node: np.unsignedinteger
) -> Iterator[_Hops]:
    """Yield one hop per other node, then one per other GPU; shapes as above."""
    node = gpu // per_node
    forwarder = node * per_node + home % per_node
    across = _first_of_kind(node) & (forwarder != home)
    yield _Hops(NIC, layer, across, home, forwarder)
    onward = _first_of_kind(gpu) & (gpu != forwarder)
    yield _Hops(NVLINK, layer, onward, forwarder, gpu)


def _first_of_kind(rows: _Small) -> Bools:
    """Return ``(k, N)``: whether no earlier row of that column has the same value."""
    first = np.ones(rows.shape, bool)
    for later in range(1, len(rows)):
        for earlier in range(later):
            first[later] &= rows[earlier] != rows[later]
    return first
