"""How uneven and how predictable routing is, from counts and from ids.

Where a layer has no tokens, ratios are NaN.

Axes: ``L`` MoE layers, ``E`` experts of each (or ``R`` ranks), ``T`` tokens, ``k``
experts of a token. Functions of counts take any leading axes and reduce the last.
"""

from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ids, Ints

Counts = NDArray[Any]
"""Tokens of each expert or rank, whole or expected."""


def max_over_mean(counts: Counts) -> Floats:
    """Return the most loaded expert's tokens over the mean expert's; 1 is balanced.

    >>> float(max_over_mean(np.array([6, 2, 2, 2])))
    2.0
    """
    return _over(counts.max(axis=-1), counts.mean(axis=-1))


def variation(counts: Counts) -> Floats:
    """Return the coefficient of variation: population standard deviation over mean."""
    return _over(counts.std(axis=-1), counts.mean(axis=-1))


def variation_floor(tokens: int, experts: int, top_k: int) -> float:
    """Return the coefficient of variation that chance alone gives uniform routing.

    A count is binomial with `tokens` trials at ``k / E``: sqrt((1 - k/E) / (T k/E)).
    It is exactly the root mean square of `variation`, since counts always sum to T k.

    >>> round(variation_floor(1024, 256, 8), 4)
    0.174
    """
    share = top_k / experts
    return sqrt((1 - share) / (tokens * share))


def normalised_entropy(counts: Counts) -> Floats:
    """Return the entropy of the shares over that of equal shares; 1 is balanced.

    One expert alone is balanced by definition.
    """
    if counts.shape[-1] == 1:
        return np.where(counts[..., 0] > 0, 1.0, np.nan)
    share = _over(counts, counts.sum(axis=-1, keepdims=True))
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    entropy: Floats = -(share * logs).sum(axis=-1) / np.log(counts.shape[-1])
    return entropy


def top_share(counts: Counts, fraction: float = 0.1) -> Floats:
    """Return the share of the load on the most loaded experts.

    The `fraction` of experts is rounded up: the top tenth of 64 is 7 experts.
    """
    experts = counts.shape[-1]
    top = max(1, ceil(round(fraction * experts, 9)))
    highest = np.sort(counts, axis=-1)[..., experts - top :]
    return _over(highest.sum(axis=-1), counts.sum(axis=-1))


def dead_experts(counts: Counts) -> Ints:
    """Return how many experts no token uses."""
    dead: Ints = (counts == 0).sum(axis=-1)
    return dead


def rank_counts(counts: Counts, ranks: int) -> Counts:
    """Return ``(..., R)`` tokens of ranks that hold equal runs of neighbouring experts.

    Where `ranks` does not divide the experts, runs differ by at most one expert;
    `ranks` is at most the number of experts.
    """
    edges = np.arange(ranks) * counts.shape[-1] // ranks
    summed: Counts = np.add.reduceat(counts, edges, axis=-1)
    return summed


def next_token_overlap(ids: Ids, lengths: Ints) -> Floats:
    """Return ``(L,)``: the mean share of a token's experts that its successor uses too.

    Parameters
    ----------
    ids : (T, L, k) array
        Experts of the tokens of whole sequences, one after the other.
    lengths : (n,) array of int
        Tokens of each sequence; the last token of a sequence has no successor.
    """
    inside = np.ones(max(len(ids) - 1, 0), bool)
    inside[np.cumsum(lengths)[:-1] - 1] = False
    shared = np.zeros((int(inside.sum()), ids.shape[1]), np.int64)
    successors = ids[1:][inside]
    for slot in range(ids.shape[2]):
        mine = ids[:-1, :, slot][inside]
        shared += (mine[:, :, None] == successors).any(axis=2)
    return _over(shared.sum(axis=0), np.array(len(shared) * ids.shape[2]))


def independent_overlap(counts: Counts, tokens: int, top_k: int) -> Floats:
    """Return `next_token_overlap` as it would be between independent tokens.

    Two tokens that each use expert ``e`` with probability ``p_e`` share
    ``sum(p_e ** 2)`` experts on average.
    """
    use = counts / tokens
    overlap: Floats = (use * use).sum(axis=-1) / top_k
    return overlap


def mutual_information(top1: Ids, gap: int, experts: int) -> Floats:
    """Return ``(L - gap,)`` bits that a token's expert tells of the one `gap` layers on.

    The plug-in estimate, biased up by about ``(E - 1)**2 / (2 T ln 2)`` bits where all
    pairs occur.

    Parameters
    ----------
    top1 : (T, L) array
        One expert of each token in each layer, such as its first choice.
    """
    layers = top1.shape[1]
    pairs = top1[:, : layers - gap].astype(np.int64) * experts + top1[:, gap:]
    return np.array(
        [_information(pairs[:, layer], experts) for layer in range(layers - gap)]
    )


def _information(pairs: Ints, experts: int) -> float:
    joint = np.bincount(pairs, minlength=experts**2).reshape(experts, experts)
    share = joint / joint.sum()
    alone = share.sum(axis=1, keepdims=True) * share.sum(axis=0, keepdims=True)
    seen = share > 0
    return float((share[seen] * np.log2(share[seen] / alone[seen])).sum())


def _over(above: Counts, below: Counts) -> Floats:
    """Return a quotient, NaN where there is nothing below."""
    shape = np.broadcast_shapes(np.shape(above), np.shape(below))
    return np.divide(above, below, out=np.full(shape, np.nan), where=below != 0)
