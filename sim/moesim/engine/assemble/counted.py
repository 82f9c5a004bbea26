"""What a pass asks of the all-to-all, from counts of its tokens alone.

The counts of the experts are drawn for the pass as a whole (`routing.pass_counts`). How
they divide over an expert's replicas, how often a token meets a GPU or node twice, and
who sends to whom, is taken at its mean: the first two from pilot tokens that no request
has, the last from the share of tokens that each GPU holds. Small passes are routed
token by token.

Axes: ``L`` MoE layers, ``E`` experts, ``P`` physical slots of a layer, ``S`` slots of a
GPU, ``G`` GPUs, ``V`` nodes of ``I`` GPUs, ``C`` port classes, ``T`` tokens, ``R``
replicas.
"""

from typing import Protocol, runtime_checkable

import numpy as np

from moesim.cost.exchange import ExchangeLoad
from moesim.cost.pass_ import NO_ROWS
from moesim.engine.assemble.tokens import TokenLoad
from moesim.engine.assemble.ways import Ways, ways_of
from moesim.engine.draft import Draft, sources
from moesim.errors import InputError
from moesim.policy.bundle import Policy
from moesim.policy.compose import ArrivalOrder
from moesim.policy.dispatch import LocalFirst, RoundRobinReplica
from moesim.policy.rebalance import Still
from moesim.routing.pass_counts import PassCounts
from moesim.routing.source import RoutingSource
from moesim.spec.system import SharedExperts, System
from moesim.spec.topology import NIC, NVLINK
from moesim.types import Floats, Ints

FEWEST_TOKENS = 128
"""Tokens of a pass from which counts are drawn; fewer are routed one by one."""


@runtime_checkable
class Countable(Protocol):
    """A source whose tokens are all drawn alike, so that a pass is but a number."""

    draw: str

    def pass_counts(self) -> PassCounts:
        """Return what draws the counts of passes."""
        ...


def refusal(policy: Policy, shared: SharedExperts = "before") -> str:
    """Return why counts alone do not suffice, or nothing if they do.

    Parameters
    ----------
    policy : Policy
        Who decides.
    shared : str
        How shared experts are served.
    """
    if shared in ("fused", "waterfill"):
        return f"kernels.shared_experts: {shared} gives each token one more choice"
    if type(policy.compose) is not ArrivalOrder:
        return f"policy {policy.name!r} composes micro-batches by their tokens"
    if type(policy.dispatch) not in (RoundRobinReplica, LocalFirst):
        return f"{type(policy.dispatch).__name__} chooses replicas token by token"
    if policy.changes_outputs:
        return f"policy {policy.name!r} changes the choices of single tokens"
    if type(policy.rebalance) is not Still:
        return "placement.rebalance moves experts, and counts know one placement"
    return ""


class CountedLoad:
    """Draws the loads of passes.

    Raises
    ------
    InputError
        The policy needs tokens: why.
    """

    def __init__(self, system: System, source: RoutingSource, policy: Policy) -> None:
        reason = refusal(policy, system.shared_experts)
        if reason or not isinstance(source, Countable):
            raise InputError(f"routing.draw: counts do not suffice: {reason}")
        self.system = system
        self.few = TokenLoad(system, source, policy)
        self.counts = source.pass_counts()
        self.ways = ways_of(system, source, policy)

    def load(self, draft: Draft, padding: Ints) -> tuple[ExchangeLoad, Ints]:
        """Return the load of a pass, and the part of its slots that padding takes."""
        tokens = int(draft.chunk.sum())
        if tokens < FEWEST_TOKENS or padding.any():
            return self.few.load(draft, padding)
        system = self.system
        experts = self.counts.draw(draft.number, tokens)
        slots = self.ways.slots(experts)
        held = sources(draft.rank, draft.chunk, system)
        share = np.bincount(held, minlength=system.topology.gpus) / tokens
        layers, gpus = len(slots), system.topology.gpus
        by_slot = np.ascontiguousarray(slots.reshape(layers, gpus, -1).swapaxes(1, 2))
        exchange = normal if system.dispatch == "normal" else low_latency
        arriving = by_slot.sum(axis=1)
        tx, rx, traffic = exchange(arriving, share, self.ways)
        rows = NO_ROWS
        if system.dispatch == "normal":
            rows = whole(arriving * self.ways.distinct_gpus)
        load = ExchangeLoad(
            slots=by_slot,
            tx=tx,
            rx=rx,
            traffic=traffic,
            rows=rows,
        )
        return load, np.zeros_like(load.slots)


Ports = tuple[Ints, Ints, Floats]


def low_latency(arriving: Ints, share: Floats, ways: Ways) -> Ports:
    """Return the ports' copies with one copy per choice, and what goes to whom.

    Parameters
    ----------
    arriving : (L, G) array of int
        Choices that fall on each GPU.
    share : (G,) array of float
        Share of the tokens that each GPU holds.
    """
    nodes = ways.nodes
    per_node = len(share) // nodes
    held = share.reshape(nodes, -1).sum(axis=1).repeat(per_node)
    near = whole(arriving * held)
    inside = by_node(near, nodes).repeat(per_node, axis=1)
    near_sent = whole(inside * (share / np.maximum(held, np.finfo(float).tiny)))
    sent = whole(arriving.sum(axis=1, keepdims=True) * share)
    tx = np.stack([near_sent, sent - near_sent], axis=1)
    rx = np.stack([near, arriving - near], axis=1)
    hops = share[:, None] * arriving.sum(axis=0)
    same = ways.same_node
    return tx, rx, np.stack([hops * same, hops * ~same])


def normal(arriving: Ints, share: Floats, ways: Ways) -> Ports:
    """Return the ports' copies with one copy per node, then per GPU, and who to whom.

    A token enters a node at the GPU of its source's local index, so that GPU holds, for
    this purpose, the tokens of all sources of its index.
    """
    nodes = ways.nodes
    per_node = len(share) // nodes
    met = arriving * ways.distinct_gpus
    entering = by_node(arriving, nodes) * ways.distinct_nodes
    entered = entering.repeat(per_node, axis=1)
    inside = by_node(met, nodes).repeat(per_node, axis=1)
    index = np.tile(share.reshape(nodes, -1).sum(axis=0), nodes)
    tx, rx = np.empty((2, len(met), 2, len(share)))
    np.multiply(index, inside - met, out=tx[:, NVLINK])
    np.multiply(share, entering.sum(axis=1, keepdims=True) - entered, out=tx[:, NIC])
    np.multiply(1 - index, met, out=rx[:, NVLINK])
    np.multiply(index - share, entered, out=rx[:, NIC])
    hops = np.empty((2, len(share), len(share)))
    np.multiply(ways.same_node * index[:, None], met.sum(axis=0), out=hops[NVLINK])
    np.multiply(ways.same_index * share[:, None], entered.sum(axis=0), out=hops[NIC])
    for port in hops:
        np.fill_diagonal(port, 0.0)
    return whole(tx), whole(rx), hops


def by_node(values: Ints | Floats, nodes: int) -> Floats:
    """Return ``(L, V)``: sums over the GPUs of each node, exact as far as 2**53."""
    layers, gpus = values.shape
    ones = np.ones(gpus // nodes)
    return values.reshape(layers, nodes, -1).astype(float) @ ones


def whole(wanted: Floats) -> Ints:
    """Return whole numbers near the wanted; sums over the last axis stay, rounded."""
    # The noise of a float sum must not decide a tie, or two equal sums may differ.
    edges = np.cumsum(wanted, axis=-1)
    edges += 0.5 + 1e-6
    counts = edges.astype(np.int64)
    counts[..., 1:] -= counts[..., :-1].copy()
    return counts
