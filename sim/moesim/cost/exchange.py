"""Who sends how many copies of tokens to whom in one all-to-all, and on which port.

Every copy takes one hop: it leaves one port of its sender and reaches the same class of
port of its receiver. Combine is the same set of hops the other way.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` choices of a token, ``S`` slots of a GPU,
``G`` GPUs, ``C`` port classes (NVLink, NIC). Inside: ``N`` (layer, token) cells of a
block of ``B`` layers, ``D`` nodes of ``W`` GPUs (``G = D W``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moesim.cost.pass_ import NO_CHOICES, NO_ROWS
from moesim.spec.system import System
from moesim.spec.topology import Topology
from moesim.types import Bools, Floats, Ints, Slots

_CHUNK = 1 << 14
"""(Layer, token) cells handled together, ``N``: what keeps the work in the cache."""
_Small = NDArray[np.unsignedinteger]
"""Numbers in the smallest type that holds them, or in 32 bits."""
_Ports = tuple[Ints, Ints, Ints]
"""Of one port class: copies sent and received by GPU, and from GPU to GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeLoad:
    """What the tokens of a pass ask of expert slots and, in dispatch, of ports.

    With the ``normal`` kernel a token goes once to each other node that needs it, over
    the NIC, to the GPU of the source's local index; from there (on its own node: from
    the source) it goes over NVLink once to each other GPU that needs it. With
    ``low_latency`` it goes once for each choice, straight to the choice's GPU: over
    NVLink on the same node, the source itself included, otherwise over the NIC.

    Parameters
    ----------
    slots : (L, S, G) array of int
        Tokens that each expert slot receives.
    tx, rx : (L, C, G) arrays of int
        Copies that leave and that reach each port. Combine swaps the two.
    traffic : (C, G, G) array of int, or of float where only the mean is known
        Copies from GPU (row) to GPU (column), hop by hop, all layers. Its row and
        column sums are those of `tx` and `rx`; combine is the transpose.
    dropped, rerouted : (L, E) or (1, 1) arrays of int
        Choices that experts had no room for, by what became of them.
    rows : (L, G) array of int
        Tokens that need an expert of each GPU; empty with ``low_latency`` kernels.
    """

    slots: Ints
    tx: Ints
    rx: Ints
    traffic: Ints | Floats
    dropped: Ints = field(default_factory=lambda: NO_CHOICES)
    rerouted: Ints = field(default_factory=lambda: NO_CHOICES)
    rows: Ints = field(default_factory=lambda: NO_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Cells of some layers and some tokens, layer by layer.

    Parameters
    ----------
    layers : slice
        Which ``B`` layers.
    gpu, column : (k, N) arrays
        The GPUs of the slots chosen, and the slots as numbered in ``(S, G)``.
    layer, home : (N,) arrays of uint32
        Layer, counted from the block's first, and the GPU that holds the token.
    """

    layers: slice
    gpu: _Small
    column: _Small
    layer: _Small
    home: _Small


def exchange_load(slots: Slots, source: Ints, system: System) -> ExchangeLoad:
    """Return the load of a pass, from one look at each choice.

    Fastest where `slots` lie in memory layer by layer and, within a layer, choice by
    choice.

    Parameters
    ----------
    slots : (T, L, k) array of int
        Slots chosen for each token in each layer, as numbered by `Placement`; with
        fused shared experts theirs too (`policy.waterfill.with_shared`).
    source : (T,) array of int
        The GPU that holds each token.
    """
    find = _normal if system.dispatch == "normal" else _low_latency
    return find(slots, source, system)


def slot_counts(slots: Slots, system: System) -> Ints:
    """Return ``(L, S, G)``: how many tokens each expert slot receives."""
    gpus, width = system.topology.gpus, system.jobs_per_gpu
    found = np.zeros((slots.shape[1], gpus * width), np.int64)
    for block in _blocks(slots, np.zeros(len(slots), np.int64), gpus, width):
        _count(
            found[block.layers], block.layer * np.uint32(gpus * width) + block.column
        )
    return found.reshape(-1, width, gpus)


def _normal(slots: Slots, source: Ints, system: System) -> ExchangeLoad:
    """Return the load of one hop per other node, then one per other GPU on it.

    The hop to a GPU starts at the GPU of its node that has the source's local index: so
    `near` counts by that index and slot, and in its last row what needs no copy because
    the GPU has one; `far` counts by source and node, in its last column what the node
    has.
    """
    topology, width = system.topology, system.jobs_per_gpu
    gpus, nodes, per_node = topology.gpus, topology.nodes, topology.gpus_per_node
    near = np.zeros((slots.shape[1], per_node + 1, gpus * width), np.int64)
    far = np.zeros((slots.shape[1], gpus, nodes + 1), np.int64)
    total, last = np.uint32(gpus * width), np.uint32(per_node)
    for block in _blocks(slots, source, gpus, width):
        node = _divided(block.gpu, per_node, nodes)
        row = (block.layer * (last + np.uint32(1)) + last) * total
        back = (last - block.home % last) * total
        _count(
            near[block.layers], row - _first_of_kind(block.gpu) * back + block.column
        )
        cell = (block.layer * np.uint32(gpus) + block.home) * np.uint32(nodes + 1)
        end = node.dtype.type(nodes)
        column = end - _first_of_kind(node) * (end - node)
        _count(far[block.layers], cell + column)
    onward = near[:, :-1].reshape(-1, per_node, width, gpus).sum(axis=2)
    rows = onward.sum(axis=1)
    return _load(
        near.sum(axis=1).reshape(-1, width, gpus),
        _onward(onward, topology),
        _across(far[:, :, :-1], topology),
        rows,
    )


def _across(far: Ints, topology: Topology) -> tuple[Ints, Ints, Ints]:
    """Return what NICs send and receive, and who to whom, of ``(L, G, D)`` copies."""
    nodes, per_node = topology.nodes, topology.gpus_per_node
    every, rail = np.arange(nodes), np.arange(per_node)
    moved = far.reshape(-1, nodes, per_node, nodes)
    moved[:, every, :, every] = 0
    pairs = np.zeros((nodes, per_node, nodes, per_node), np.int64)
    pairs[:, rail, :, rail] = moved.sum(axis=0).swapaxes(0, 1)
    return moved.sum(axis=3), moved.sum(axis=1).swapaxes(1, 2), pairs


def _onward(near: Ints, topology: Topology) -> tuple[Ints, Ints, Ints]:
    """Return the same of NVLink, of ``(L, W, G)`` copies: local index to GPU."""
    nodes, per_node = topology.nodes, topology.gpus_per_node
    every, rail = np.arange(nodes), np.arange(per_node)
    moved = near.reshape(-1, per_node, nodes, per_node)
    moved[:, rail, :, rail] = 0
    pairs = np.zeros((nodes, per_node, nodes, per_node), np.int64)
    pairs[every, :, every] = moved.sum(axis=0).swapaxes(0, 1)
    return moved.sum(axis=3).swapaxes(1, 2), moved.sum(axis=1), pairs


def _low_latency(slots: Slots, source: Ints, system: System) -> ExchangeLoad:
    """Return the load of one hop per choice; `near` counts by source node and slot."""
    topology, width = system.topology, system.jobs_per_gpu
    gpus, nodes, per_node = topology.gpus, topology.nodes, topology.gpus_per_node
    layers, choices = slots.shape[1:]
    near = np.zeros((layers, nodes, gpus * width), np.int64)
    kept, pairs = np.zeros((layers, gpus), np.int64), np.zeros((gpus, gpus), np.int64)
    total, big = np.uint32(gpus * width), np.uint32(gpus)
    for block in _blocks(slots, source, gpus, width):
        node = block.home // np.uint32(per_node)
        row = (block.layer * np.uint32(nodes) + node) * total
        _count(near[block.layers], row + block.column)
        _count(pairs, block.home * big + block.gpu)
        near_by = _divided(block.gpu, per_node, nodes) == node.astype(np.uint16)
        cell = block.layer * big + block.home
        _count(kept[block.layers], cell, near_by.sum(axis=0))
    sent = choices * np.bincount(source, minlength=gpus) - kept
    home = topology.node[:, None] == topology.node
    reach = near.reshape(layers, nodes, width, gpus).sum(axis=2)
    every = np.arange(nodes)
    stay = reach.reshape(layers, nodes, nodes, per_node)[:, every, every]
    stay = stay.reshape(layers, gpus)
    return _load(
        near.sum(axis=1).reshape(-1, width, gpus),
        (kept, stay, pairs * home),
        (sent, reach.sum(axis=1) - stay, pairs * ~home),
    )


def _load(
    counts: Ints, nvlink: _Ports, nic: _Ports, rows: Ints = NO_ROWS
) -> ExchangeLoad:
    """Return the load from both port classes, of which only the sizes need be right."""
    layers, _, gpus = counts.shape
    sent, received, pairs = zip(nvlink, nic, strict=True)
    return ExchangeLoad(
        counts,
        np.stack([part.reshape(layers, gpus) for part in sent], axis=1),
        np.stack([part.reshape(layers, gpus) for part in received], axis=1),
        np.stack([part.reshape(gpus, gpus) for part in pairs]),
        rows=rows,
    )


def _count(found: Ints, key: _Small, times: Ints | None = None) -> None:
    """Add 1 to `found`, flat, at each key, or as many as `times` says."""
    counted = np.bincount(key.ravel(), times, found.size).astype(np.int64, copy=False)
    found += counted.reshape(found.shape)


def _divided(number: _Small, by: int, below: int) -> _Small:
    """Return whole quotients, in the smallest type that holds `below`."""
    quotient = number // number.dtype.type(by)
    return quotient.astype(np.min_scalar_type(below), copy=False)


def _blocks(slots: Slots, source: Ints, gpus: int, width: int) -> Iterator[_Block]:
    """Yield the cells of a pass, at most `_CHUNK` at a time."""
    layers, choices = slots.shape[1:]
    small = np.min_scalar_type(gpus * width)
    for start in range(0, len(slots), _CHUNK):
        part = slots[start : start + _CHUNK].transpose(2, 1, 0)
        home = source[start : start + _CHUNK].astype(np.uint32)
        pace = max(1, _CHUNK // len(home))
        for first in range(0, layers, pace):
            some = part[:, first : first + pace].astype(small, order="C")
            count = some.shape[1]
            slot = some.reshape(choices, -1)
            gpu = slot // small.type(width)
            yield _Block(
                slice(first, first + count),
                gpu.astype(np.min_scalar_type(gpus), copy=False),
                # (slot % width) * gpus + gpu: what wraps around cancels out.
                slot * small.type(gpus) - gpu * small.type(gpus * width - 1),
                np.repeat(np.arange(count, dtype=np.uint32), len(home)),
                np.tile(home, count),
            )


def _first_of_kind(rows: _Small) -> Bools:
    """Return ``(k, N)``: whether no earlier row of that column has the same value."""
    first, other = np.ones(rows.shape, bool), np.empty(rows.shape, bool)
    for gap in range(1, len(rows)):
        apart = np.not_equal(rows[gap:], rows[:-gap], out=other[gap:])
        first[gap:] &= apart
    return first
