"""Synthetic routing by popularity: uniform, Zipf, log-normal, and a rush hour.

Every source is a pure function of (seed, request, class, position); its fields are what
a scenario may set, besides the sizes that the model gives. Its tables are built when
the first token is routed.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a token.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.errors import Problem
from moesim.routing.checks import check_choice, check_count, check_number
from moesim.routing.counter import root, token_keys, uniform
from moesim.routing.draw import Sizes, draw_experts
from moesim.routing.inclusion import group_inclusion, inclusion
from moesim.routing.pass_counts import PassCounts
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Law
from moesim.streams import stream
from moesim.types import Bools, Floats, Ids, Ints

STEEPEST = 10.0
"""Largest exponent or standard deviation; far beyond anything measured."""


@dataclass(frozen=True)
class Uniform(Sizes):
    """Every expert is equally likely."""

    @cached_property
    def _law(self) -> Law:
        rows = 1 if self.bend is None else self.layers
        return self.law(np.ones((rows, self.experts)))

    def pass_counts(self) -> PassCounts:
        """Return what draws the counts of whole passes."""
        return counts_of(self, np.ones((self.layers, self.experts)))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows)

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        rows = np.zeros(1, np.int64) if self.bend is None else np.arange(self.layers)
        return np.broadcast_to(rows, (len(keys), self.layers))


@dataclass(frozen=True)
class Zipf(Sizes):
    """The r-th most popular expert of a layer has weight ``r ** -exponent``.

    Each layer has an order of its own, drawn from the seed.

    Parameters
    ----------
    exponent : float
        0 is uniform; at 1, top 8 of 256, a token uses the most popular expert of a
        layer with probability 0.80.
    """

    exponent: float = 1.0

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario."""
        return check_number("exponent", self.exponent, 0, STEEPEST)

    @cached_property
    def _law(self) -> Law:
        return self.law(zipf_weights(self, self.exponent))

    def pass_counts(self) -> PassCounts:
        """Return what draws the counts of whole passes."""
        return counts_of(self, zipf_weights(self, self.exponent))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows)

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        return np.broadcast_to(np.arange(self.layers), (len(keys), self.layers))


@dataclass(frozen=True)
class Lognormal(Sizes):
    """Log weights are normal, independent between experts and layers.

    Parameters
    ----------
    sigma : float
        Standard deviation of the log weights; 0 is uniform.
    """

    sigma: float = 1.0

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario."""
        return check_number("sigma", self.sigma, 0, STEEPEST)

    @cached_property
    def _law(self) -> Law:
        return self.law(self.weights)

    @property
    def weights(self) -> Floats:
        """``(L, E)``: the popularity of each expert."""
        shape = (self.layers, self.experts)
        normal = stream(self.seed, "expert popularity").standard_normal(shape)
        return np.exp(self.sigma * normal)

    def pass_counts(self) -> PassCounts:
        """Return what draws the counts of whole passes."""
        return counts_of(self, self.weights)

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows)

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        return np.broadcast_to(np.arange(self.layers), (len(keys), self.layers))


@dataclass(frozen=True)
class RushHour(Sizes):
    """With some probability a request (or token) goes through named experts.

    Parameters
    ----------
    hot : tuple of (layer, expert)
        Where the rush is, at most one expert of a layer (layers count from 0 among the
        MoE layers). The other experts of a token come from the background, of which a
        hot expert is part: outside the rush it gets its usual share.
    probability : float
        Share of requests (or tokens) in the rush.
    per : {"request", "token"}
        What joins the rush as a whole.
    exponent : float
        Zipf exponent of the background; 0 is uniform.
    """

    hot: tuple[tuple[int, int], ...] = ()
    probability: float = 0.35
    per: str = "request"
    exponent: float = 0.0

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario."""
        problems = check_number("probability", self.probability, 0, 1)
        problems += check_choice("per", self.per, ("request", "token"))
        problems += check_number("exponent", self.exponent, 0, STEEPEST)
        return problems + self._hot_problems()

    def _hot_problems(self) -> list[Problem]:
        pairs = self.hot
        listed = isinstance(pairs, list | tuple) and all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
        )
        if not listed or not pairs:
            example = "a list such as [{layer: 2, expert: 5}]"
            found = f"found {pairs!r:.60}" if pairs else "found nothing"
            message = f"{found}, expected {example}: whom the rush passes"
            return [Problem(message, key="hot")]
        problems = []
        for number, (layer, expert) in enumerate(pairs):
            key = f"hot.{number}"
            problems += check_count(f"{key}.layer", layer, 0, self.layers - 1)
            problems += check_count(f"{key}.expert", expert, 0, self.experts - 1)
        if not problems and len({layer for layer, _ in pairs}) < len(pairs):
            message = f"found {pairs!r:.60}, expected at most one expert of a layer"
            problems = [Problem(message, key="hot")]
        return problems

    @cached_property
    def _law(self) -> Law:
        return self.law(zipf_weights(self, self.exponent))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows, self._forced)

    def in_rush(self, keys: TokenKeys) -> Bools:
        """Return ``(T,)``: whether each token is in the rush."""
        origin = root(self.seed, "rush hour")
        alone = self.per == "token"
        position = keys.position if alone else np.zeros_like(keys.position)
        chance = uniform(token_keys(origin, keys.request, position))
        return chance < self.probability

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        return np.broadcast_to(np.arange(self.layers), (len(keys), self.layers))

    def _forced(self, keys: TokenKeys, rows: Ints) -> Ints:
        everywhere = np.full(self.layers, -1)
        for layer, expert in self.hot:
            everywhere[layer] = expert
        return np.where(self.in_rush(keys)[:, None], everywhere, -1)[None]


def counts_of(sizes: Sizes, weights: Floats) -> PassCounts:
    """Return what draws the counts of passes whose tokens have ``(L, E)`` weights."""
    groups, top_groups = sizes.groups, sizes.top_groups
    if groups == top_groups:
        groups = top_groups = 1
    return PassCounts(
        inclusion(weights, sizes.top_k, groups, top_groups),
        group_inclusion(weights, groups, top_groups),
        sizes.seed,
    )


def zipf_weights(sizes: Sizes, exponent: float) -> Floats:
    """Return ``(L, E)`` Zipf weights, in each layer in an order drawn from the seed."""
    weights = np.arange(1, sizes.experts + 1) ** -float(exponent)
    rng = stream(sizes.seed, "expert popularity")
    return rng.permuted(np.tile(weights, (sizes.layers, 1)), axis=1)
