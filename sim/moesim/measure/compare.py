"""Whether one policy is better than another: paired differences with honest intervals.

Replication ``r`` of every policy met the same traffic, so the differences are paired.
Verdicts are Holm-corrected over all rows of a comparison: any difference that is not
there is declared in at most 5 % of comparisons. Each interval has the level at which
Holm's procedure judged it, 95 % or higher, so it excludes 0 exactly when the verdict
says so.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan, sqrt
from typing import Any, Final

import numpy as np

from moesim.errors import InputError, meant
from moesim.measure.intervals import (
    LEVEL,
    PairedDifference,
    holm_levels,
    paired_difference,
    replications_needed,
)

DEFAULT_METRICS: Final = (
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "request_throughput",
)
"""What is compared when nobody says; goodput joins where there are limits."""
HIGHER_IS_BETTER: Final = (
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
LOWER_IS_BETTER: Final = (
    "_ms",
    "wait",
    "duration",
    "failed",
    "rejected",
    "preemptions",
    "expert_cv",
    "expert_share",
    "a2a_frac",
    "combine_frac",
    "dispatch_frac",
    "padding_frac",
    "queue_frac",
    "straggler_frac",
    "imbalance",
)
"""Parts of keys that tell the good direction; a key with none of them has none."""
WANTED: Final = 0.02
"""Half-width, as a share of the baseline, that `needed` replications would give."""


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is good."""
    return any(part in metric for part in HIGHER_IS_BETTER)


def lower_is_better(metric: str) -> bool:
    """Return whether less of a metric is good."""
    return any(part in metric for part in LOWER_IS_BETTER)


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
        difference, Holm-corrected over all rows), ``p_value`` (before correction),
        ``verdict`` (see there) and ``needed``: replications that would narrow this
        interval to plus or minus 2 % of the baseline.

    Raises
    ------
    InputError
        If the baseline is not among the policies, or they have unequally many records.
    """
    _check_pairs(summaries, baseline)
    pairs = [
        (policy, metric, _column(records, metric), _column(summaries[baseline], metric))
        for metric in metrics
        for policy, records in summaries.items()
        if policy != baseline
    ]
    pairs = [pair for pair in pairs if np.isfinite([*pair[2], *pair[3]]).all()]
    found = [paired_difference(after, before) for _, _, after, before in pairs]
    levels = holm_levels([difference.p_value for difference in found])
    return [
        {"policy": policy, "metric": metric, **_row(metric, difference, means, level)}
        for (policy, metric, *columns), difference, level in zip(
            pairs, found, levels.tolist(), strict=True
        )
        for means in [[float(np.mean(column)) for column in columns]]
    ]


def verdict(low: float, high: float, metric: str) -> str:
    """Return what an interval of a difference says of a metric.

    ``better`` or ``worse`` when it excludes 0, ``differs`` if neither direction is
    good; ``no difference`` when it contains 0, or when there is no interval.

    Examples
    --------
    >>> verdict(-3.0, -1.0, "p99_ttft_ms"), verdict(-1.0, 1.0, "request_goodput")
    ('better', 'no difference')
    """
    if not (isfinite(low) and isfinite(high)) or low <= 0 <= high:
        return "no difference"
    if higher_is_better(metric):
        return "better" if low > 0 else "worse"
    if lower_is_better(metric):
        return "better" if high < 0 else "worse"
    return "differs"


def needed(spread: float, half_width: float, level: float = LEVEL) -> int | None:
    """Return how many replications give an interval of this half-width, if any do."""
    if not isfinite(spread) or not 0 < half_width < inf:
        return None
    return replications_needed(spread, half_width, level)


def _row(
    metric: str, difference: PairedDifference, means: Sequence[float], level: float
) -> dict[str, Any]:
    """Return the numbers of one row; `means` are the policy's and the baseline's."""
    value, base = means
    low, high = difference.interval(level)
    spread = difference.standard_error * sqrt(difference.pairs)
    return {
        "baseline": base,
        "value": value,
        "difference": difference.mean,
        "relative": difference.mean / abs(base) if base else None,
        "low": low,
        "high": high,
        "p_value": difference.p_value,
        "verdict": verdict(low, high, metric),
        "needed": needed(spread, abs(base) * WANTED, level),
    }


def _check_pairs(summaries: Mapping[str, Sequence[Any]], baseline: str) -> None:
    if baseline not in summaries:
        names = f"{', '.join(summaries)}{meant(baseline, summaries)}"
        raise InputError(f"the baseline {baseline!r} is not one of {names}")
    counts = {policy: len(records) for policy, records in summaries.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"policies have unequally many runs to pair: {counts}")


def _column(records: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    values = (record.get(metric) for record in records)
    return [nan if value is None else float(value) for value in values]
