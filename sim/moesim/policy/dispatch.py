"""Which replica of an expert takes a token.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``R`` replicas, ``E``
experts, ``G`` GPUs.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from moesim.policy.replica import LeastLoaded, LinearProgram, RandomReplica
from moesim.spec.placement import Placement
from moesim.types import Ids, Ints, Slots

_CELLS = 1 << 13
"""(Layer, token) cells handled together: what keeps the work in the cache."""
MOST_ENTRIES = 1 << 22
"""Largest table of turns."""


@dataclass(frozen=True, slots=True)
class RoundRobinReplica:
    """Take replicas in turn by the token's place in the batch, as vLLM does."""

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Slots:
        """Return ``(T, L, k)``: replica ``(t * k + j) mod count`` of each expert."""
        tokens, _, top_k = ids.shape
        place = np.arange(tokens * top_k).reshape(tokens, top_k)
        period = int(np.lcm.reduce(np.unique(placement.replicas)))
        if period * placement.replicas.size > MOST_ENTRIES:
            return _by_turn(place, ids, placement)
        return _by_table(_turn_table(placement, period), place % period, ids)


@dataclass(frozen=True, slots=True)
class LocalFirst:
    """Take a replica on the token's own GPU if there is one, else by the GPU's number.

    A source always sends an expert's tokens to the same replica, as SGLang's static
    table does.
    """

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Slots:
        """Return ``(T, L, k)`` from a table by source GPU."""
        return _by_table(_home_table(placement), source[:, None], ids)


@lru_cache(maxsize=4)
def _turn_table(placement: Placement, period: int) -> Slots:
    """Return ``(L, period, E)``: the slot of each expert at each turn of all."""
    turn = np.arange(period)[:, None] % placement.replicas[:, None]
    slots = np.take_along_axis(placement.log2phy.swapaxes(1, 2), turn, axis=1)
    return _small(slots, placement)


@lru_cache(maxsize=4)
def _home_table(placement: Placement) -> Slots:
    """Return ``(L, G, E)``: the slot that each source uses for each expert."""
    turn = np.arange(placement.gpus)[:, None] % placement.replicas[:, None]
    slots = np.take_along_axis(placement.log2phy.swapaxes(1, 2), turn, axis=1)
    # Of several on one GPU the last that is written stays: that is the first.
    own = placement.log2phy[:, :, ::-1]
    layer, expert, _ = np.ogrid[: own.shape[0], : own.shape[1], :1]
    slots[layer, own // placement.slots_per_gpu, expert] = own
    return _small(slots, placement)


def _small(slots: Ints, placement: Placement) -> Slots:
    """Return the same slots in the smallest type."""
    return slots.astype(np.min_scalar_type(placement.phy2log.shape[1]), order="C")


def _by_table(table: Slots, row: Ints, ids: Ids) -> Slots:
    """Return ``(T, L, k)``: entry `row`, ``(T, k)`` or ``(T, 1)``, of each expert.

    In memory the axes go the other way round, as those of `draw_experts` do.
    """
    (_, layers, tokens), (_, rows, experts) = ids.T.shape, table.shape
    slots = np.empty(ids.T.shape, table.dtype)
    for start in range(0, tokens, _CELLS):
        some = slice(start, min(start + _CELLS, tokens))
        pace = max(1, _CELLS // (some.stop - start))
        shift = np.arange(min(pace, layers))[:, None] * (rows * experts)
        place = shift + (row[some].T * experts)[:, None]
        for first in range(0, layers, pace):
            these = slice(first, first + pace)
            chosen = ids.T[:, these, some]
            entry = chosen + place[:, : chosen.shape[1]]
            slots[:, these, some] = table[these].ravel().take(entry, mode="clip")
    return slots.T


def _by_turn(place: Ints, ids: Ids, placement: Placement) -> Slots:
    """Return ``(T, L, k)`` by places in the batch, where a table would be too large."""
    layers, experts, width = placement.log2phy.shape
    cell = ids + (np.arange(layers) * experts)[:, None]
    turn = place[:, None] % placement.replicas.ravel().take(cell)
    return placement.log2phy.ravel().take(cell * width + turn)


DISPATCHES: dict[
    str,
    type[RoundRobinReplica | LocalFirst | RandomReplica | LeastLoaded | LinearProgram],
] = {
    "round_robin": RoundRobinReplica,
    "local_first": LocalFirst,
    "random": RandomReplica,
    "least_loaded": LeastLoaded,
    "lp": LinearProgram,
}
