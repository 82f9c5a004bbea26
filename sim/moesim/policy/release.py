"""Whether a micro-batch that has been formed starts at once.

Axes: ``L`` MoE layers, ``G`` GPUs.
"""

from dataclasses import dataclass

import numpy as np

from moesim.policy.view import BatchView, View


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Hold nobody back, as engines do today."""

    def delay(self, batch: BatchView, view: View) -> float:
        """Return 0 seconds."""
        return 0.0


def excess_ahead(batch: BatchView, early: int) -> float:
    """Return how many seconds longer a micro-batch would queue than others might.

    That is the work under way in the first `early` layers at the GPU that the
    micro-batch will keep busiest there, less what GPUs have to do there on average:
    the part of the queue that a micro-batch with other experts would not meet. 0 when
    nothing is known of its path or of the road.
    """
    if batch.road is None:
        return 0.0
    own = np.nan_to_num(batch.experts_s[:early]).sum(axis=0)
    ahead = batch.road.ahead_s[:early].sum(axis=0)
    return max(0.0, float(ahead[own.argmax()] - ahead.mean()))


LACKS = 0.5
"""Experts to expect from which on a micro-batch counts as lacking one."""


def swaps_ahead(batch: BatchView, early: int) -> float:
    """Return for how many seconds others load experts where a micro-batch needs to.

    That is the longest queue of loads at the ports of GPUs on which it should lack
    experts in its first `early` layers; 0 when nothing is known of its path.
    """
    if batch.swap is None:
        return 0.0
    lacks = np.nan_to_num(batch.swap.absent[:early]).sum(axis=0) > LACKS
    return float(batch.swap.backlog_s[lacks].max(initial=0.0))
