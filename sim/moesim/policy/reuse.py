"""How often experts are still there when they are needed again, for a whole log at once.

An LRU cache of C slots holds a key exactly when fewer than C others were touched since:
one pass over a log gives its hit rate at every capacity (Mattson et al. 1970,
doi:10.1147/sj.92.0078).

Axes: ``T`` tokens, ``k`` experts of a token, ``N`` touches in order, ``L`` MoE layers,
``E`` experts of each, ``C`` capacities.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ints

NEVER = np.iinfo(np.int64).max
"""The distance of a first touch: no cache holds what it has not seen."""
NONE = -1
"""Stands where a layer has no touch, in an array as long as the busiest layer's."""


def touches_of_tokens(ids: NDArray[Any]) -> Ints:
    """Return the touches of tokens one after another, ``(T * k, L)``.

    Parameters
    ----------
    ids : (T, L, k) array of int
        The experts of each token and layer.
    """
    tokens, layers, _ = ids.shape
    return (
        ids.transpose(0, 2, 1).reshape(tokens * ids.shape[2], layers).astype(np.int64)
    )


def touches_of_batches(ids: NDArray[Any], batch: int, experts: int) -> Ints:
    """Return the touches of micro-batches: each of its experts once, ascending.

    Parameters
    ----------
    ids : (T, L, k) array of int
        The experts of each token and layer.
    batch : int
        Tokens that pass together; the last micro-batch may be smaller.

    Returns
    -------
    (N, L) array of int
        `NONE` where a layer of a micro-batch has fewer experts than the busiest one.
    """
    rows = []
    for first in range(0, len(ids), batch):
        part = ids[first : first + batch]
        used = np.zeros((ids.shape[1], experts), bool)
        used[np.arange(ids.shape[1])[None, :, None], part] = True
        order = np.argsort(~used, axis=1, kind="stable")
        touched = np.where(np.take_along_axis(used, order, axis=1), order, NONE)
        rows.append(touched[:, : int(used.sum(axis=1).max())].T)
    return np.concatenate(rows) if rows else np.empty((0, ids.shape[1]), np.int64)


def stack_distances(touches: Ints, experts: int) -> Ints:
    """Return how many different experts each touch's layer has touched since the last.

    Parameters
    ----------
    touches : (N, L) array of int
        Experts in the order of use; `NONE` where a layer has none.

    Returns
    -------
    (N, L) array of int
        Counting the expert itself, so 1 is an immediate repeat; `NEVER` at a first
        touch, 0 where there is none.
    """
    count, layers = touches.shape
    last = np.full((layers, experts), NONE, np.int64)
    distances = np.zeros((count, layers), np.int64)
    lanes = np.arange(layers)
    for now in range(count):
        key = touches[now]
        there = lanes[key != NONE]
        key = key[there]
        before = last[there, key]
        since = (last[there] >= before[:, None]).sum(axis=1)
        distances[now, there] = np.where(before == NONE, NEVER, since)
        last[there, key] = now
    return distances


def lru_hit_rates(
    touches: Ints, experts: int, capacities: Sequence[int], warmup: int = 0
) -> Floats:
    """Return the share of touches that an LRU cache per layer answers, ``(L, C)``.

    Parameters
    ----------
    touches : (N, L) array of int
        As of `stack_distances`.
    capacities : sequence of int
        Experts that each layer's cache holds.
    warmup : int
        Touches at the start that fill the caches and are not counted.

    Returns
    -------
    (L, C) array of float
        NaN for a layer without touches.
    """
    distances = stack_distances(touches, experts)[warmup:]
    total = (distances > 0).sum(axis=0)
    hits = [
        ((distances > 0) & (distances <= capacity)).sum(axis=0)
        for capacity in capacities
    ]
    rates = np.full((touches.shape[1], len(hits)), np.nan)
    used = total > 0
    rates[used] = np.array(hits).T.reshape(-1, len(hits))[used] / total[used, None]
    return rates
