"""Latent routing: what a token is about decides its experts in every layer.

Each token belongs to a cluster, which it may share with its neighbours; each cluster
has a popularity of its own in every layer, tilted by the request's domain. A token
follows its cluster's favourites for some slots and draws the others by popularity.
Layers are thereby dependent without one causing the next, as in recorded logs.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``Z`` clusters, ``D`` domains.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moesim.errors import Problem
from moesim.routing.checks import check_count, check_number
from moesim.routing.counter import Bits, bits_at, root, step, token_keys, uniform
from moesim.routing.draw import Sizes, draw_experts
from moesim.routing.grouped import best_groups, group_limited_topk
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Law, PlackettLuce
from moesim.streams import stream
from moesim.types import Floats, Ids, Ints

REACH = 64
"""A stretch of one cluster ends at the latest at multiples of this many positions."""
MOST_WEIGHTS = 1 << 24
"""Largest table of weights; building it takes about a gigabyte."""


@dataclass(frozen=True)
class Latent(Sizes):
    """Domains and token clusters give each layer its popularity.

    The defaults were fitted to a recorded DeepSeek-V2-Lite log (26 layers, 64 experts,
    top 6; 8222 tokens of intent-recognition prompts; mutual information of first
    choices with as many tokens of summaries pooled in). Recorded, and the mean and
    standard deviation over 12 seeds of as many tokens of one domain (two, pooled):

    ==================================  ==============  ================
    median over layers                  recorded        defaults
    ==================================  ==============  ================
    max / mean                          3.96            3.86 +- 0.52
    coefficient of variation            0.80            0.82 +- 0.10
    normalised entropy                  0.932           0.931 +- 0.012
    share of the top 6 experts          0.268           0.274 +- 0.030
    next-token overlap (mean)           0.262           0.267 +- 0.011
    the same between strangers          0.154           0.157 +- 0.015
    8 ranks, max / mean, 64 tokens      1.48            1.48 +- 0.05
    256 / 1024 tokens                   1.45 / 1.45     1.45 / 1.44
    bits of top 1 at layer gap 1 / 2    2.42 / 2.39     2.37 / 2.35
    bits at layer gap 4 / 8             2.35 / 2.23     2.30 / 2.21
    cosine of two domains' counts       0.59 to 0.73    0.67 +- 0.06
    ==================================  ==============  ================

    What falls short: one seed is one world, and worlds differ by the standard
    deviations above (recorded domains differ more: max / mean 3.3 to 5.6); within one
    domain the first choices share 2.2 bits, where the two recorded ones share 2.8 and
    2.0; and all domains are equally skewed. Other models were not fitted: Mixtral, for
    one, is far more even (max / mean 1.1 to 1.3).

    In a group-limited model the favourites follow the model's own rule, and all experts
    of a (domain, cluster, layer) come from the groups of its favourites.

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
    loyalty : float
        Probability that the first expert of a token is its cluster's favourite, that
        the second is the second favourite if so, and so on; the rest is drawn by weight.
    focus : float
        How unevenly a domain uses the clusters: standard deviation of log shares.
    stickiness : float
        Probability that a token keeps its predecessor's cluster.
    drift : float
        Probability that a token changes its cluster once, at a layer of its own.
    """

    domains: int = 4
    clusters: int = 32
    spread: float = 1.5
    tilt: float = 0.5
    loyalty: float = 0.8
    focus: float = 1.25
    stickiness: float = 0.3
    drift: float = 0.15

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario."""
        problems = check_count("domains", self.domains, 1, MOST_WEIGHTS)
        problems += check_count("clusters", self.clusters, 1, MOST_WEIGHTS)
        for key in ("spread", "tilt", "focus"):
            problems += check_number(key, getattr(self, key), 0, 10)
        for key in ("loyalty", "stickiness", "drift"):
            problems += check_number(key, getattr(self, key), 0, 1)
        if not problems:
            most = max(1, MOST_WEIGHTS // (self.domains * self.layers * self.experts))
            problems += check_count("clusters", self.clusters, 1, most)
        return problems

    @cached_property
    def _logs(self) -> Floats:
        """``(D * Z * L, E)``: log weights of each domain and cluster in each layer."""
        rng = stream(self.seed, "latent popularity")
        shape = (self.layers, self.experts)
        cluster = rng.standard_normal((1, self.clusters, *shape))
        domain = rng.standard_normal((self.domains, 1, *shape))
        logs = self.spread * cluster + self.tilt * domain
        logs = logs.reshape(-1, self.experts)
        return logs if self.bend is None else self.bend.logs(logs)

    @cached_property
    def _favourites(self) -> NDArray[np.int32]:
        """``(k, D * Z * L)``: experts of the highest weights, as the model limits them."""
        best = group_limited_topk(self._logs, self.groups, self.top_groups, self.top_k)
        return best.T.astype(np.int32, order="C")

    @cached_property
    def _law(self) -> Law:
        """Popularity in each row, among the groups of the row's favourites."""
        allowed = best_groups(self._logs, self.groups, self.top_groups)
        return PlackettLuce.of(np.where(allowed, np.exp(self._logs), 0.0))

    @cached_property
    def _edges(self) -> Floats:
        """``(D * Z,)``: each domain's number plus its cumulative shares of clusters."""
        rng = stream(self.seed, "latent shares")
        normal = rng.standard_normal((self.domains, self.clusters))
        shares = np.cumsum(np.exp(self.focus * normal), axis=1)
        shares /= shares[:, -1:]
        return (np.arange(self.domains)[:, None] + shares).ravel()

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows, self._followed)

    def clusters_of(self, keys: TokenKeys) -> Ints:
        """Return ``(T, L)``: the cluster of each token in each layer.

        It is drawn where the token's stretch began, together with the layer from which
        on, if at all, another one takes its place.
        """
        return self._rows(keys) // self.layers % self.clusters

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        start = token_keys(
            root(self.seed, "latent clusters"), keys.request, self._begin(keys)
        )
        first, second, late = (bits_at(start, step(number)) for number in range(3))
        domain = keys.klass % self.domains
        before, after = self._kind(domain, first), self._kind(domain, second)
        layer = np.arange(self.layers)
        change = self._change(late)[:, None]
        kind = np.where(layer < change, before[:, None], after[:, None])
        return kind * self.layers + layer

    def _followed(self, keys: TokenKeys, rows: Ints) -> NDArray[np.int32]:
        """Return ``(k, T, L)``: favourites for as long as a token follows them, or -1."""
        start = token_keys(root(self.seed, "latent"), keys.request, keys.position)
        layer = np.array([step(number) for number in range(self.layers)])
        bits = bits_at(layer[:, None], start)
        bits >>= np.uint64(12)
        # `bits` + 1/2 units of 2**-52 are the uniform number (`counter.uniform`).
        least = self.loyalty ** np.arange(1, self.top_k + 1)
        least = np.ceil(least * 2.0**52 - 0.5).astype(np.int64)
        followed = self._favourites.take(rows.T, axis=1)
        followed += 1
        followed *= bits.view(np.int64) < least[:, None, None]
        followed -= 1
        return followed.swapaxes(1, 2)

    def _kind(self, domain: Ints, bits: Bits) -> Ints:
        """Return ``(T,)``: domain times Z plus a cluster drawn by the domain's shares."""
        found = np.searchsorted(self._edges, domain + uniform(bits), side="right")
        return np.clip(found, domain * self.clusters, (domain + 1) * self.clusters - 1)

    def _change(self, bits: Bits) -> Ints:
        """Return ``(T,)``: the layer at which each token changes, or the last plus 1."""
        chance = uniform(bits)
        if not self.drift:
            return np.full(len(bits), self.layers)
        place = chance * (self.layers / self.drift)
        return np.minimum(place, self.layers).astype(np.int64)

    def _begin(self, keys: TokenKeys) -> Ints:
        """Return ``(T,)``: the position at which each token's stretch began.

        A position begins a stretch by a chance of its own, so nothing has to be
        remembered: at most `REACH` positions are looked at.
        """
        origin = root(self.seed, "latent switches")
        begin = keys.position.copy()
        open_ = np.arange(len(keys))
        while len(open_):
            at = begin[open_]
            chance = uniform(token_keys(origin, keys.request[open_], at))
            open_ = open_[(chance < self.stickiness) & (at % REACH > 0)]
            begin[open_] -= 1
        return begin
