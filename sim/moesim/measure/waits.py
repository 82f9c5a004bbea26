"""How long jobs waited: a histogram a cell, with a stated error.

Axes: ``Q`` cells, ``B`` bins.
"""

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ints

BINS_PER_OCTAVE = 8
FLOOR_PS = 1024
"""Waits up to about a nanosecond share one bin; 0 has its own."""
OCTAVES = 40
BINS = 2 + BINS_PER_OCTAVE * OCTAVES
AT_ONCE = 1024
"""Histograms whose quantiles are taken together."""
RELATIVE_ERROR = 2 ** (0.5 / BINS_PER_OCTAVE) - 1
"""Quantiles of waits over a nanosecond are off by at most this share (4.4 %)."""


class WaitColumns:
    """Counts, sums, maxima and histograms of waits, one row a cell (layer, slot).

    Histograms lie bin by bin in memory, and bins that no wait falls into take none.

    Attributes
    ----------
    total, maximum : (Q,) arrays of int
        Picoseconds waited in each cell, and the longest wait; exact.
    """

    def __init__(self, cells: int) -> None:
        self._by_bin = np.zeros((0, cells), np.int32)
        self._row: Ints = np.full(BINS, -1)
        self._rows = 0
        self.total: Ints = np.zeros(cells, np.int64)
        self.maximum: Ints = np.zeros(cells, np.int64)

    def extend(self, cells: Ints, waits: Ints) -> None:
        """Write down jobs' waits in picoseconds."""
        index = bin_of(waits)
        row = self._row[index]
        if (row < 0).any():
            self._open(np.unique(index[row < 0]))
            row = self._row[index]
        place = row * self._by_bin.shape[1] + cells
        np.add.at(self._by_bin.reshape(-1), place, np.int32(1))
        np.add.at(self.total, cells, waits)
        np.maximum.at(self.maximum, cells, waits)

    def pooled(self, group: Ints, groups: int) -> "WaitColumns":
        """Return cells put together: ``(Q,)`` says to which group each belongs."""
        pooled = WaitColumns(groups)
        pooled._row, pooled._rows = self._row.copy(), self._rows
        pooled._by_bin = np.zeros((len(self._by_bin), groups), np.int32)
        for row in range(self._rows):
            np.add.at(pooled._by_bin[row], group, self._by_bin[row])
        np.add.at(pooled.total, group, self.total)
        np.maximum.at(pooled.maximum, group, self.maximum)
        return pooled

    def only(self, cells: Ints) -> "WaitColumns":
        """Return some of the cells, in that order."""
        kept = WaitColumns(len(cells))
        kept._row, kept._rows = self._row.copy(), self._rows
        kept._by_bin = self._by_bin[:, cells]
        kept.total, kept.maximum = self.total[cells], self.maximum[cells]
        return kept

    @property
    def histogram(self) -> NDArray[np.int32]:
        """``(Q, B)``: jobs by the bin of their wait; see `bin_of`."""
        used = self.used
        whole = np.zeros((self._by_bin.shape[1], BINS), np.int32)
        whole[:, used] = self._by_bin[self._row[used]].T
        return whole

    @property
    def used(self) -> Ints:
        """Numbers of the bins that some wait has fallen into, ascending."""
        return np.flatnonzero(self._row >= 0)

    @property
    def count(self) -> Ints:
        """``(Q,)``: jobs of each cell."""
        return self._by_bin.sum(axis=0, dtype=np.int64)

    def bin(self, index: int) -> NDArray[np.int32]:
        """Return ``(Q,)`` jobs of one of the bins in `used`."""
        return self._by_bin[self._row[index]]

    def _open(self, bins: Ints) -> None:
        """Make room for bins that had no wait."""
        self._row[bins] = np.arange(self._rows, self._rows + len(bins))
        self._rows += len(bins)
        short = self._rows - len(self._by_bin)
        if short > 0:
            more = max(short, BINS_PER_OCTAVE)
            fresh = np.zeros((more, self._by_bin.shape[1]), np.int32)
            self._by_bin = np.concatenate([self._by_bin, fresh])


def bin_of(waits: Ints) -> Ints:
    """Return the bin of each wait: 0 for none, then eight to a doubling."""
    octave = np.log2(np.maximum(waits, FLOOR_PS) / FLOOR_PS)
    index = 1 + np.floor(octave * BINS_PER_OCTAVE).astype(np.int64)
    return np.where(waits > 0, np.minimum(index, BINS - 1), 0)


def pooled_quantiles(
    waits: WaitColumns, group: Ints, groups: int, shares: Floats
) -> Floats:
    """Return ``(groups, shares)`` quantiles of cells put together; see `quantiles`.

    Parameters
    ----------
    waits : WaitColumns
        Histograms of ``Q`` cells.
    group : (Q,) array of int
        To which group each cell belongs.
    groups : int
        How many there are.
    shares : array of float
        Which quantiles.
    """
    maximum = np.zeros(groups, np.int64)
    np.maximum.at(maximum, group, waits.maximum)
    used = waits.used
    pooled = np.zeros((len(used), groups), np.int32)
    for row, index in zip(pooled, used.tolist(), strict=True):
        np.add.at(row, group, waits.bin(index))
    found = np.empty((groups, len(shares)))
    for begin in range(0, groups, AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        histogram = np.zeros((len(found[part]), BINS), np.int64)
        histogram[:, used] = pooled[:, part].T
        found[part] = quantiles(histogram, maximum[part], shares)
    return found


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
