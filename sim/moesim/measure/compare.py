"""Whether one policy is better than another: paired differences with honest intervals.

Replication ``r`` of every policy met the same traffic, so the differences are paired.
The intervals of a metric family are Holm-corrected: among all of them together, a
difference that is not there is declared in at most 5 % of comparisons.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from typing import Any

import numpy as np

from moesim.measure.intervals import (
    holm_levels,
    paired_difference,
    replications_needed,
)

DEFAULT_METRICS = (
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "request_throughput",
)
"""What is compared when nobody says; goodput joins where there are limits."""
HIGHER_IS_BETTER = (
    "throughput",
    "goodput",
    "tput_per_gpu",
    "intvty",
    "attainment",
    "balancedness",
    "completed",
    "useful_frac",
    "tokens_per_s",
)
WANTED = 0.02
"""Half-width, as a share of the baseline, that `needed` replications would give."""


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is good."""
    return any(part in metric for part in HIGHER_IS_BETTER)


def compare_paired(
    summaries: Mapping[str, Sequence[Mapping[str, Any]]],
    baseline: str,
    metrics: Sequence[str],
) -> list[dict[str, Any]]:
    """Return one row per metric and policy other than the baseline.

    Parameters
    ----------
    summaries : mapping of str to sequence of mapping
        For each policy its records, replication by replication.
    baseline : str
        The policy that the others are measured against.
    metrics : sequence of str
        Keys of the records; one that has no number in some record is left out.

    Returns
    -------
    list of dict
        ``policy``, ``metric``, ``baseline`` and ``value`` (means), ``difference``,
        ``relative`` (of the baseline; None if that is 0), ``low`` and ``high`` (of the
        difference, Holm-corrected over all rows), ``p_value``, ``verdict`` (``better``,
        ``worse``, ``no difference``) and ``needed``: replications for an interval of
        plus or minus 2 % of the baseline.
    """
    pairs = [
        (policy, metric, _column(records, metric), _column(summaries[baseline], metric))
        for metric in metrics
        for policy, records in summaries.items()
        if policy != baseline
    ]
    pairs = [pair for pair in pairs if np.isfinite([*pair[2], *pair[3]]).all()]
    found = [paired_difference(after, before) for _, _, after, before in pairs]
    levels = holm_levels([difference.p_value for difference in found])
    rows = []
    for (policy, metric, after, before), difference, level in zip(
        pairs, found, levels, strict=True
    ):
        low, high = difference.interval(float(level))
        base = float(np.mean(before))
        spread = difference.standard_error * difference.pairs**0.5
        rows.append(
            {
                "policy": policy,
                "metric": metric,
                "baseline": base,
                "value": float(np.mean(after)),
                "difference": difference.mean,
                "relative": difference.mean / base if base else None,
                "low": low,
                "high": high,
                "p_value": difference.p_value,
                "verdict": verdict(low, high, metric),
                "needed": needed(spread, abs(base) * WANTED),
            }
        )
    return rows


def verdict(low: float, high: float, metric: str) -> str:
    """Return ``better``, ``worse`` or ``no difference``: no verdict without an interval.

    >>> verdict(-3.0, -1.0, "p99_ttft_ms"), verdict(-1.0, 1.0, "request_goodput")
    ('better', 'no difference')
    """
    if not (isfinite(low) and isfinite(high)) or low <= 0 <= high:
        return "no difference"
    return "better" if (low > 0) == higher_is_better(metric) else "worse"


def needed(spread: float, half_width: float) -> int | None:
    """Return how many replications give an interval of this half-width, if any do."""
    if not isfinite(spread) or not 0 < half_width < inf:
        return None
    return replications_needed(spread, half_width)


def _column(records: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    values = (record.get(metric) for record in records)
    return [nan if value is None else float(value) for value in values]
