"""Latent routing: what a token is about decides its experts in every layer.

Each token belongs to a cluster, which it mostly shares with its neighbours; each cluster
has a popularity of its own in every layer, tilted by the request's domain. Layers are
thereby dependent without one causing the next, as in recorded logs.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``Z`` clusters, ``D`` domains.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.routing.counter import root, token_keys, uniform
from moesim.routing.draw import Sizes, check_range, draw_experts, refuse
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Law
from moesim.streams import stream
from moesim.types import Floats, Ids, Ints

REACH = 64
"""A stretch of one cluster ends at the latest at multiples of this many positions."""


@dataclass(frozen=True)
class Latent:
    """Domains and token clusters give each layer its popularity.

    The defaults were fitted to a recorded DeepSeek-V2-Lite log (26 layers, 64 experts,
    top 6, intent-recognition prompts); what they reach stands in
    ``tests/routing/test_latent.py``.

    Parameters
    ----------
    domains : int
        Kinds of requests; a request's class is its domain (modulo their number).
    clusters : int
        Kinds of tokens.
    spread : float
        Standard deviation of a cluster's log weights, independent in each layer.
    tilt : float
        Standard deviation of what a domain adds to the log weights of all its tokens.
    focus : float
        How unevenly a domain uses the clusters: standard deviation of log shares.
    stickiness : float
        Probability that a token keeps its predecessor's cluster.
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    domains: int = 4
    clusters: int = 32
    spread: float = 1.5
    tilt: float = 0.5
    focus: float = 0.5
    stickiness: float = 0.3

    def __post_init__(self) -> None:
        problems = check_range("domains", self.domains, 1, 10_000)
        problems += check_range("clusters", self.clusters, 1, 10_000)
        for key in ("spread", "tilt", "focus"):
            problems += check_range(key, getattr(self, key), 0, 10)
        refuse(problems + check_range("stickiness", self.stickiness, 0, 1))

    @cached_property
    def _law(self) -> Law:
        """One row of weights for each (domain, cluster, layer)."""
        rng = stream(self.seed, "latent popularity")
        shape = (self.layers, self.experts)
        cluster = rng.standard_normal((1, self.clusters, *shape))
        domain = rng.standard_normal((self.domains, 1, *shape))
        logs = self.spread * cluster + self.tilt * domain
        return self._sizes.law(np.exp(logs).reshape(-1, self.experts))

    @cached_property
    def _edges(self) -> Floats:
        """``(D, Z)``: cumulative shares of the clusters in each domain."""
        rng = stream(self.seed, "latent shares")
        weights = np.exp(
            self.focus * rng.standard_normal((self.domains, self.clusters))
        )
        return np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(
            self.layers,
            self.experts,
            self.top_k,
            self.groups,
            self.top_groups,
            self.seed,
        )

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self._sizes, self._law, keys, self._rows)

    def clusters_of(self, keys: TokenKeys) -> Ints:
        """Return ``(T,)``: each token's cluster, the one drawn where its stretch began."""
        origin = root(self.seed, "latent clusters")
        chance = uniform(token_keys(origin, keys.request, self._begin(keys)))
        edges = self._edges[keys.klass % self.domains]
        found = (chance[:, None] > edges).sum(axis=1)
        return np.minimum(found, self.clusters - 1)

    def _begin(self, keys: TokenKeys) -> Ints:
        """Return ``(T,)``: the position at which each token's stretch began.

        A position begins a stretch by a chance of its own, so nothing has to be
        remembered: at most `REACH` - 1 positions are looked at, those behind a token.
        """
        origin = root(self.seed, "latent switches")
        begin = keys.position.copy()
        open_ = np.arange(len(keys))
        for _ in range(REACH):
            at = begin[open_]
            chance = uniform(token_keys(origin, keys.request[open_], at))
            goes_on = (chance < self.stickiness) & (at % REACH > 0)
            open_ = open_[goes_on]
            if not len(open_):
                break
            begin[open_] -= 1
        return begin

    def _rows(self, keys: TokenKeys) -> Ints:
        kind = (keys.klass % self.domains) * self.clusters + self.clusters_of(keys)
        return kind[:, None] * self.layers + np.arange(self.layers)
