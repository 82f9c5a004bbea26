"""How long jobs waited: a histogram a cell, with a stated error, filled in blocks.

Axes: ``Q`` cells, ``B`` bins.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ints

BINS_PER_OCTAVE = 8
FLOOR_PS = 1024
"""Waits up to about a nanosecond share one bin; 0 has its own."""
OCTAVES = 40
BINS = 2 + BINS_PER_OCTAVE * OCTAVES
BLOCK = 1 << 16
RELATIVE_ERROR = 2 ** (0.5 / BINS_PER_OCTAVE) - 1
"""Quantiles of waits over a nanosecond are off by at most this share (4.4 %)."""


class WaitColumns:
    """Counts, sums, maxima and histograms of waits, one row a cell (layer, slot)."""

    def __init__(self, cells: int) -> None:
        self._histogram = np.zeros((cells, BINS), np.int32)
        self._total: Ints = np.zeros(cells, np.int64)
        self._maximum: Ints = np.zeros(cells, np.int64)
        self._cells = array("q")
        self._waits = array("q")

    def add(self, cell: int, wait: int) -> None:
        """Write down one job's wait in picoseconds."""
        self._cells.append(cell)
        self._waits.append(wait)
        if len(self._waits) >= BLOCK:
            self._flush()

    def extend(self, cells: Ints, waits: Ints) -> None:
        """Write down many jobs' waits at once."""
        self._count(cells, waits)

    @property
    def histogram(self) -> NDArray[np.int32]:
        """``(Q, B)``: jobs by the bin of their wait; see `bin_of`."""
        self._flush()
        return self._histogram

    @property
    def count(self) -> Ints:
        """``(Q,)``: jobs of each cell."""
        return self.histogram.sum(axis=1, dtype=np.int64)

    @property
    def total(self) -> Ints:
        """``(Q,)``: picoseconds waited in each cell, exact."""
        self._flush()
        return self._total

    @property
    def maximum(self) -> Ints:
        """``(Q,)``: the longest wait of each cell, exact."""
        self._flush()
        return self._maximum

    def _flush(self) -> None:
        if self._waits:
            cells = np.frombuffer(self._cells, np.int64).copy()
            waits = np.frombuffer(self._waits, np.int64).copy()
            del self._cells[:], self._waits[:]
            self._count(cells, waits)

    def _count(self, cells: Ints, waits: Ints) -> None:
        flat = self._histogram.reshape(-1)
        np.add.at(flat, cells * BINS + bin_of(waits), np.int32(1))
        np.add.at(self._total, cells, waits)
        np.maximum.at(self._maximum, cells, waits)


def bin_of(waits: Ints) -> Ints:
    """Return the bin of each wait: 0 for none, then eight to a doubling."""
    octave = np.log2(np.maximum(waits, FLOOR_PS) / FLOOR_PS)
    index = 1 + np.floor(octave * BINS_PER_OCTAVE).astype(np.int64)
    return np.where(waits > 0, np.minimum(index, BINS - 1), 0)


def quantiles(histogram: Ints, maximum: Ints, shares: Floats) -> Floats:
    """Return ``(..., shares)`` quantiles in picoseconds of ``(..., B)`` histograms.

    The value is the geometric middle of the bin that holds the quantile, never above
    the exact maximum; NaN where nothing was counted.
    """
    upto = histogram.cumsum(axis=-1)
    count = upto[..., -1:]
    rank = np.maximum(np.ceil(shares * count), 1)
    index = (upto[..., None, :] < rank[..., None]).sum(axis=-1)
    middle = FLOOR_PS * 2.0 ** ((index - 0.5) / BINS_PER_OCTAVE)
    value = np.where(index == 0, 0.0, np.minimum(middle, maximum[..., None]))
    return np.where(count > 0, value, np.nan)
