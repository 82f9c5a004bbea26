"""Which replica of an expert takes a token.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``R`` replicas.
"""

from dataclasses import dataclass

import numpy as np

from moesim.spec.placement import Placement
from moesim.types import Ids, Ints


@dataclass(frozen=True, slots=True)
class RoundRobinReplica:
    """Take replicas in turn by the token's place in the batch, as vLLM does."""

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)``: replica ``(t * k + j) mod count`` of each expert."""
        tokens, layers, top_k = ids.shape
        layer = np.arange(layers)[None, :, None]
        place = np.arange(tokens * top_k).reshape(tokens, 1, top_k)
        turn = place % placement.replicas[layer, ids]
        return placement.log2phy[layer, ids, turn]


@dataclass(frozen=True, slots=True)
class LocalFirst:
    """Take a replica on the token's own GPU if there is one, else by the GPU's number.

    A source always sends an expert's tokens to the same replica, as SGLang's static
    table does.
    """

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)`` from a table by source GPU."""
        layer = np.arange(ids.shape[1])[None, :, None]
        gpu = np.arange(placement.gpus)[:, None, None, None]
        home = placement.log2phy // placement.slots_per_gpu
        own = (home == gpu).argmax(axis=-1)
        has_own = (home == gpu).any(axis=-1)
        turn = np.where(has_own, own, gpu[..., 0] % placement.replicas)
        return placement.log2phy[layer, ids, turn[source[:, None, None], layer, ids]]


DISPATCHES: dict[str, type[RoundRobinReplica | LocalFirst]] = {
    "round_robin": RoundRobinReplica,
    "local_first": LocalFirst,
}
