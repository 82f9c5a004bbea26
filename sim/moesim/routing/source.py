"""The one interface of everything that routes: tokens in, expert ids out.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moesim.types import Ids, Ints


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """Names of tokens: whose they are, of what class, and where in the sequence.

    A route depends on nothing else (and the source's seed), so the same token meets the
    same experts in whatever batch a policy puts it.
    """

    request: Ints
    klass: Ints
    position: Ints

    def __len__(self) -> int:
        """Return how many tokens there are, ``T``."""
        return len(self.request)


class RoutingSource(Protocol):
    """Decides the experts of tokens, for every MoE layer at once."""

    @property
    def layers(self) -> int:
        """MoE layers, ``L``."""
        ...

    @property
    def experts(self) -> int:
        """Logical experts of a layer, ``E``."""
        ...

    @property
    def top_k(self) -> int:
        """Experts of a token, ``k``."""
        ...

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        ...


def count(ids: Ids, experts: int) -> Ints:
    """Return ``(L, E)``: how many tokens of ``(T, L, k)`` each expert receives."""
    layers = ids.shape[1]
    flat = ids.astype(np.int64) + (np.arange(layers) * experts)[:, None]
    return np.bincount(flat.ravel(), minlength=layers * experts).reshape(
        layers, experts
    )
