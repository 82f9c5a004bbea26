"""With what probability a token uses each expert: exact, by quadrature.

Let expert ``e`` arrive after an exponential time of rate ``w[e]``. The first ``k`` to
arrive are a Plackett-Luce draw, so a token uses ``e`` with probability

    pi[e] = integral of w[e] exp(-w[e] t) P(fewer than k of the others are in by t) dt.

The number of others is Poisson-binomial: its probabilities come from a recurrence over
experts, run from both ends so that any one expert can be left out. Where a token may
use only some groups of experts, the mean over all sets of groups is taken inside.

Axes: ``N`` rows of weights, ``E`` experts, ``J`` groups of ``I`` experts, ``k`` experts
of a token, ``Q`` nodes of the quadrature.
"""

from functools import reduce
from itertools import combinations

import numpy as np

from moesim.types import Floats

TAIL = 1e-10
"""Probability that is left out at either end of the quadrature."""
NODES_PER_FOLD = 4
"""Gauss-Legendre nodes for each factor e of time: good to 1e-8, far below any noise."""
COARSE = 0.5
"""Step, in factors e of time, of the search for the ends."""
CELLS = 1 << 21
"""Numbers held at once, to bound memory."""

Sets = dict[tuple[int, ...], Floats]
"""Sets of groups, each with its ``(N,)`` probabilities."""


def inclusion(
    weights: Floats, top_k: int, groups: int = 1, top_groups: int = 1
) -> Floats:
    """Return ``(N, E)``: the probability that a token uses each expert; rows sum to k.

    Parameters
    ----------
    weights : (N, E) array of float
        Positive weights.
    top_k : int
        Distinct experts of a token.
    groups, top_groups : int
        Equal groups of neighbouring experts, and how many of them a token uses: drawn
        first, without replacement, by their total weight.
    """
    rows, experts = weights.shape
    inner = weights.reshape(rows, groups, experts // groups)
    pace = max(1, CELLS // (experts * top_k * 64))
    parts = [
        _integrated(inner[first : first + pace], top_k, top_groups)
        for first in range(0, rows, pace)
    ]
    return np.concatenate(parts).reshape(rows, experts)


def group_inclusion(weights: Floats, groups: int, top_groups: int) -> Floats:
    """Return ``(N, J)``: the probability that a token may use each group."""
    inner = weights.reshape(len(weights), groups, -1)
    sets = group_sets(inner.sum(axis=2), top_groups)
    return _chosen(sets, (*inner.shape[:2], 1))[:, :, 0]


def group_sets(mass: Floats, size: int) -> Sets:
    """Return every set of `size` groups that may be drawn, and how probably.

    Parameters
    ----------
    mass : (N, J) array of float
        Total weight of each group.
    """
    total = mass.sum(axis=1)
    chance: Sets = {(): np.ones(len(mass))}
    for count in range(size):
        longer: Sets = {}
        for chosen in combinations(range(mass.shape[1]), count + 1):
            ways = np.zeros(len(mass))
            for last in chosen:
                before = tuple(group for group in chosen if group != last)
                left = total - mass[:, before].sum(axis=1)
                ways += chance[before] * mass[:, last] / left
            longer[chosen] = ways
        chance = longer
    return chance


def _integrated(inner: Floats, top_k: int, top_groups: int) -> Floats:
    """Return ``(N, J, I)`` probabilities of a few rows together."""
    if top_k == top_groups * inner.shape[2]:
        sets = group_sets(inner.sum(axis=2), top_groups)
        return _chosen(sets, inner.shape)
    first, last = _ends(inner, top_k, top_groups)
    count = max(16, int(np.ceil(float((last - first).max()) * NODES_PER_FOLD)))
    node, share = np.polynomial.legendre.leggauss(count)
    half = (last - first)[:, None] / 2
    time = np.exp(first[:, None] + half * (node + 1))
    sets = group_sets(inner.sum(axis=2), top_groups)
    rate = inner.transpose(2, 1, 0)[..., None]
    fewer = _fewer_of_others(inner, time, top_k, sets)
    density = rate * np.exp(-rate * time) * time * (half * share)
    begun = -np.expm1(-inner * np.exp(first)[:, None, None])
    early = begun * _chosen(sets, inner.shape)
    found = early + np.einsum("ijnq,ijnq->nji", density, fewer)
    scale = top_k / found.sum(axis=(1, 2), keepdims=True)
    return np.clip(found * scale, 0.0, 1.0)


def _chosen(sets: Sets, shape: tuple[int, ...]) -> Floats:
    """Return ``(N, J, I)``: the probability that each expert's group is chosen."""
    result = np.zeros(shape)
    for chosen, chance in sets.items():
        result[:, list(chosen)] += chance[:, None, None]
    return result


def _ends(inner: Floats, top_k: int, top_groups: int) -> tuple[Floats, Floats]:
    """Return log times before which all is certain, and after which nothing counts.

    Certain with all groups is certain with any; what the lightest groups have done, all
    have done.
    """
    rows = len(inner)
    lightest = np.argsort(inner.sum(axis=2), axis=1)[:, :top_groups]
    light = np.take_along_axis(inner, lightest[:, :, None], axis=1).reshape(rows, -1)
    whole = inner.reshape(rows, -1)
    low = np.log(TAIL / whole.sum(axis=1))
    high = np.log(-np.log(TAIL / whole.shape[1]) / whole.min(axis=1))
    steps = int(np.ceil(float((high - low).max()) / COARSE)) + 1
    grid = np.linspace(low, high, steps, axis=1)
    sure = _counts(whole, np.exp(grid), top_k)[..., :top_k].sum(axis=2) >= 1 - TAIL
    gone = _counts(light, np.exp(grid), top_k + 1).sum(axis=2) <= TAIL
    begin = np.maximum(sure.sum(axis=1) - 1, 0)
    end = np.minimum(steps - gone.sum(axis=1), steps - 1)
    row = np.arange(rows)
    return grid[row, begin], grid[row, end]


def _counts(weights: Floats, time: Floats, states: int) -> Floats:
    """Return ``(N, Q, states)``: probability of 0, 1, ... experts by each time."""
    chance = np.zeros((*time.shape, states))
    chance[:, :, 0] = 1.0
    for rate in weights.T:
        _let_in(chance, np.exp(-rate[:, None] * time))
    return chance


def _let_in(chance: Floats, absent: Floats) -> None:
    """Add one expert, absent with that probability, to counts in place."""
    arrives = chance[..., :-1] * (1 - absent)[..., None]
    chance *= absent[..., None]
    chance[..., 1:] += arrives


def _fewer_of_others(inner: Floats, time: Floats, top_k: int, sets: Sets) -> Floats:
    """Return ``(I, J, N, Q)``: probability that fewer than k of the others are in.

    And that the expert's own group is chosen, with whatever others.
    """
    groups, size = inner.shape[1:]
    absent = np.exp(-inner.transpose(2, 1, 0)[..., None] * time)
    shape = (size, groups, *time.shape, top_k)
    before, after = np.zeros(shape), np.zeros(shape)
    before[0, ..., 0] = after[-1, ..., 0] = 1.0
    for expert in range(size - 1):
        before[expert + 1] = before[expert]
        _let_in(before[expert + 1], absent[expert])
        after[-expert - 2] = after[-expert - 1]
        _let_in(after[-expert - 2], absent[-expert - 1])
    whole = before[-1].copy()
    _let_in(whole, absent[-1])
    upto = _upto(whole, sets)
    result = np.zeros((size, groups, *time.shape))
    for own in range(top_k):
        for other in range(top_k - own):
            pair = before[..., own] * after[..., other]
            result += pair * upto[..., top_k - 1 - own - other]
    return result


def _upto(whole: Floats, sets: Sets) -> Floats:
    """Return ``(J, N, Q, k)``: that at most 0, 1, ... of the other groups' are in.

    Summed over the sets with the group in them, each by its probability.
    """
    result = np.zeros_like(whole)
    none = np.zeros_like(whole[0])
    none[..., 0] = 1.0
    others = len(next(iter(sets))) - 1
    for rest in combinations(range(len(whole)), others):
        joint = reduce(_added, whole[list(rest)], none)
        for group in sorted(set(range(len(whole))).difference(rest)):
            chosen = tuple(sorted((*rest, group)))
            result[group] += sets[chosen][:, None, None] * joint
    return np.cumsum(result, axis=-1)


def _added(one: Floats, two: Floats) -> Floats:
    """Return the distribution of the sum of two counts, as far as it is kept."""
    result = np.zeros_like(one)
    for count in range(one.shape[-1]):
        width = one.shape[-1] - count
        result[..., count:] += one[..., count : count + 1] * two[..., :width]
    return result
