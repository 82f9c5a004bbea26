"""The steady state within one run: where it begins, and how sure its mean is."""

from collections.abc import Sequence
from math import nan

import numpy as np

from moesim.measure.intervals import LEVEL, student_interval
from moesim.types import Floats


def mser5(values: Sequence[float] | Floats) -> int:
    """Return how many first observations to drop as warm-up, by MSER-5.

    Of all cuts within the first half, in batches of five, the one after which the
    remaining batch means have the smallest ``variance / batches``. A cut at the half
    means that the run was too short to tell.

    Source: White, Cobb and Spratt, "A comparison of five steady-state truncation
    heuristics for simulation", WSC 2000.

    Examples
    --------
    >>> mser5([50.0] * 5 + [30.0] * 5 + [10.0, 11.0] * 50)
    10
    """
    batches = len(values) // 5
    if batches < 2:
        return 0
    means = np.asarray(values, float)[: batches * 5].reshape(batches, 5).mean(axis=1)
    means = means - means.mean()  # keeps the digits of the sums of squares
    left = batches - np.arange(batches)
    total = means[::-1].cumsum()[::-1]
    squares = (means**2)[::-1].cumsum()[::-1]
    score = (squares - total**2 / left) / left**2
    return 5 * int(score[: batches // 2 + 1].argmin())


def batch_means_interval(
    values: Sequence[float] | Floats, batches: int = 20, level: float = LEVEL
) -> tuple[float, float]:
    """Return the interval of a steady-state mean from one run, by batch means.

    The run is cut into `batches` equal stretches, taken as independent: right when a
    stretch is many times longer than the process remembers. What is left over at the
    start, where a warm-up would linger, is dropped. NaN both with fewer values than
    two a batch.
    """
    size = len(values) // batches
    if size < 2:
        return nan, nan
    kept = np.asarray(values, dtype=float)[-size * batches :]
    return student_interval(kept.reshape(batches, size).mean(axis=1), level)
