"""Alias tables: draw from many discrete laws at the price of one look-up each.

Walker's method: a law over ``W`` outcomes becomes ``W`` equal columns, each split between
at most two outcomes. Axes: ``N`` tables of equal width ``W``, stored in one flat array.
"""

from dataclasses import dataclass

import numpy as np

from moesim.routing.counter import Bits, below
from moesim.types import Floats, Ids, Ints

_S16, _S32 = np.uint64(16), np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class AliasTables:
    """``N`` alias tables; build with `alias_tables`.

    Parameters
    ----------
    entries : (N * W,) array of uint64
        A column each: threshold less one (32 bits), own outcome (16 bits), alias (16
        bits).
    width : int
        Columns of a table, ``W``.
    """

    entries: Bits
    width: int

    def draw(self, row: Bits, bits: Bits) -> Ids:
        """Return one outcome of table `row` for each word of random bits (broadcast).

        The upper half of a word picks the column and the lower half the side of its
        threshold, so probabilities are right to 2**-32. `bits` is overwritten.
        """
        column = below(bits, self.width)
        column += (row * np.uint64(self.width)).view(np.int64)
        entry = self.entries.take(column, mode="clip")
        bits <<= _S32
        own = (bits <= entry).astype(np.uint32)
        # Shifting the outcomes by the answer is faster than branching on it.
        own <<= np.uint32(4)
        sides = entry.astype(np.uint32)
        sides >>= own
        return sides.astype(np.uint16)


def alias_tables(weights: Floats, outcomes: Ints | None = None) -> AliasTables:
    """Return alias tables for ``(N, W)`` positive weights, each row normalised.

    `outcomes`, ``(N, W)`` or ``(W,)`` below 2**16, names what is drawn; by default the
    index along the row. All tables are built together, one column of each per step:
    lights are filled by the heaviest outcome that still has something to give, and the
    heaviest becomes a light when less than a column of it is left (Vose's construction
    on sorted weights).
    """
    tables, width = weights.shape
    order = np.argsort(weights, axis=1, kind="stable")
    names = np.arange(width) if outcomes is None else outcomes
    names = np.take_along_axis(np.broadcast_to(names, weights.shape), order, axis=1)
    mass = np.take_along_axis(weights, order, axis=1)
    mass = mass * (width / mass.sum(axis=1, keepdims=True))
    threshold, partner = np.ones_like(mass), np.tile(np.arange(width), (tables, 1))
    every, light = np.arange(tables), np.zeros(tables, int)
    heavy, left = np.full(tables, width - 1), mass[:, -1].copy()
    for _ in range(width - 1):
        gives = left >= 1
        done = np.where(gives, light, heavy)
        kept = np.where(gives, mass[every, light], left)
        threshold[every, done] = kept
        partner[every, done] = np.where(gives, heavy, heavy - 1)
        left = np.where(gives, left, mass[every, heavy - 1]) - (1 - kept)
        light += gives
        heavy -= ~gives
    return AliasTables(_pack(threshold, names, partner), width)


def _pack(threshold: Floats, names: Ints, partner: Ints) -> Bits:
    """Return flat entries; a column that is full is its own alias, so 2**32-1 is 1.

    Where the threshold is 0 and cannot be lessened, the alias is on both sides.
    """
    alias = np.take_along_axis(names, partner, axis=1)
    share = np.minimum(np.rint(np.clip(threshold, 0, 1) * 2.0**32), 2.0**32 - 1)
    own = np.where(share > 0, names, alias).astype(np.uint64)
    entries = np.maximum(share - 1, 0).astype(np.uint64) << _S32
    entries |= (own << _S16) | alias.astype(np.uint64)
    return entries.ravel()
