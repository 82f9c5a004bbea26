"""Passes of several replications priced together, as one pass of a cluster of copies.

Nothing that a pass costs one GPU depends on another instance's GPUs. So ``n`` passes of
one system are one pass of a system with ``n`` times its nodes, whose experts of copy
``j`` are the logical experts ``j E`` up to ``(j + 1) E``; copy ``j`` owns a block of
GPUs, ranks and slots. Every function of a system does for the copies what it does for
one, number by number; only what depends on the seed, or on a token's place in its own
batch, is done copy by copy.

Axes: ``n`` orders, ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``S``
slots of a GPU, ``G`` GPUs of one copy, ``E`` experts of one copy, ``R`` ranks, ``C``
port classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moesim.cost.exchange import ExchangeLoad, exchange_load
from moesim.engine.assemble.assembler import Assembler, Loads
from moesim.engine.assemble.tokens import TokenLoad, checked_slots, keys_of
from moesim.engine.draft import Draft, sources
from moesim.engine.microbatch import MicroBatch
from moesim.policy.bundle import Policy
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.waterfill import with_shared
from moesim.routing.draw import cut
from moesim.routing.source import TokenKeys
from moesim.routing.synthetic import Uniform
from moesim.routing.united import United, unite
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Ids, Ints, Slots


@dataclass(frozen=True, slots=True)
class Order:
    """A draft that waits to be routed and priced.

    Parameters
    ----------
    draft : Draft
        What runs.
    padding : (R,) array of int
        How many of a rank's padding rows load the first experts.
    loads : Loads
        Where its instance's loads come from.
    lane : int
        Number of its instance.
    """

    draft: Draft
    padding: Ints
    loads: Loads
    lane: int


class Ensemble:
    """Prices the orders of several replications of one system at once."""

    def __init__(self, system: System, policy: Policy, loads: Sequence[Loads]) -> None:
        routed = [each.source for each in loads if isinstance(each, TokenLoad)]
        self.system = system
        self.policy = policy
        self.united = unite(routed) if len(routed) == len(loads) else None
        self.assemblers: dict[int, Assembler] = {}

    def assemble(self, orders: Sequence[Order]) -> MicroBatch:
        """Return one micro-batch of all orders, a block of GPUs for each.

        Its number and instants mean nothing, and guesses are not made.
        """
        assembler = self._assembler(len(orders))
        assembler.loads = Joined(
            self.system, assembler.system, self.policy, orders, self.united
        )
        draft = merged([order.draft for order in orders], self.system.ranks)
        batch = assembler.assemble(draft, np.zeros_like(draft.padding))
        if self.system.tensor_parallel == 1:
            return batch
        every = np.arange(self.system.ranks)
        drafts = [order.draft for order in orders]
        return replace(
            batch,
            source_tokens=self._rows([(draft.rank, draft.chunk) for draft in drafts]),
            source_padding=self._rows([(every, draft.padding) for draft in drafts]),
        )

    def _rows(self, dealt: Sequence[tuple[Ints, Ints]]) -> Ints:
        """Return how many rows enter at each GPU: every copy deals out its own."""
        gpus = self.system.topology.gpus
        held = [sources(rank, rows, self.system) for rank, rows in dealt]
        return np.concatenate([np.bincount(gpu, minlength=gpus) for gpu in held])

    def _assembler(self, count: int) -> Assembler:
        """Return the assembler of so many copies, which knows their prices."""
        if count not in self.assemblers:
            system, model = copied(self.system, count), self.system.model
            layers = len(model.moe_layers)
            idle = Uniform(layers=layers, experts=model.experts, top_k=model.top_k)
            self.assemblers[count] = Assembler(system, idle, Policy())
        return self.assemblers[count]


@dataclass(frozen=True, slots=True)
class Joined:
    """The loads of some orders, side by side.

    Parameters
    ----------
    one, all : System
        A single copy, and all of them.
    policy : Policy
        Chooses replicas.
    orders : sequence of n Order
        Whose loads.
    united : United or None
        The sources of all lanes as one, if they are of a kind.
    """

    one: System
    all: System
    policy: Policy
    orders: Sequence[Order]
    united: United | None

    def load(self, draft: Draft, _: Ints) -> tuple[ExchangeLoad, Ints]:
        """Return the load of all orders, and the part of its slots that is padding."""
        orders = self.orders
        routed = all(isinstance(order.loads, TokenLoad) for order in orders)
        if not routed or any(order.padding.any() for order in orders):
            return self._side_by_side()
        slots = self._slots(self._routes(keys_of(draft)))
        gpus = self.one.topology.gpus
        held = np.concatenate(
            [
                sources(order.draft.rank, order.draft.chunk, self.one) + copy * gpus
                for copy, order in enumerate(orders)
            ]
        )
        if self.all.fuses:
            slots = with_shared(slots, held, self.all, blocks=len(orders))
        load = exchange_load(slots, held, self.all)
        return load, np.zeros_like(load.slots)

    @property
    def tokens(self) -> Ints:
        """``(n,)``: tokens of each order."""
        return np.array([int(order.draft.chunk.sum()) for order in self.orders])

    def _routes(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: experts of all tokens, as numbered in their own copy."""
        lane = np.array([order.lane for order in self.orders])
        if self.united:
            return self.united.route(keys, np.repeat(lane, self.tokens))
        parts, first = [], 0
        for order, count in zip(self.orders, self.tokens.tolist(), strict=True):
            assert isinstance(order.loads, TokenLoad)
            own = cut(keys, first, first + count)
            parts.append(order.loads.source.route(own))
            first += count
        return np.concatenate(parts)

    def _slots(self, ids: Ids) -> Slots:
        """Return ``(T, L, k)``: slots of all tokens, numbered over all copies."""
        own, tokens = self.one.placement, self.tokens
        width = np.arange(len(tokens)) * own.phy2log.shape[1]
        offset = np.repeat(width, tokens)[:, None, None]
        if has_one_slot_each(own, self.policy):
            table = own.log2phy[:, :, 0]
            cell = ids + (np.arange(len(table)) * table.shape[1])[:, None]
            return table.take(cell) + offset
        parts, first = [], 0
        for order, count in zip(self.orders, tokens.tolist(), strict=True):
            held = sources(order.draft.rank, order.draft.chunk, self.one)
            mine = ids[first : first + count]
            parts.append(checked_slots(self.policy, mine, held, own))
            first += count
        return np.concatenate(parts) + offset

    def _side_by_side(self) -> tuple[ExchangeLoad, Ints]:
        """Return the loads as each instance finds its own."""
        found = [order.loads.load(order.draft, order.padding) for order in self.orders]
        loads, fakes = zip(*found, strict=True)
        classes, gpus, _ = loads[0].traffic.shape
        copies = len(loads)
        hops = np.zeros((classes, copies, gpus, copies, gpus), loads[0].traffic.dtype)
        for copy, load in enumerate(loads):
            hops[:, copy, :, copy] = load.traffic
        whole = ExchangeLoad(
            slots=np.concatenate([load.slots for load in loads], axis=-1),
            tx=np.concatenate([load.tx for load in loads], axis=-1),
            rx=np.concatenate([load.rx for load in loads], axis=-1),
            traffic=hops.reshape(classes, copies * gpus, copies * gpus),
            rows=np.concatenate([load.rows for load in loads], axis=-1),
        )
        return whole, np.concatenate(fakes, axis=-1)


def has_one_slot_each(placement: Placement, policy: Policy) -> bool:
    """Tell whether no replica has to be chosen: experts have one slot each."""
    ours = type(policy.dispatch) in DISPATCHES.values()
    return ours and placement.log2phy.shape[2] == 1


def copied(system: System, count: int) -> System:
    """Return `count` copies of a system as one, copy after copy."""
    topology, placement = system.topology, system.placement
    experts = placement.replicas.shape[1]
    slots = [placement.phy2log + copy * experts for copy in range(count)]
    return replace(
        system,
        topology=replace(
            topology, nodes=topology.nodes * count, speed=topology.speed * count
        ),
        placement=Placement(np.concatenate(slots, axis=1), topology.gpus * count),
    )


def merged(drafts: Sequence[Draft], ranks: int) -> Draft:
    """Return the drafts as one, each on ranks of its own."""

    def join(name: str) -> Ints:
        return np.concatenate([getattr(draft, name) for draft in drafts])

    rank = [draft.rank + copy * ranks for copy, draft in enumerate(drafts)]
    return replace(
        drafts[0],
        requests=join("requests"),
        rank=np.concatenate(rank),
        klass=join("klass"),
        start=join("start"),
        chunk=join("chunk"),
        samples=join("samples"),
        padding=join("padding"),
    )
