"""From the tokens of a pass to a priced micro-batch: gate, dispatch, count, price.

Axes: ``M`` requests of the pass, ``T`` tokens, ``L`` MoE layers, ``k`` experts of a
token, ``G`` GPUs, ``R`` data-parallel ranks.
"""

from dataclasses import dataclass

import numpy as np

from moesim.cost.exchange import copies, slot_counts, traffic
from moesim.cost.pass_ import PassLoad
from moesim.cost.price import copy_bytes, price
from moesim.engine.clock import PS_PER_S
from moesim.engine.microbatch import MicroBatch, quantise
from moesim.errors import InputError
from moesim.policy.bundle import Policy
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.predict import GlobalPopularity, guess_for
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Floats, Ids, Ints


@dataclass(frozen=True, slots=True)
class Draft:
    """What the instance has decided to run: ``(M,)`` columns.

    Parameters
    ----------
    number, now : int
        Number of the micro-batch, and the time.
    oldest_arrival_s : float
        When its oldest request arrived.
    requests, rank, klass : (M,) arrays of int
        Who, on which data-parallel rank, of what class.
    start, chunk : (M,) arrays of int
        First position computed in this pass, and how many.
    samples : (M,) array of int
        1 where the pass ends with a new token, else 0.
    padding : (R,) array of int
        Rows added to each rank.
    """

    number: int
    now: int
    oldest_arrival_s: float
    requests: Ints
    rank: Ints
    klass: Ints
    start: Ints
    chunk: Ints
    samples: Ints
    padding: Ints


class Assembler:
    """Prices the drafts of one instance."""

    def __init__(self, system: System, source: RoutingSource, policy: Policy) -> None:
        self.system = system
        self.source = source
        self.policy = policy
        self.popularity = GlobalPopularity(system)

    def assemble(self, draft: Draft, routed_padding: Ints) -> MicroBatch:
        """Return the micro-batch of a draft, routed and priced.

        Parameters
        ----------
        draft : Draft
            What runs.
        routed_padding : (R,) array of int
            How many of a rank's padding rows load the first experts: none, unless the
            engine has that known fault.
        """
        system = self.system
        real = sources(draft.rank, draft.chunk, system)
        fake = sources(np.arange(system.ranks), routed_padding, system)
        ids = np.concatenate([self.source.route(keys_of(draft)), self._fake(len(fake))])
        source = np.concatenate([real, fake])
        slots = checked_slots(self.policy, ids, source, system.placement)
        load = self._load(draft, slots, source)
        cost = quantise(price(load, system))
        experts_s = cost.experts.sum(axis=1) / PS_PER_S
        row_bytes = copy_bytes(system)[:, None, None]
        hops = traffic(slots, source, system).sum(axis=0)
        tx, rx = load.tx.sum(axis=0), load.rx.sum(axis=0)
        gpus = system.topology.gpus
        return MicroBatch(
            number=draft.number,
            admitted=draft.now,
            requests=draft.requests,
            chunk=draft.chunk,
            oldest_arrival_s=draft.oldest_arrival_s,
            load=load,
            cost=cost,
            source_tokens=np.bincount(real, minlength=gpus),
            source_padding=np.bincount(
                sources(np.arange(system.ranks), draft.padding, system), minlength=gpus
            ),
            padding_slots=slot_counts(slots[len(real) :], system),
            sent=row_bytes * np.stack([tx, rx]),
            received=row_bytes * np.stack([rx, tx]),
            traffic=row_bytes * np.stack([hops, hops.T]),
            experts_s=experts_s,
            guess_s=self._guess(experts_s, int(draft.chunk.sum())),
        )

    def _fake(self, rows: int) -> Ids:
        top_k = self.system.model.top_k
        shape = (rows, self.source.layers, top_k)
        return np.broadcast_to(np.arange(top_k, dtype=np.uint16), shape)

    def _guess(self, experts_s: Floats, tokens: int) -> Floats:
        knowledge = self.policy.knowledge
        predicted = self.popularity.expect(tokens) if knowledge == "predicted" else None
        return guess_for(knowledge, experts_s, predicted)

    def _load(self, draft: Draft, slots: Ints, source: Ints) -> PassLoad:
        system = self.system
        context = draft.start + draft.chunk
        pairs = draft.chunk * draft.start + draft.chunk * (draft.chunk + 1) // 2
        tx, rx = copies(slots, source, system)
        return PassLoad(
            tokens=on_gpus(draft.rank, draft.chunk, system),
            padding=np.repeat(draft.padding, system.tensor_parallel),
            sequences=on_gpus(draft.rank, draft.samples, system),
            attended=on_gpus(draft.rank, pairs, system),
            kv_read=on_gpus(draft.rank, context, system),
            slots=slot_counts(slots, system),
            tx=tx,
            rx=rx,
        )


def checked_slots(policy: Policy, ids: Ids, source: Ints, placement: Placement) -> Ints:
    """Return the slots that the policy's dispatch role chooses.

    Raises
    ------
    InputError
        A role of the user's own gives anything but a slot of the wanted expert.
    """
    slots = policy.dispatch.slots(ids, source, placement)
    if type(policy.dispatch) in DISPATCHES.values():
        return slots
    slots = np.asarray(slots)
    good = slots.shape == ids.shape and slots.dtype.kind in "iu"
    if good and slots.size:
        good = bool((slots >= 0).all() and (slots < placement.phy2log.shape[1]).all())
        layer = np.arange(ids.shape[1])[None, :, None]
        good = good and bool((placement.phy2log[layer, slots] == ids).all())
    if not good:
        message = f"policy {policy.name!r}: slots() must give a slot of each wanted "
        raise InputError(message + f"expert, whole numbers of shape {ids.shape}")
    return slots


def keys_of(draft: Draft) -> TokenKeys:
    """Return the ``T`` tokens of a draft, request by request."""
    first = np.cumsum(draft.chunk) - draft.chunk
    offset = np.arange(int(draft.chunk.sum())) - np.repeat(first, draft.chunk)
    return TokenKeys(
        request=np.repeat(draft.requests, draft.chunk),
        klass=np.repeat(draft.klass, draft.chunk),
        position=np.repeat(draft.start, draft.chunk) + offset,
    )


def sources(rank: Ints, rows: Ints, system: System) -> Ints:
    """Return the GPU at which each row enters: dealt to its rank's GPUs in turn."""
    of_rank = np.repeat(rank, rows)
    turn = np.arange(len(of_rank)) % system.tensor_parallel
    return of_rank * system.tensor_parallel + turn


def on_gpus(rank: Ints, amount: Ints, system: System) -> Ints:
    """Return ``(G,)``: each rank's total amount, on every GPU of the rank."""
    total = np.bincount(rank, amount, system.ranks).astype(np.int64)
    return np.repeat(total, system.tensor_parallel)
