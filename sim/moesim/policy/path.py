"""Who says where tokens will go: named predictors of the path to come.

A predictor turns the names of tokens into the tokens that each expert should expect. It
learns from passes that have ended, never from ones to come, and any chance in it is by
counter: the same token is guessed alike wherever it stands.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` logical experts, ``k`` experts of a token,
``K`` classes of requests, ``S`` slots of a GPU, ``G`` GPUs, ``P`` slots of a layer.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moesim.policy.view import Foresight
from moesim.routing.counter import bits_at, root, step, token_keys, uniform
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.placement import Placement
from moesim.types import Bools, Floats, Ids, Ints

TRUST = 64
"""Tokens of a class that weigh as much as what is known of all classes together."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Where the tokens of a pass went: ``(K, L, E)`` by class."""

    by_class: Ints

    @property
    def total(self) -> Ints:
        """``(L, E)``: of all classes."""
        return self.by_class.sum(axis=0)


class Predictor(Protocol):
    """Says where tokens should go."""

    def learn(self, seen: Seen) -> None:
        """Learn from a pass that has ended."""
        ...

    def expect(self, keys: TokenKeys) -> Floats:
        """Return ``(L, E)``: how many of the tokens each expert should expect."""
        ...


class EvenSpread:
    """The `uniform` predictor: every expert is as likely as any other."""

    def __init__(self, source: RoutingSource) -> None:
        self.shape = source.layers, source.experts
        self.mean = source.top_k / source.experts

    def learn(self, seen: Seen) -> None:
        """Learn nothing."""

    def expect(self, keys: TokenKeys) -> Floats:
        """Return ``(L, E)``: the same everywhere."""
        return np.full(self.shape, len(keys) * self.mean)


class Popularity:
    """The `by_class` predictor, or with one class `global`: like what has been seen.

    A class of which little has been seen is guessed to be like all of them together,
    and all together like uniform routing.

    Parameters
    ----------
    source : RoutingSource
        For its sizes.
    classes : int
        Kinds of requests to tell apart; 1 tells none apart.
    """

    def __init__(self, source: RoutingSource, classes: int) -> None:
        self.classes = classes
        self.top_k = source.top_k
        self.seen: Floats = np.zeros((classes, source.layers, source.experts))
        self._shares: Floats | None = None

    def learn(self, seen: Seen) -> None:
        """Learn from a pass that has ended."""
        told = len(seen.by_class) == self.classes
        self.seen += seen.by_class if told else seen.total
        self._shares = None

    @property
    def shares(self) -> Floats:
        """``(K, L, E)``: of the tokens of a class, how many use each expert."""
        if self._shares is None:
            even = np.full(self.seen.shape[1:], 1 / self.seen.shape[2])
            together = _shares(self.seen.sum(axis=0), even, self.top_k)
            self._shares = self.top_k * _shares(self.seen, together, self.top_k)
        return self._shares

    def expect(self, keys: TokenKeys) -> Floats:
        """Return ``(L, E)``: the classes' shares, by how many tokens are of each."""
        klass = keys.klass % self.classes
        tokens = np.bincount(klass, minlength=self.classes)
        return np.tensordot(tokens.astype(float), self.shares, 1)


def _shares(seen: Floats, prior: Floats, top_k: int) -> Floats:
    """Return shares over the last axis, mixed with what `TRUST` tokens would say."""
    trust = TRUST * top_k
    total = seen.sum(axis=-1, keepdims=True)
    return (seen + trust * prior) / (total + trust)


class Lookahead:
    """The `lookahead` predictor: the true path, right with a given hit rate.

    In each layer a token's experts are known with probability `hit_rate`; else as many
    are drawn, with replacement, by the popularity seen so far. Which, depends on the
    token alone, and with hit rate 1 this is the `oracle`.
    """

    def __init__(self, source: RoutingSource, hit_rate: float, seed: int) -> None:
        self.source = source
        self.hit_rate = hit_rate
        self.origin = root(seed, "policy.lookahead")
        self.popularity = Popularity(source, 1)

    def learn(self, seen: Seen) -> None:
        """Learn the popularity from which misses are drawn."""
        self.popularity.learn(seen)

    def expect(self, keys: TokenKeys) -> Floats:
        """Return ``(L, E)``: how many tokens each expert is believed to get."""
        ids = self.source.route(keys)
        if self.hit_rate < 1:
            ids = np.where(self._hits(keys)[:, :, None], ids, self._draws(keys))
        return counted(ids, self.source.experts).astype(float)

    def _hits(self, keys: TokenKeys) -> Bools:
        return self._chance(keys, 1)[:, :, 0] < self.hit_rate

    def _draws(self, keys: TokenKeys) -> Ids:
        top_k, layers = self.source.top_k, self.source.layers
        edges = np.cumsum(self.popularity.shares[0], axis=1)
        edges = edges / edges[:, -1:] + np.arange(layers)[:, None]
        where = np.arange(layers)[:, None] + self._chance(keys, 1 + top_k)[:, :, 1:]
        found = np.searchsorted(edges.ravel(), where, side="right")
        found = found - np.arange(layers)[:, None] * self.source.experts
        return np.clip(found, 0, self.source.experts - 1).astype(np.uint16)

    def _chance(self, keys: TokenKeys, count: int) -> Floats:
        """Return ``(T, L, count)``: each token's own numbers for each layer."""
        start = token_keys(self.origin, keys.request, keys.position)
        width = 1 + self.source.top_k
        steps = [
            [step(layer * width + place) for place in range(count)]
            for layer in range(self.source.layers)
        ]
        return uniform(bits_at(start[:, None, None], np.array(steps)))


def counted(ids: Ids, experts: int) -> Ints:
    """Return ``(L, E)``: how many of ``(T, L, k)`` ids name each expert."""
    layers = ids.shape[1]
    flat = ids.astype(np.int64) + (np.arange(layers) * experts)[:, None]
    width = layers * experts
    return np.bincount(flat.ravel(), minlength=width).reshape(layers, experts)


def seen_of(ids: Ids, klass: Ints, classes: int, experts: int) -> Seen:
    """Return where ``(T, L, k)`` ids of tokens of ``(T,)`` classes go."""
    layers = ids.shape[1]
    cell = np.arange(layers) * experts
    flat = ids + (cell + (klass % classes)[:, None] * (layers * experts))[:, :, None]
    width = classes * layers * experts
    count = np.bincount(flat.ravel(), minlength=width)
    return Seen(count.reshape(classes, layers, experts))


def predictor_of(
    foresight: Foresight, source: RoutingSource, classes: int, seed: int
) -> Predictor:
    """Return who guesses for a policy of this foresight."""
    name = foresight.predictor
    if foresight.knowledge == "oracle":
        name = "oracle"
    elif foresight.knowledge != "predicted":
        name = "uniform"
    if name == "uniform":
        return EvenSpread(source)
    if name == "global":
        return Popularity(source, 1)
    if name == "by_class":
        return Popularity(source, classes)
    rate = 1.0 if name == "oracle" else foresight.hit_rate
    return Lookahead(source, rate, seed)


class Watched:
    """A routing source that counts, class by class, what it routed last.

    Parameters
    ----------
    source : RoutingSource
        What routes.
    classes : int
        Kinds of requests to tell apart.
    """

    def __init__(self, source: RoutingSource, classes: int) -> None:
        self.source = source
        self.classes = classes
        self.layers = source.layers
        self.experts = source.experts
        self.top_k = source.top_k
        self.last: Seen | None = None

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: what the source says."""
        ids = self.source.route(keys)
        self.last = seen_of(ids, keys.klass, self.classes, self.experts)
        return ids

    def take(self) -> Seen | None:
        """Return what was routed since it was last asked, if anything was."""
        last, self.last = self.last, None
        return last


def by_expert(slots: Ints, placement: Placement) -> Seen:
    """Return what ``(L, S, G)`` tokens of slots say of experts, classes untold."""
    layers, experts = placement.replicas.shape
    held = slots.swapaxes(1, 2).reshape(layers, -1)
    cell = placement.phy2log + (np.arange(layers) * experts)[:, None]
    count = np.bincount(cell.ravel(), held.ravel(), layers * experts)
    return Seen(count.astype(np.int64).reshape(1, layers, experts))


def on_slots(tokens: Floats, placement: Placement) -> Floats:
    """Return ``(..., L, S, G)`` of ``(..., L, E)``: replicas share their tokens alike."""
    layer = np.arange(len(placement.phy2log))[:, None]
    each = tokens / placement.replicas
    held = each[..., layer, placement.phy2log]
    shape = (*held.shape[:-1], placement.gpus, placement.slots_per_gpu)
    return held.reshape(shape).swapaxes(-1, -2)
