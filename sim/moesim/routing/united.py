"""Several sources of one kind that route at once: seeds differ, the law's shape does not.

Every token draws the numbers that it draws from its own source alone, since they follow
from the seed, the request and the position. So the sources' tables stand one below the
other, and a token knows which are its own.

Axes: ``B`` sources, ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a
token.
"""

from collections.abc import Sequence

import numpy as np

from moesim.routing.counter import Bits, root, step, token_keys
from moesim.routing.draw import CHUNK, cut
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.routing.synthetic import Lognormal, Uniform, Zipf, zipf_weights
from moesim.routing.topk import LAYER_STRIDE, Cells, distinct
from moesim.types import Floats, Ids, Ints

Plain = Uniform | Zipf | Lognormal
"""Sources that draw every token of a layer by the same weights."""


class United:
    """Sources that differ in nothing but the seed, or in what follows from it."""

    def __init__(self, sources: Sequence[Plain]) -> None:
        first = sources[0]
        weights = np.concatenate([weights_of(source) for source in sources])
        self.sizes = first
        self.law = first.law(weights)
        self.origin: Bits = np.array([root(s.seed, "routing") for s in sources])
        steps = [step(layer * LAYER_STRIDE) for layer in range(first.layers)]
        self.layer: Bits = np.array(steps)
        rows = np.arange(len(sources) * first.layers).reshape(-1, first.layers)
        self.rows: Bits = rows.astype(np.uint64)

    def route(self, keys: TokenKeys, source: Ints) -> Ids:
        """Return ``(T, L, k)``: the experts that each token's source gives it.

        Parameters
        ----------
        keys : TokenKeys
            The tokens.
        source : (T,) array of int
            Number of the source that each belongs to.
        """
        layers, top_k = self.sizes.layers, self.sizes.top_k
        ids = np.empty((top_k, layers, len(keys)), np.uint16)
        pace = max(1, CHUNK // (layers * max(top_k, 8)))
        for first in range(0, len(keys), pace):
            part, mine = cut(keys, first, first + pace), source[first : first + pace]
            start = token_keys(self.origin[mine], part.request, part.position)
            cells = Cells(
                (self.layer[:, None] + start).ravel(), self.rows[mine].T.ravel()
            )
            drawn = distinct(self.law, cells, top_k)
            ids[:, :, first : first + pace] = drawn.reshape(top_k, layers, -1)
        return ids.T


def weights_of(source: Plain) -> Floats:
    """Return ``(L, E)``: the popularity of each expert in each layer."""
    if isinstance(source, Zipf):
        return zipf_weights(source, source.exponent)
    if isinstance(source, Lognormal):
        return source.weights
    return np.ones((source.layers, source.experts))


def unite(sources: Sequence[RoutingSource]) -> United | None:
    """Return the sources as one, or None where they are of another kind."""
    plain = [s for s in sources if isinstance(s, Uniform | Zipf | Lognormal)]
    return United(plain) if len(plain) == len(sources) else None
