"""Levels over time in bounded memory: the largest of every bin, bins that double.

Axes: ``B`` bins, ``G`` GPUs; parts are KV blocks in use, buffers and activations.
"""

import numpy as np

from moesim.types import Ints

MOST_BINS, FEWEST_BINS = 1024, 64
CELLS = 1 << 15
"""Bins of all GPUs together, unless that leaves each too few."""
FIRST_WIDTH = 1 << 20
"""Picoseconds of a bin at first: about a microsecond."""
USED, BUFFERS, ACTIVATIONS = range(3)


class Series:
    """Of every GPU and bin, the most KV blocks in use, and buffers and activations.

    The two are those of the instant at which their sum was largest in the bin. A level
    lasts until the next is set, in all bins in between.

    Parameters
    ----------
    gpus : int
        ``G``.
    """

    def __init__(self, gpus: int) -> None:
        bins = max(FEWEST_BINS, min(MOST_BINS, CELLS // gpus))
        self.bins = bins - bins % 2
        self.width = FIRST_WIDTH
        self._rows: Ints = np.zeros((self.bins, 3, gpus), np.int64)
        self._level: Ints = np.zeros((3, gpus), np.int64)
        self._at = 0

    def set(self, now: int, level: Ints) -> None:
        """Let ``(3, G)`` levels hold from now on; instants never decrease."""
        at = now // self.width
        while at >= self.bins:
            self._double()
            at = now // self.width
        if at > self._at:
            lasted = at + (now > at * self.width)
            self._rows[self._at + 1 : lasted] = self._level
            self._at = at
        self._level[:] = level
        self._rows[at] = larger(self._rows[at], level)

    def _double(self) -> None:
        """Put bins together in pairs."""
        half = self.bins // 2
        self._rows[:half] = larger(self._rows[::2], self._rows[1::2])
        self._rows[half:] = 0
        self._at //= 2
        self.width *= 2

    def points(self) -> tuple[Ints, Ints]:
        """Return ``(B,)`` beginnings of the bins so far, and their ``(B, 3, G)``."""
        count = self._at + 1
        return np.arange(count) * self.width, self._rows[:count]


def larger(one: Ints, other: Ints) -> Ints:
    """Return ``(..., 3, G)``: of each GPU, what the busier of two has; `one` in ties."""
    first = one[..., 1:, :].sum(axis=-2)
    second = other[..., 1:, :].sum(axis=-2)
    found = np.where((second > first)[..., None, :], other, one)
    np.maximum(one[..., USED, :], other[..., USED, :], out=found[..., USED, :])
    return found
