"""What a pass asks of the all-to-all, from its tokens: gate, choose replicas, count.

Axes: ``M`` requests of the pass, ``T`` tokens, ``L`` MoE layers, ``k`` experts of a
token, ``S`` slots of a GPU, ``G`` GPUs, ``R`` data-parallel ranks.
"""

from dataclasses import dataclass, replace

import numpy as np

from moesim.cost.exchange import ExchangeLoad, exchange_load, slot_counts
from moesim.cost.partial import partial_load
from moesim.engine.assemble.overflow import Admitted, Further, admit
from moesim.engine.draft import Draft, sources
from moesim.errors import InputError
from moesim.policy.bundle import Policy
from moesim.policy.capacity import Unlimited
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.path import Watched
from moesim.policy.waterfill import with_shared
from moesim.routing.further import Tasteful, further
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Bools, Ids, Ints, Slots

REACH = 8
"""Experts beyond its own that a token may be sent to, unless its policy says."""


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """Routes the tokens of passes, one by one."""

    system: System
    source: RoutingSource
    policy: Policy

    def load(self, draft: Draft, padding: Ints) -> tuple[ExchangeLoad, Ints]:
        """Return the load of a pass, and the part of its slots that padding takes.

        Parameters
        ----------
        draft : Draft
            What runs.
        padding : (R,) array of int
            How many padding rows of each rank load the first experts.
        """
        system = self.system
        real = sources(draft.rank, draft.chunk, system)
        ids = self.source.route(keys_of(draft))
        if type(self.policy.admit) is not Unlimited:
            return self._limited(ids, keys_of(draft), real, padding)
        fake = sources(np.arange(system.ranks), padding, system)
        if not len(fake):
            slots = self._slots(ids, real)
            load = exchange_load(slots, real, system)
            return load, np.zeros_like(load.slots)
        ids = np.concatenate([ids, self._fake(len(fake))])
        source = np.concatenate([real, fake])
        slots = self._slots(ids, source)
        load = exchange_load(slots, source, system)
        return load, slot_counts(slots[len(real) :], system)

    def _slots(self, ids: Ids, source: Ints, kept: Bools | None = None) -> Slots:
        """Return the slots of all choices, those of fused shared experts included."""
        slots = checked_slots(self.policy, ids, source, self.system.placement)
        if not self.system.fuses:
            return slots
        return with_shared(slots, source, self.system, kept)

    def _limited(
        self, ids: Ids, keys: TokenKeys, real: Ints, padding: Ints
    ) -> tuple[ExchangeLoad, Ints]:
        """Return the same where experts take so many tokens only, and any padding."""
        system, admitted = self.system, limited(self.policy, self.source, keys, ids)
        fake = sources(np.arange(system.ranks), padding, system)
        ids = np.concatenate([admitted.ids, self._fake(len(fake))])
        kept = np.ones(ids.shape, bool)
        kept[: len(real)] = admitted.kept
        source = np.concatenate([real, fake])
        slots = self._slots(ids, source, kept)
        if system.fuses:
            shared = np.ones((*ids.shape[:2], 1), bool)
            kept = np.concatenate([kept, shared], axis=2)
        load = replace(
            partial_load(slots, kept, source, system),
            dropped=admitted.dropped,
            rerouted=admitted.rerouted,
        )
        return load, slot_counts(slots[len(real) :], system)

    def _fake(self, rows: int) -> Ids:
        top_k = self.system.model.top_k
        shape = (rows, self.source.layers, top_k)
        return np.broadcast_to(np.arange(top_k, dtype=np.uint16), shape)


def limited(
    policy: Policy, source: RoutingSource, keys: TokenKeys, ids: Ids
) -> Admitted:
    """Return what is left of ``(T, L, k)`` choices within the policy's capacity.

    Raises
    ------
    InputError
        A role of the user's own gives no number of tokens.
    """
    tokens, _, top_k = ids.shape
    room = policy.admit.room(tokens, top_k, source.experts)
    if not isinstance(room, int | np.integer) or room < 0:
        message = f"policy {policy.name!r} gave the room {room!r}; a number of tokens "
        raise InputError(message + "from 0 is expected")
    if isinstance(source, Watched):
        source = source.source
    following: Further | None = None
    if getattr(policy.admit, "overflow", "drop") == "reroute":
        assert isinstance(source, Tasteful)  # `policy.steer` refuses all others
        reach = int(getattr(policy.admit, "reach", REACH))

        def following(token: Ints, layer: Ints, has: Ids) -> Ids:
            return further(source, keys, (token, layer), has, reach)

    return admit(ids, int(room), source.experts, following)


def checked_slots(
    policy: Policy, ids: Ids, source: Ints, placement: Placement
) -> Slots:
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
