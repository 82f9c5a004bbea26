"""Synthetic routing by popularity: uniform, Zipf, log-normal, and a rush hour.

Every source is a pure function of (seed, request, class, position); its fields are what
a scenario may set, besides the sizes that the model gives.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.errors import Problem
from moesim.routing.counter import root, token_keys, uniform
from moesim.routing.draw import Sizes, check_range, draw_experts, refuse
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Law
from moesim.streams import stream
from moesim.types import Floats, Ids, Ints

PER = ("request", "token")


@dataclass(frozen=True)
class Uniform:
    """Every expert is equally likely."""

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0

    @cached_property
    def _law(self) -> Law:
        return sizes_of(self).law(np.ones((1, self.experts)))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(sizes_of(self), self._law, keys, self._row)

    def _row(self, keys: TokenKeys) -> Ints:
        return np.zeros((len(keys), self.layers), np.int64)


@dataclass(frozen=True)
class Zipf:
    """The r-th most popular expert of a layer has weight ``r ** -exponent``.

    Each layer has an order of its own, drawn from the seed.

    Parameters
    ----------
    exponent : float
        0 is uniform; 1 gives the top tenth of 64 experts about half of the draws.
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        refuse(check_range("exponent", self.exponent, 0, 10))

    @cached_property
    def _law(self) -> Law:
        weights = zipf_weights(self.layers, self.experts, self.exponent, self.seed)
        return sizes_of(self).law(weights)

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(sizes_of(self), self._law, keys, rows_by_layer(self.layers))


@dataclass(frozen=True)
class Lognormal:
    """Log weights are normal, independent between experts and layers.

    Parameters
    ----------
    sigma : float
        Standard deviation of the log weight; 1.0 to 1.1 brackets the rank imbalance
        that TensorRT-LLM reports of DeepSeek-R1 (wide_ep blog 4).
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        refuse(check_range("sigma", self.sigma, 0, 10))

    @cached_property
    def _law(self) -> Law:
        shape = (self.layers, self.experts)
        normal = stream(self.seed, "expert popularity").standard_normal(shape)
        return sizes_of(self).law(np.exp(self.sigma * normal))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(sizes_of(self), self._law, keys, rows_by_layer(self.layers))


@dataclass(frozen=True)
class RushHour:
    """With some probability a request (or token) goes through named experts.

    Parameters
    ----------
    hot : tuple of (layer, expert)
        Where the rush is; at most one expert of a layer. The other experts of a token
        come from the background.
    probability : float
        Share of requests (or tokens) in the rush.
    per : {"request", "token"}
        What joins the rush as a whole.
    exponent : float
        Zipf exponent of the background; 0 is uniform.
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    hot: tuple[tuple[int, int], ...] = ()
    probability: float = 0.35
    per: str = "request"
    exponent: float = 0.0

    def __post_init__(self) -> None:
        problems = check_range("probability", self.probability, 0, 1)
        problems += check_range("exponent", self.exponent, 0, 10)
        if self.per not in PER:
            problems += check_choice("per", self.per, PER)
        for number, (layer, expert) in enumerate(self.hot):
            problems += check_range(f"hot.{number}.layer", layer, 0, self.layers - 1)
            problems += check_range(f"hot.{number}.expert", expert, 0, self.experts - 1)
        if len({layer for layer, _ in self.hot}) < len(self.hot):
            problems += [Problem("at most one hot expert in a layer", key="hot")]
        if self.groups > self.top_groups:
            problems += [
                Problem("needs a model without group-limited routing", key="name")
            ]
        refuse(problems)

    @cached_property
    def _law(self) -> Law:
        weights = zipf_weights(self.layers, self.experts, self.exponent, self.seed)
        return sizes_of(self).law(weights)

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        row = rows_by_layer(self.layers)
        return draw_experts(sizes_of(self), self._law, keys, row, self._forced)

    def rushes(self, keys: TokenKeys) -> Ints:
        """Return ``(T,)``: 1 for tokens in the rush, else 0."""
        origin = root(self.seed, "rush hour")
        position = (
            keys.position if self.per == "token" else np.zeros_like(keys.position)
        )
        chance = uniform(token_keys(origin, keys.request, position))
        return (chance < self.probability).astype(np.int64)

    def _forced(self, keys: TokenKeys) -> Ints:
        forced = np.full((len(keys), self.layers), -1)
        inside = self.rushes(keys) > 0
        for layer, expert in self.hot:
            forced[inside, layer] = expert
        return forced


def check_choice(key: str, value: object, known: tuple[str, ...]) -> list[Problem]:
    """Return a problem that names what a parameter may be."""
    return [Problem(f"{value!r} is not one of {', '.join(known)}", key=key)]


def sizes_of(source: "Uniform | Zipf | Lognormal | RushHour") -> Sizes:
    """Return the sizes that the model gives to a source."""
    return Sizes(
        source.layers,
        source.experts,
        source.top_k,
        source.groups,
        source.top_groups,
        source.seed,
    )


def zipf_weights(layers: int, experts: int, exponent: float, seed: int) -> Floats:
    """Return ``(L, E)`` Zipf weights, shuffled in each layer by the seed."""
    weights = np.arange(1, experts + 1) ** -float(exponent)
    rng = stream(seed, "expert popularity")
    return rng.permuted(np.tile(weights, (layers, 1)), axis=1)


def rows_by_layer(layers: int) -> Callable[[TokenKeys], Ints]:
    """Return what gives each token, in each layer, that layer's weights."""

    def row(keys: TokenKeys) -> Ints:
        return np.broadcast_to(np.arange(layers), (len(keys), layers))

    return row
