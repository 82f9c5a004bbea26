"""The load of an all-to-all some of whose choices are not served.

Slower than `cost.exchange`, which it agrees with where all are; copies and hops are
defined there.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` choices of a token, ``S`` slots of a GPU,
``G`` GPUs on ``D`` nodes of ``W``.
"""

import numpy as np

from moesim.cost.exchange import ExchangeLoad
from moesim.cost.pass_ import NO_ROWS
from moesim.spec.system import System
from moesim.types import Bools, Ints, Slots

CELLS = 1 << 23
"""(Token, layer, GPU) triples held at once."""


def partial_load(
    slots: Slots, kept: Bools, source: Ints, system: System
) -> ExchangeLoad:
    """Return the load of the choices that are kept.

    Parameters
    ----------
    slots, kept : (T, L, k) arrays
        Slots chosen, and which of the choices are served.
    source : (T,) array of int
        The GPU that holds each token.
    """
    gpus, width = system.topology.gpus, system.jobs_per_gpu
    layers = slots.shape[1]
    found = np.zeros((layers, gpus * width), np.int64)
    hops = np.zeros((layers, gpus, gpus), np.int64)
    far = np.zeros_like(hops)
    rows = np.zeros((layers, gpus), np.int64)
    pace = max(1, CELLS // (layers * gpus))
    for first in range(0, len(slots), pace):
        some = slice(first, first + pace)
        _, layer, _ = np.nonzero(kept[some])
        chosen = slots[some][kept[some]].astype(np.int64)
        cell = layer * found.shape[1] + chosen
        found += np.bincount(cell, minlength=found.size).reshape(found.shape)
        reached = _reached(slots[some], kept[some], system)
        if system.dispatch == "normal":
            once: Bools = np.greater(reached, 0)
            rows += once.sum(axis=0)
            near, across = _forwarded(once, source[some], system)
        else:
            near, across = _direct(reached, source[some], system)
        hops += near
        far += across
    tx = np.stack([hops.sum(axis=2), far.sum(axis=2)], axis=1)
    rx = np.stack([hops.sum(axis=1), far.sum(axis=1)], axis=1)
    return ExchangeLoad(
        slots=found.reshape(layers, gpus, width).swapaxes(1, 2),
        tx=tx,
        rx=rx,
        traffic=np.stack([hops.sum(axis=0), far.sum(axis=0)]),
        rows=rows if system.dispatch == "normal" else NO_ROWS,
    )


def _reached(slots: Slots, kept: Bools, system: System) -> Ints:
    """Return ``(T, L, G)``: how many kept choices of each token lie on each GPU."""
    tokens, layers, _ = slots.shape
    gpus = system.topology.gpus
    gpu = slots.astype(np.int64) // system.jobs_per_gpu
    cell = np.arange(tokens * layers).reshape(tokens, layers, 1) * gpus + gpu
    count = np.bincount(cell[kept], minlength=tokens * layers * gpus)
    return count.reshape(tokens, layers, gpus)


def _direct(reached: Ints, source: Ints, system: System) -> tuple[Ints, Ints]:
    """Return ``(L, G, G)`` hops over NVLink and over the NIC, one for each choice."""
    gpus, per_node = system.topology.gpus, system.topology.gpus_per_node
    node = np.arange(gpus) // per_node
    hops = _by_sender(reached, source, gpus)
    inside = node[:, None] == node
    return hops * inside, hops * ~inside


def _forwarded(reached: Bools, source: Ints, system: System) -> tuple[Ints, Ints]:
    """Return the same hops: to each other node once, then to each other GPU once."""
    gpus, per_node = system.topology.gpus, system.topology.gpus_per_node
    tokens, layers, _ = reached.shape
    node, place = np.divmod(source, per_node)
    by_node = reached.reshape(tokens, layers, -1, per_node)
    entered: Bools = np.logical_or.reduce(by_node, axis=3)
    far = np.zeros((layers, gpus, gpus), np.int64)
    near = np.zeros_like(far)
    for other in range(system.topology.nodes):
        sent = entered[:, :, other] & (node != other)[:, None]
        door = other * per_node + place
        for gate in np.unique(place):
            mine = place == gate
            sender = _by_sender(sent[mine, :, None], source[mine], gpus)[:, :, 0]
            far[:, :, other * per_node + gate] += sender
        onward = _by_sender(
            reached * (np.arange(gpus) // per_node == other), door, gpus
        )
        near += onward
    near[:, np.arange(gpus), np.arange(gpus)] = 0
    return near, far


def _by_sender(count: Ints, sender: Ints, gpus: int) -> Ints:
    """Return ``(L, G, n)``: sums of ``(T, L, n)`` over the tokens of each sender."""
    found = np.zeros((gpus, *count.shape[1:]), np.int64)
    order = np.argsort(sender, kind="stable")
    first = np.flatnonzero(np.diff(sender[order], prepend=-1))
    if len(first):
        found[sender[order][first]] = np.add.reduceat(
            count[order].astype(np.int64), first, axis=0
        )
    return found.swapaxes(0, 1)
