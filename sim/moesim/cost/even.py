"""A pass whose ranks are alike and whose experts are equally likely, at its mean.

Loads that a run draws are here what is to be expected of them, so a pass is a closed
form. What chance adds is left out: the busiest GPU is no busier than placement makes it.

Axes: ``L`` MoE layers, ``E`` experts in ``J`` groups of which a token uses ``m``, ``k``
experts of a token, ``S`` slots of a GPU, ``G`` GPUs on ``D`` nodes of ``W``, ``C`` port
classes, ``B`` sets of experts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.cost.experts import expected_expert_time
from moesim.cost.pass_ import PassCost, PassLoad
from moesim.cost.price import port_seconds, price
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.spec.topology import NVLINK
from moesim.types import Floats


@dataclass(frozen=True, slots=True)
class EvenBatch:
    """What each rank computes in a pass: some of every sequence, alike.

    Decode of sequences with ``c`` tokens of context is ``chunk=1, start=c - 1``, a
    whole prompt of ``n`` tokens ``chunk=n, start=0``.

    Parameters
    ----------
    sequences : float
        Of one rank; a mean need not be whole.
    chunk, start : int
        Tokens of each that are computed, and how many came before.
    """

    sequences: float
    chunk: int = 1
    start: int = 0

    @property
    def tokens(self) -> float:
        """Tokens of one rank."""
        return self.sequences * self.chunk

    @property
    def context(self) -> int:
        """Tokens that the last of those computed looks at, itself included."""
        return self.start + self.chunk

    @property
    def pairs(self) -> int:
        """Query-key pairs of one sequence."""
        return self.chunk * self.start + self.chunk * (self.chunk + 1) // 2


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """What a pass asks of each GPU, on average.

    Parameters
    ----------
    own : PassLoad
        What ranks do with their own tokens; nothing routed.
    slots : (L, S, G) array of float
        Tokens to expect at each expert slot.
    tx, rx : (L, C, G) arrays of float
        Copies of tokens to expect at each port during dispatch.
    """

    own: PassLoad
    slots: Floats
    tx: Floats
    rx: Floats


def even_load(batches: Sequence[EvenBatch], system: System) -> MeanLoad:
    """Return what a pass of these batches together, on every rank, asks of each GPU."""
    gpus = system.topology.gpus
    source = sum(batch.tokens for batch in batches) / system.tensor_parallel
    routes = _routes(
        system.placement,
        (system.model.groups, system.model.top_groups),
        system.model.top_k,
    )
    ports = _low_latency if system.dispatch == "low_latency" else _normal
    tx, rx = ports(routes, system)
    slots = source * gpus * routes.slots
    if system.fuses:  # where all is even, they are all at home
        shared = np.full((len(slots), 1, gpus), source)
        slots = np.concatenate([slots, shared], axis=1)
        if system.dispatch == "low_latency":
            tx[:, NVLINK] += 1.0
            rx[:, NVLINK] += 1.0
    return MeanLoad(
        own=_own(batches, system),
        slots=slots,
        tx=source * tx,
        rx=source * rx,
    )


def mean_price(load: MeanLoad, system: System) -> PassCost:
    """Return what a pass costs at its mean.

    An expert's weights are read with the probability that it has a token; see
    `expected_expert_time`.
    """
    cost = price(load.own, system)
    there = np.stack([load.tx, load.rx], axis=1)
    seconds = port_seconds(system)[:, :, None]
    return replace(
        cost,
        experts=expected_expert_time(load.slots, system),
        tx=there * seconds,
        rx=there[:, ::-1] * seconds,
    )


def _own(batches: Sequence[EvenBatch], system: System) -> PassLoad:
    """Return the tokens and contexts of every rank, as a run counts them."""
    gpus, placement = system.topology.gpus, system.placement
    layers = len(placement.phy2log)

    def everywhere(amounts: Iterable[float]) -> NDArray[Any]:
        return np.full(gpus, sum(amounts))

    return PassLoad(
        tokens=everywhere(batch.tokens for batch in batches),
        padding=np.zeros(gpus, np.int64),
        sequences=everywhere(batch.sequences for batch in batches),
        attended=everywhere(batch.sequences * batch.pairs for batch in batches),
        kv_read=everywhere(batch.sequences * batch.context for batch in batches),
        slots=np.zeros((layers, placement.slots_per_gpu, gpus), np.int64),
        tx=np.zeros((layers, 2, gpus), np.int64),
        rx=np.zeros((layers, 2, gpus), np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Routes:
    """Where a token goes: to expect of each slot, and the chance of each GPU and node.

    ``slots (L, S, G)``, ``gpus (L, G)``; ``nodes`` makes the same of nodes of a size.
    """

    slots: Floats
    gpus: Floats
    held: Floats
    law: tuple[int, int, int]

    def nodes(self, per_node: int) -> Floats:
        """Return ``(L, D)``: the chance that a token needs a node."""
        layers, gpus, experts = self.held.shape
        held = self.held.reshape(layers, gpus // per_node, per_node, experts)
        return _met(held.sum(axis=2), *self.law)


@lru_cache(8)
def _routes(placement: Placement, groups: tuple[int, int], top_k: int) -> _Routes:
    """Return where tokens go that use every expert, and each of its copies, alike."""
    layers, slots = placement.phy2log.shape
    gpus, experts = placement.gpus, placement.replicas.shape[1]
    copies = np.take_along_axis(placement.replicas, placement.phy2log, axis=1)
    share = (1.0 / copies).reshape(layers, gpus, -1)
    held = np.zeros((layers, gpus, experts))
    layer, slot = np.indices((layers, slots))
    gpu = slot // placement.slots_per_gpu
    np.add.at(held, (layer, gpu, placement.phy2log), 1.0 / copies)
    law = (*groups, top_k)
    by_slot = share.swapaxes(1, 2) * (top_k / experts)
    return _Routes(by_slot, _met(held, *law), held, law)


def _met(held: Floats, groups: int, top_groups: int, top_k: int) -> Floats:
    """Return ``(L, B)``: with what chance a token needs some copy of each set.

    A token's groups are any `m` of `J`, alike, and its experts any `k` of theirs. The
    chance to miss a set is the coefficient of ``y**m z**k`` in the product over groups
    of ``1 + y * prod(1 + (1 - q[e]) z)``, over the number of ways to choose.

    Parameters
    ----------
    held : (L, B, E) array of float
        Share of an expert's tokens that each set takes, ``q``.
    """
    layers, sets, experts = held.shape
    alike, back = np.unique(held.reshape(-1, experts), axis=0, return_inverse=True)
    missed = 1.0 - alike.reshape(len(alike), groups, -1)
    size = experts // groups
    inner = np.zeros((len(alike), groups, top_k + 1))
    inner[:, :, 0] = 1.0
    for place in range(size):
        inner[:, :, 1:] += missed[:, :, place, None] * inner[:, :, :-1].copy()
    ways = np.zeros((len(alike), top_groups + 1, top_k + 1))
    ways[:, 0, 0] = 1.0
    for group in range(groups):
        ways[:, 1:] += _product(ways[:, :-1], inner[:, group])
    every = comb(groups, top_groups) * comb(top_groups * size, top_k)
    chance: Floats = 1.0 - ways[:, top_groups, top_k] / every
    return np.clip(chance, 0.0, 1.0)[back].reshape(layers, sets)


def _product(ways: Floats, inner: Floats) -> Floats:
    """Return products of polynomials in ``z``, cut off after ``z**k``."""
    found = np.zeros_like(ways)
    for power in range(inner.shape[1]):
        found[:, :, power:] += (
            inner[:, power, None, None] * ways[:, :, : ways.shape[2] - power]
        )
    return found


def _normal(routes: _Routes, system: System) -> tuple[Floats, Floats]:
    """Return ``(L, C, G)`` copies sent and received if each GPU has one token.

    One to each other node that is needed, where it enters at the GPU of the source's
    index; from there one to each other GPU that is needed.
    """
    topology = system.topology
    nodes, per_node = topology.nodes, topology.gpus_per_node
    by_node = routes.gpus.reshape(-1, nodes, per_node)
    inside = by_node.sum(axis=2, keepdims=True)
    entering = routes.nodes(per_node)
    every = entering.sum(axis=1, keepdims=True)
    onward = nodes * (inside - by_node)
    taken = nodes * (per_node - 1) * by_node
    tx = [onward.reshape(routes.gpus.shape), _spread(every - entering, per_node)]
    rx = [taken.reshape(routes.gpus.shape), _spread((nodes - 1) * entering, per_node)]
    return np.stack(tx, axis=1), np.stack(rx, axis=1)


def _low_latency(routes: _Routes, system: System) -> tuple[Floats, Floats]:
    """Return the same with one copy for each choice, straight to its GPU."""
    topology = system.topology
    nodes, per_node = topology.nodes, topology.gpus_per_node
    chosen: Floats = routes.slots.sum(axis=1)
    inside = chosen.reshape(-1, nodes, per_node).sum(axis=2)
    near = _spread(inside, per_node)
    tx = [near, chosen.sum(axis=1, keepdims=True) - near]
    rx = [per_node * chosen, (topology.gpus - per_node) * chosen]
    return np.stack(tx, axis=1), np.stack(rx, axis=1)


def _spread(by_node: Floats, per_node: int) -> Floats:
    """Return ``(L, G)``: each node's amount on each of its GPUs."""
    return np.repeat(by_node, per_node, axis=1)
