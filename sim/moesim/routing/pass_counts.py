"""Tokens of each expert for a whole pass at once, where only their number matters.

A pass of ``T`` tokens that are drawn alike gives expert ``e`` a binomial number of them,
of probability ``pi[e]`` (`routing.inclusion`). The numbers of a layer must sum to
``T k``; that pulls each by its share of the variance, which is how the numbers of a
sample of fixed size are correlated (Hajek, Annals of Mathematical Statistics 35, 1964).

In a group-limited model the tokens of each group are drawn first, in the same way.

So every expert's load has its own law: binomial, or the normal that is indistinguishable
from it where the variance is large. The correlation between experts is approximate, and
tokens have no identity: a pass draws its counts by its number.

Axes: ``L`` MoE layers, ``E`` experts in ``J`` equal groups, ``k`` experts of a token,
``T`` tokens.
"""

import numpy as np
from numpy.random import Generator

from moesim.streams import stream
from moesim.types import Floats, Ints

NORMAL_FROM = 9.0
"""Variance from which a binomial number is drawn as a rounded normal."""


class PassCounts:
    """Draws the counts of passes.

    Parameters
    ----------
    chance : (L, E) array of float
        With what probability a token uses each expert; rows sum to ``k``.
    group_chance : (L, J) array of float
        With what probability a token may use each group; ones for a single group.
    seed : int
        Passes of one number and size are alike under one seed.
    """

    def __init__(self, chance: Floats, group_chance: Floats, seed: int) -> None:
        self.groups = group_chance
        size = chance.shape[1] // group_chance.shape[1]
        self.inside = np.minimum(chance / np.repeat(group_chance, size, axis=1), 1.0)
        self.sums = (round(float(group_chance[0].sum())), round(float(chance[0].sum())))
        self.seed = seed

    def draw(self, number: int, tokens: int) -> Ints:
        """Return ``(L, E)``: tokens of each expert; every layer sums to ``T k``.

        Parameters
        ----------
        number, tokens : int
            Number of the pass, and its tokens ``T``.
        """
        rng = stream(self.seed, "pass counts", number)
        groups, top_k = self.sums
        count = self.groups.shape[1]
        trials = np.full(self.groups.shape, tokens)
        if groups < count:
            trials = _drawn(rng, trials, self.groups, tokens * groups)
        trials = np.repeat(trials, self.inside.shape[1] // count, axis=1)
        return _drawn(rng, trials, self.inside, tokens * top_k)


def _drawn(rng: Generator, trials: Ints, chance: Floats, total: int) -> Ints:
    """Return binomial numbers, held to one total in every row."""
    wanted = trials * chance
    variance = wanted - wanted * chance
    found = rng.standard_normal(wanted.shape)
    found *= np.sqrt(variance)
    found += wanted
    if variance.min() < NORMAL_FROM:
        few = np.flatnonzero(variance < NORMAL_FROM)
        found.flat[few] = rng.binomial(trials.flat[few], chance.flat[few])
    surplus = found.sum(axis=1, keepdims=True) - total
    room = np.maximum(variance.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    variance *= surplus / room
    found -= variance
    return _whole(found, rng.random((len(found), 1)), trials, total)


def _whole(wanted: Floats, offset: Floats, most: Ints, total: int) -> Ints:
    """Return whole numbers from 0 to `most` near the wanted, of the same sums.

    Rounding the running sum from a random start is fair to all, and keeps the sum.
    """
    edges = np.cumsum(wanted, axis=1, out=wanted)
    edges += offset
    edges[:, -1] = total
    counts = edges.astype(np.int64)
    counts[:, 1:] -= counts[:, :-1]
    if counts.min() >= 0 and (most - counts).min() >= 0:
        return counts
    for row in np.flatnonzero(((counts < 0) | (counts > most)).any(axis=1)):
        _settle(counts[row], most[row], total)
    return counts


def _settle(counts: Ints, most: Ints, total: int) -> None:
    """Clip counts in place; what is left goes where there is most room."""
    np.clip(counts, 0, most, out=counts)
    excess = int(counts.sum()) - total
    while excess:
        room = counts if excess > 0 else most - counts
        best = int(room.argmax())
        step = min(abs(excess), int(room[best]))
        if step <= 0:
            raise AssertionError(f"no way to reach a sum of {total}")
        counts[best] -= step if excess > 0 else -step
        excess -= step if excess > 0 else -step
