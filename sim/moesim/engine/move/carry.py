"""From one placement to another in chunks of layers, each a micro-batch of weights.

Axes: ``L`` MoE layers, ``P`` slots of a layer, ``S`` slots of a GPU, ``G`` GPUs, ``N``
steps of a chunk, ``M`` experts that cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moesim.cost.pass_ import DISPATCH, PassCost, PassLoad
from moesim.cost.relocation import Relocation, host_cost, relocation_cost
from moesim.cost.weights import expert_bytes
from moesim.engine.clock import ticks_of
from moesim.engine.microbatch import MicroBatch, quantise
from moesim.policy.place.moves import Moves, moved
from moesim.policy.rebalance import Carriage
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Bools, Floats, Ints

NOBODY: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Layers that change together: where their experts go, and what carries them.

    Parameters
    ----------
    layers : array of int
        Which.
    slots : (len(layers), P) array of int
        The experts of their slots afterwards.
    batch : MicroBatch
        The weights on their way; its number and instant are yet to be given.
    delay : int
        Picoseconds of streaming from hosts, before all have come.
    changed, experts : int
        Slots that change, and expert copies that cross a link.
    bytes : float
        What crosses links.
    """

    layers: Ints
    slots: Ints
    batch: MicroBatch
    delay: int
    changed: int
    experts: int
    bytes: float


def chunks(
    old: Placement, new: Placement, carriage: Carriage, system: System
) -> list[Chunk]:
    """Return what to move, in order; layers in which nothing changes are left out."""
    moves = moved(old, new, system.topology.nodes)
    make = _from_host if carriage.origin == "host" else _from_peers
    found = []
    size = expert_bytes(system.model, system.precision.experts)
    for layers in _together(moves, carriage.layers):
        cost, ports, delay, crossing = make(moves, layers, carriage, system)
        chunk = Chunk(
            layers=layers,
            slots=new.phy2log[layers],
            batch=_batch(cost, size * ports.astype(float)),
            delay=delay,
            changed=int(moves.changed[layers].sum()),
            experts=crossing,
            bytes=crossing * size,
        )
        found.append(chunk)
    return found


Carried = tuple[PassCost, Ints, int, int]
"""The cost of a chunk, ``(2, C, G)`` experts sent and received by port, picoseconds of
streaming, and experts that cross."""


def _together(moves: Moves, size: int) -> Iterator[Ints]:
    """Yield the layers of each chunk that change at all."""
    changes: Bools = np.any(moves.changed, axis=1)
    layers = np.arange(len(moves.changed))
    for first in range(0, len(layers), size or len(layers)):
        some = layers[first : first + (size or len(layers))]
        if changes[some].any():
            yield some[changes[some]]


def _from_host(
    moves: Moves, layers: Ints, carriage: Carriage, system: System
) -> Carried:
    filled = _by_gpu(moves.changed[layers], system).sum(axis=0)
    cost, seconds = host_cost(filled, system)
    ports = np.zeros((2, len(PORT_CLASSES), len(filled)), np.int64)
    return cost, ports, int(ticks_of(np.array(seconds))), int(filled.sum())


def _from_peers(
    moves: Moves, layers: Ints, carriage: Carriage, system: System
) -> Carried:
    """Return what carries layers from GPU to GPU.

    While everything stands still a layer is a step. In the background a step takes one
    expert to each GPU, so that tokens come between: ports would share.
    """
    mine = np.isin(moves.layer, layers)
    row = np.searchsorted(layers, moves.layer[mine])
    source, target = moves.source[mine], moves.target[mine]
    turn = np.zeros(len(row), np.int64)
    if carriage.way != "stop":
        turn = _turns(row * system.topology.gpus + target)
    steps = np.ones(len(layers), np.int64)
    np.maximum.at(steps, row, turn + 1)
    last = steps.cumsum() - 1
    first = last - steps + 1
    changed = _by_gpu(moves.changed[layers], system)
    kept, filled = np.zeros((2, int(steps.sum()), changed.shape[1]), np.int64)
    kept[first] = changed - moves.received(changed.shape[1])[layers]
    if carriage.staged:
        filled[last] = changed
    move = Relocation(first[row] + turn, source, target, kept, filled)
    ports = np.stack(move.ports(system)).sum(axis=1)
    return relocation_cost(move, system), ports, 0, len(source)


def _turns(cell: Ints) -> Ints:
    """Return how many earlier entries each entry equals."""
    order = np.argsort(cell, kind="stable")
    ordered = cell[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(cell)]
    start = np.maximum.accumulate(np.where(begins, np.arange(len(cell)), 0))
    turn = np.empty_like(cell)
    turn[order] = np.arange(len(cell)) - start
    return turn


def _by_gpu(changed: Bools, system: System) -> Ints:
    """Return ``(L, G)``: how many of ``(L, P)`` slots change on each GPU."""
    gpus = system.topology.gpus
    return changed.reshape(len(changed), gpus, -1).sum(axis=2)


def _batch(cost: PassCost, ports: Floats) -> MicroBatch:
    """Return the micro-batch that carries weights, and nobody's tokens."""
    steps, slots, gpus = cost.experts.shape
    zeros = np.zeros(gpus, np.int64)
    copies = np.zeros((steps, len(PORT_CLASSES), gpus), np.int64)
    moved_bytes = np.zeros((2, 2, len(PORT_CLASSES), gpus))
    moved_bytes[:, DISPATCH] = ports
    load = PassLoad(
        tokens=zeros,
        padding=zeros,
        sequences=zeros,
        attended=zeros,
        kv_read=zeros,
        slots=np.zeros((steps, slots, gpus), np.int64),
        tx=copies,
        rx=copies,
    )
    return MicroBatch(
        number=0,
        admitted=0,
        requests=NOBODY,
        chunk=NOBODY,
        oldest_arrival_s=0.0,
        load=load,
        cost=quantise(cost),
        source_tokens=zeros,
        source_padding=zeros,
        padding_slots=load.slots,
        sent=moved_bytes[0],
        received=moved_bytes[1],
        traffic=np.zeros((2, 0, 0)),
        experts_s=np.zeros((steps, gpus)),
        guess_s=np.zeros((steps, gpus)),
        weights=True,
    )
