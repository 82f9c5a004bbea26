"""What pilot tokens tell about the mean way from experts' counts to GPUs and nodes.

Axes: ``L`` MoE layers, ``E`` experts, ``P`` physical slots of a layer, ``G`` GPUs, ``V``
nodes, ``k`` experts of a token, ``R`` replicas, ``M`` experts with several replicas.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.assemble.tokens import checked_slots
from moesim.policy.bundle import Policy
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Bools, Floats, Ints

TOKENS = 1 << 13
"""Pilot tokens: a ratio of 3,600 choices of one of 18 nodes is known to 1 %."""
CHUNK = 1 << 10
FIRST_REQUEST = 1 << 60
"""The pilot's tokens belong to requests that no run has."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Mean ratios, and where everything is.

    Parameters
    ----------
    cell : (L, P) array of int
        Flat (layer, expert) that each slot holds.
    row, place : (M,), (M, R) arrays of int
        Flat (layer, expert) with several replicas, and the flat (layer, slot) of each
        of them; a replica fewer repeats the last.
    upto : (M, R) array of float
        Share of such an expert's tokens that go to its first 1, 2, ... replicas.
    distinct_gpus, distinct_nodes : (L, G), (L, V) arrays of float
        Tokens per choice that falls on a GPU or node: 1 where no token comes twice.
    same_node, same_index : (G, G) arrays of bool
        Whether two GPUs share a node, or a place in their nodes.
    """

    cell: Ints
    row: Ints
    place: Ints
    upto: Floats
    distinct_gpus: Floats
    distinct_nodes: Floats
    same_node: Bools
    same_index: Bools

    @property
    def nodes(self) -> int:
        """How many nodes there are, ``V``."""
        return self.distinct_nodes.shape[1]

    def slots(self, experts: Ints) -> Ints:
        """Return ``(L, P)`` tokens of each slot, from ``(L, E)`` of each expert."""
        held = experts.ravel().take(self.cell)
        if len(self.row):
            edges = np.rint(experts.ravel()[self.row, None] * self.upto)
            parts = np.diff(edges.astype(np.int64), axis=1, prepend=0)
            flat = held.reshape(-1)
            flat[self.place] = 0  # then added: a place that repeats has parts of 0
            np.add.at(flat, self.place, parts)
        return held


def ways_of(system: System, source: RoutingSource, policy: Policy) -> Ways:
    """Return what pilot tokens of a source tell; nothing is drawn where all is known."""
    placement, topology = system.placement, system.topology
    layers, slots = placement.phy2log.shape
    met = np.zeros((layers, topology.gpus))
    entered = np.zeros((layers, topology.nodes))
    chosen = np.zeros((layers, slots))
    wanted = system.dispatch == "normal" or int(placement.replicas.max()) > 1
    for first in range(0, TOKENS if wanted else 0, CHUNK):
        found = _route(first, system, source, policy)
        gpu = found // placement.slots_per_gpu
        chosen += tallied(found, slots, repeats=True)
        met += tallied(gpu, topology.gpus)
        entered += tallied(gpu // topology.gpus_per_node, topology.nodes)
    choices = chosen.reshape(layers, topology.gpus, -1).sum(axis=2)
    node, index = np.divmod(np.arange(topology.gpus), topology.gpus_per_node)
    row, place, upto = _replicas(placement, chosen)
    experts = placement.replicas.shape[1]
    return Ways(
        cell=placement.phy2log + np.arange(layers)[:, None] * experts,
        row=row,
        place=place,
        upto=upto,
        distinct_gpus=_ratio(met, choices),
        distinct_nodes=_ratio(
            entered, choices.reshape(layers, topology.nodes, -1).sum(axis=2)
        ),
        same_node=node[:, None] == node,
        same_index=index[:, None] == index,
    )


def _route(first: int, system: System, source: RoutingSource, policy: Policy) -> Ints:
    """Return ``(CHUNK, L, k)`` slots of pilot tokens, dealt to the GPUs in turn."""
    position = np.arange(first, first + CHUNK)
    zeros = np.zeros_like(position)
    ids = source.route(TokenKeys(zeros + FIRST_REQUEST, zeros, position))
    home = position % system.topology.gpus
    return checked_slots(policy, ids, home, system.placement).astype(np.int64)


def tallied(places: Ints, size: int, *, repeats: bool = False) -> Ints:
    """Return ``(L, size)``: how many tokens chose each place, a token once or always.

    Parameters
    ----------
    places : (T, L, k) array of int
        Places below `size`.
    repeats : bool
        Count a token as often as it chose the place.
    """
    layers = places.shape[1]
    cell = np.sort(places, axis=2) + np.arange(layers)[:, None] * size
    if not repeats:
        fresh = np.diff(cell, axis=2, prepend=-1) != 0
        cell = cell[fresh]
    return np.bincount(cell.ravel(), minlength=layers * size).reshape(layers, size)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _replicas(placement: Placement, chosen: Floats) -> tuple[Ints, Ints, Floats]:
    """Return `row`, `place` and `upto` of `Ways`."""
    slots = placement.phy2log.shape[1]
    row = np.flatnonzero(placement.replicas.ravel() > 1)
    layer = row // placement.replicas.shape[1]
    count = placement.replicas.ravel()[row][:, None]
    width = placement.log2phy.shape[2]
    turn = np.minimum(np.arange(width), count - 1)
    of_expert = placement.log2phy.reshape(-1, width)[row]
    place = np.take_along_axis(of_expert, turn, axis=1) + layer[:, None] * slots
    # Half a token for each replica: one that no pilot chose is not shut out.
    weight = (chosen.ravel()[place] + 0.5) * (np.arange(width) < count)
    upto = np.cumsum(weight, axis=1)
    return row, place, upto / upto[:, -1:]
