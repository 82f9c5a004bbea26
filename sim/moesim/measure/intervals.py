"""How sure a number is: intervals, tests and the number of runs they need.

Intervals over replications treat each run as one observation, whatever goes on inside.
Intervals within a run assume independent observations, which waiting times are not: at
80 % load such an interval covers the truth far less often than it says. Use them for
independent data, or after batching.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, log, nan, sqrt
from typing import Final

import numpy as np

from moesim.types import Floats

LEVEL: Final = 0.95
MOST_RUNS: Final = 10**9
NOISE: Final = 1e-12
"""Differences under this share of the values are rounding, not effects."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean of paired differences, and how sure it is.

    Parameters
    ----------
    mean, standard_error : float
        Mean of the differences, and its standard error.
    pairs : int
        How many there were.
    p_value : float
        Two-sided p-value of the hypothesis that the true mean is 0.
    """

    mean: float
    standard_error: float
    pairs: int
    p_value: float

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the Student-t interval of the mean; NaN for fewer than two pairs."""
        reach = _reach(self.standard_error, self.pairs, level)
        return self.mean - reach, self.mean + reach


def student_interval(
    values: Sequence[float] | Floats, level: float = LEVEL
) -> tuple[float, float]:
    """Return the Student-t interval of the mean of independent values.

    Parameters
    ----------
    values : (n,) array of float
        One value per replication.
    level : float
        Share of such intervals that cover the true mean, for normal values.

    Returns
    -------
    tuple of float
        Low and high end; NaN both for fewer than two values, or if any is NaN.

    Examples
    --------
    >>> [round(end, 3) for end in student_interval([1.0, 2.0, 3.0, 4.0])]
    [0.446, 4.554]
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2 or not np.isfinite(values).all():
        return nan, nan
    mean = float(values.mean())
    reach = _reach(_standard_error(values), len(values), level)
    return mean - reach, mean + reach


def paired_difference(
    values: Sequence[float] | Floats, baseline: Sequence[float] | Floats
) -> PairedDifference:
    """Return the mean of ``values - baseline`` with the paired t test of it being 0.

    Pairs must have met the same traffic. Differences that are all the same number have
    no spread: the p-value is 1 if that number is 0, else 0.
    """
    after, before = np.asarray(values, float), np.asarray(baseline, float)
    differences = after - before
    if not np.isfinite(differences).all() or not len(differences):
        return PairedDifference(nan, nan, len(differences), nan)
    scale = np.maximum(np.abs(after), np.abs(before))
    differences = np.where(np.abs(differences) <= NOISE * scale, 0.0, differences)
    mean = float(differences.mean())
    error = _standard_error(differences)
    return PairedDifference(
        mean, error, len(differences), _p_value(mean, error, len(after))
    )


def quantile_ranks(
    n: int, share: float, level: float = LEVEL
) -> tuple[int, int] | None:
    """Return which order statistics bracket a quantile, whatever the law.

    The exact binomial bounds: each side is missed with at most half of ``1 - level``.

    Parameters
    ----------
    n : int
        How many independent observations.
    share : float
        Which quantile, between 0 and 1.
    level : float
        Share of such intervals that cover the true quantile, at least.

    Returns
    -------
    tuple of int or None
        Ranks of the two ends, counted from 1; None if so few observations give none.

    Examples
    --------
    >>> quantile_ranks(1000, 0.99), quantile_ranks(100, 0.99)
    ((983, 997), None)
    """
    from scipy.stats import binom

    miss = (1 - level) / 2
    low = int(binom.ppf(miss, n, share))
    high = int(binom.ppf(1 - miss, n, share)) + 1
    return (low, high) if low >= 1 and high <= n else None


def quantile_interval(
    values: Sequence[float] | Floats, share: float, level: float = LEVEL
) -> tuple[float, float]:
    """Return a distribution-free interval of a quantile of independent values.

    NaN both when there are too few (`samples_for_quantile` says how many it takes).
    """
    ranks = quantile_ranks(len(values), share, level)
    if ranks is None:
        return nan, nan
    ordered = np.sort(np.asarray(values, dtype=float))
    return float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1])


def samples_for_quantile(share: float, level: float = LEVEL) -> int:
    """Return how many independent observations give `quantile_interval` two ends.

    Examples
    --------
    >>> samples_for_quantile(0.99)
    368
    """
    rarer = max(share, 1 - share)
    start = ceil(log((1 - level) / 2) / log(rarer))
    # The closed form can be off by one in the last digit; the ranks decide.
    return next(n for n in count(max(start - 1, 1)) if quantile_ranks(n, share, level))


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """Return p-values adjusted for how many were tested together.

    Rejecting those at most 0.05 makes one false claim or more in at most 5 % of
    families, whatever the dependence. Source: Holm, Scand. J. Statist. 6 (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def holm_levels(p_values: Sequence[float] | Floats, level: float = LEVEL) -> Floats:
    """Return the level of each test's interval, so that it agrees with `holm`.

    An interval of the level given here excludes 0 exactly when Holm's procedure
    rejects. After the first test that it keeps, all others share that one's level.
    """
    p = np.asarray(p_values, dtype=float)
    miss = (1 - level) / (len(p) - np.arange(len(p)))
    order = np.argsort(p, kind="stable")
    kept = np.flatnonzero(p[order] > miss)
    if len(kept):
        miss[kept[0] :] = miss[kept[0]]
    levels = np.empty(len(p))
    levels[order] = 1 - miss
    return levels


def replications_needed(spread: float, half_width: float, level: float = LEVEL) -> int:
    """Return the fewest replications whose Student-t interval is that narrow.

    Parameters
    ----------
    spread : float
        Standard deviation of one replication's value (or paired difference).
    half_width : float
        Wanted half width of the interval, above 0, in the same unit.
    level : float
        Level of the interval.

    Returns
    -------
    int
        At least 2, at most a thousand million.

    Examples
    --------
    >>> replications_needed(spread=1.0, half_width=0.5)
    18
    """
    if not half_width > 0:
        message = f"a half width is above 0; got {half_width}"
        raise ValueError(message)
    return _first(2, lambda n: _reach(spread / sqrt(n), n, level) <= half_width)


def _first(low: int, holds: Callable[[int], bool]) -> int:
    """Return the least number from `low` on for which `holds`, and ever after."""
    high = low
    while not holds(high):
        if high >= MOST_RUNS:
            return MOST_RUNS
        low, high = high + 1, min(high * 2, MOST_RUNS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean; 0 when all values are the same."""
    if len(values) < 2:
        return nan
    if (values == values[0]).all():  # rounding in the mean would leave a trace
        return 0.0
    return float(values.std(ddof=1)) / sqrt(len(values))


def _reach(error: float, n: int, level: float) -> float:
    from scipy.special import stdtrit

    if n < 2:
        return nan
    return float(stdtrit(n - 1, (1 + level) / 2)) * error


def _p_value(mean: float, error: float, n: int) -> float:
    from scipy.special import stdtr

    if n < 2:
        return nan
    if not error:
        return float(mean == 0)
    return 2 * float(stdtr(n - 1, -abs(mean / error)))
