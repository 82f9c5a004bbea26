"""How many of an expert's tokens each of its copies takes, and which tokens those are.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``E`` experts, ``R``
copies of one expert, ``G`` GPUs.
"""

import numpy as np

from moesim.routing.source import count
from moesim.spec.placement import Placement
from moesim.types import Bools, Floats, Ids, Ints

FULL = 1 << 40
"""The load of what may take no token; more tokens than any micro-batch has."""


class Copies:
    """The tokens of a micro-batch by expert, and where they may go.

    Two copies of one expert on one GPU count as one: the second relieves nobody.

    Parameters
    ----------
    ids : (T, L, k) array
        Experts of each token.
    placement : Placement
        Where their copies are.

    Attributes
    ----------
    tokens : (L, E) array of int
        Tokens of each expert.
    gpu : (L, E, R) array of int
        The GPU of each copy.
    usable : (L, E, R) array of bool
        The first copy of each expert on each GPU.
    """

    def __init__(self, ids: Ids, placement: Placement) -> None:
        self.placement = placement
        self.gpus = placement.gpus
        self.gpu: Ints = placement.log2phy // placement.slots_per_gpu
        self.tokens = count(ids, self.gpu.shape[1])
        self.usable: Bools = np.ones(self.gpu.shape, bool)
        for later in range(1, self.gpu.shape[2]):
            same = self.gpu[:, :, :later] == self.gpu[:, :, later, None]
            self.usable[:, :, later] = ~same.any(axis=2)

    def even(self) -> Ints:
        """Return ``(L, E, R)`` tokens, as equal as whole numbers allow."""
        ways = self.usable.sum(axis=2)
        each, rest = np.divmod(self.tokens, ways)
        turn = np.cumsum(self.usable, axis=2)
        return self.usable * (each[:, :, None] + (turn <= rest[:, :, None]))

    def gpu_load(self, shares: Ints) -> Ints:
        """Return ``(L, G)``: the tokens of each GPU for ``(L, E, R)`` shares."""
        layers = len(self.gpu)
        cell = np.arange(layers)[:, None, None] * self.gpus + self.gpu
        load = np.bincount(cell.ravel(), shares.ravel(), layers * self.gpus)
        return load.reshape(layers, self.gpus).astype(np.int64)


def level(load: Ints, tokens: Ints, usable: Bools) -> Ints:
    """Return ``(L, R)``: tokens poured onto loads so that the highest is lowest.

    Parameters
    ----------
    load : (L, R) array of int
        What is there already.
    tokens : (L,) array of int
        What is to be poured.
    usable : (L, R) array of bool
        Where; somewhere in each row.

    Examples
    --------
    >>> level(np.array([[5, 0, 2]]), np.array([7]), np.array([[True, True, True]]))
    array([[0, 5, 2]])
    """
    heights = np.where(usable, load, FULL)
    order = np.argsort(heights, axis=1, kind="stable")
    heights = np.take_along_axis(heights, order, axis=1)
    below = np.cumsum(heights, axis=1)
    place = np.arange(load.shape[1])
    needed = heights * (place + 1) - below
    wet = (needed <= tokens[:, None]).sum(axis=1)
    row = np.arange(len(load))
    each, rest = np.divmod(tokens + below[row, wet - 1], wet)
    top = each[:, None] + (place < rest[:, None])
    poured = np.where(place < wet[:, None], top - heights, 0)
    result = np.empty_like(poured)
    np.put_along_axis(result, order, poured, axis=1)
    return result


def whole(shares: Floats, tokens: Ints) -> Ints:
    """Return ``(L, E, R)`` whole shares of ``(L, E)`` tokens: largest remainder first.

    Of equal remainders the first copy's goes first.
    """
    floor = np.floor(shares + 1e-9).astype(np.int64)
    missing = tokens - floor.sum(axis=2)
    order = np.argsort(floor - shares, axis=2, kind="stable")
    extra = np.arange(shares.shape[2]) < missing[:, :, None]
    result = np.zeros_like(floor)
    np.put_along_axis(result, order, extra.astype(np.int64), axis=2)
    return floor + result


def deal(ids: Ids, placement: Placement, shares: Ints) -> Ints:
    """Return ``(T, L, k)`` slots: of each expert's tokens the first go to its first copy.

    Parameters
    ----------
    ids : (T, L, k) array
        Experts of each token.
    shares : (L, E, R) array of int
        How many tokens each copy takes; together all of the expert's.
    """
    layers, top_k = ids.shape[1:]
    width, experts = shares.shape[2], shares.shape[1]
    cell = ids + (np.arange(layers) * experts)[:, None]
    slots = placement.log2phy[:, :, 0].ravel()[cell].ravel()
    several = (placement.replicas > 1).ravel()[cell]
    where = np.flatnonzero(several.ravel())
    cell = cell.ravel()[where]
    upto = np.cumsum(shares, axis=2).reshape(-1, width)
    turn, nth = np.zeros(len(where), np.int64), turns(cell)
    for copy in range(width - 1):
        turn += nth >= upto[:, copy][cell]
    slots[where] = placement.log2phy.ravel()[cell * width + turn]
    return slots.reshape(-1, layers, top_k)


def turns(keys: Ints) -> Ints:
    """Return how many equal keys came before each of ``(n,)`` keys from 0 on.

    >>> turns(np.array([3, 5, 3, 3, 5])).tolist()
    [0, 0, 1, 2, 1]
    """
    # NumPy sorts 16-bit numbers by radix: five times as fast.
    small = keys.astype(np.min_scalar_type(int(keys.max(initial=0))))
    order = np.argsort(small, kind="stable")
    ordered = small[order]
    begins = np.ones(len(keys), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(begins)
    since = np.arange(len(keys)) - np.repeat(first, np.diff([*first, len(keys)]))
    result = np.empty(len(keys), np.int64)
    result[order] = since
    return result
