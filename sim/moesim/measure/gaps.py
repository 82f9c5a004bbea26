"""The gaps between output tokens: each of them while they are few, then a histogram.

Axes: ``K`` gaps of a pass, ``N`` requests, ``B`` bins.
"""

from array import array

import numpy as np

from moesim.types import Floats, Ints

KEPT = 1 << 19
"""Up to so many gaps every one is kept, 12 B each; with one more, none is (524,288)."""
STEPS_BITS = 6
"""Binary digits that tell bins of one octave apart: 64 bins of equal width."""
STEPS = 1 << STEPS_BITS
BINS = 64 * STEPS
RELATIVE_ERROR = 0.5 / STEPS
"""Quantiles of the histogram are off by at most this share (0.8 %)."""
PS_PER_S = 10**12
_SHIFT = 52 - STEPS_BITS
_BIAS = 1023 << STEPS_BITS


class Gaps:
    """Gaps in whole picoseconds, in the order in which they were seen.

    The histogram, the count, the sum, the largest and the spread are of gaps of
    requests that arrived at `since` or later: those that are measured. What is kept one
    by one is kept of all requests.
    """

    def __init__(self) -> None:
        self.since = 0
        self.kept = True
        self._owner = array("i")
        self._gap = array("q")
        self.histogram: Ints = np.zeros(BINS, np.int64)
        self.count = 0
        self.total = 0
        self.largest = 0
        self._origin = 0
        self._squares = 0.0
        self._second = 0
        self._in_second = 0
        self.busiest_second = 0

    def __len__(self) -> int:
        """Return how many gaps are kept one by one: all or none."""
        return len(self._gap)

    def part(self, part: slice) -> tuple[Ints, Ints]:
        """Return owners and picoseconds of a stretch of the gaps that are kept."""
        owner = np.array(self._owner[part], np.int64)
        return owner, np.array(self._gap[part], np.int64)

    def add(self, requests: Ints, gaps: Ints, arrival: Ints) -> None:
        """Write down ``(K,)`` gaps of requests; `arrival` is of all ``N``."""
        if not len(requests):
            return
        if self.kept:
            self._keep(requests, gaps)
        if self.since:
            gaps = gaps[arrival[requests] >= self.since]
        if len(gaps):
            self._count(gaps)

    def tokens(self, made: int, now: int) -> None:
        """Write down that so many tokens were made at this instant."""
        second = now // PS_PER_S
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += made
        self.busiest_second = max(self.busiest_second, self._in_second)

    @property
    def deviation(self) -> float:
        """Standard deviation in picoseconds; 0 without gaps."""
        if not self.count:
            return 0.0
        shift = (self.total - self.count * self._origin) / self.count
        return float(max(self._squares / self.count - shift**2, 0.0) ** 0.5)

    def quantiles(self, shares: Floats) -> Floats:
        """Return quantiles in picoseconds, each off by at most `RELATIVE_ERROR`.

        The value is the middle of the bin that holds the gap of that rank, never above
        the largest gap; NaN without gaps.
        """
        if not self.count:
            return np.full(len(shares), np.nan)
        rank = np.maximum(np.ceil(shares * self.count), 1)
        index = np.searchsorted(self.histogram.cumsum(), rank)
        octave, step = np.divmod(index, STEPS)
        middle = 2.0**octave * (1 + (step + 0.5) / STEPS)
        return np.minimum(middle, self.largest)

    def _keep(self, requests: Ints, gaps: Ints) -> None:
        if len(self._gap) + len(gaps) > KEPT:
            self.kept = False
            del self._owner[:], self._gap[:]
            return
        self._owner.frombytes(requests.astype(np.int32).tobytes())
        self._gap.frombytes(gaps.tobytes())

    def _count(self, gaps: Ints) -> None:
        if not self.count:
            self._origin = int(gaps[0])
        self.count += len(gaps)
        self.total += int(gaps.sum())
        self.largest = max(self.largest, int(gaps.max()))
        away = (gaps - self._origin).astype(np.float64)
        self._squares += float(away @ away)
        self.histogram += np.bincount(bin_of(gaps), minlength=BINS)


def bin_of(gaps: Ints) -> Ints:
    """Return the bin of each gap: the octave, and the next six binary digits.

    >>> bin_of(np.array([1, 2, 3, 1 << 40])).tolist()
    [0, 64, 96, 2560]
    """
    bits = np.maximum(gaps, 1).astype(np.float64).view(np.int64)
    return (bits >> _SHIFT) - _BIAS
