"""Which rank serves a request, who is tried next, and which stage runs.

Axes: ``W`` waiting requests, ``w`` the first of them, ``L`` MoE layers, ``G`` GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from moesim.policy.view import (
    BatchView,
    Foresight,
    RankView,
    View,
    WaitingView,
)
from moesim.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Deal requests to ranks in turn."""

    def rank(self, request: int, ranks: RankView) -> int:
        """Return the request's number modulo the ranks."""
        return request % len(ranks.tokens)


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """Give a request to the rank with the fewest tokens still to compute."""

    def rank(self, request: int, ranks: RankView) -> int:
        """Return the first least loaded rank."""
        return int(ranks.tokens.argmin())


@dataclass(frozen=True, slots=True)
class LeastKv:
    """Give a request to the rank with the fewest KV blocks in use."""

    def rank(self, request: int, ranks: RankView) -> int:
        """Return the first rank with the emptiest pool."""
        return int(ranks.kv_blocks.argmin())


@dataclass(frozen=True, slots=True)
class ArrivalOrder:
    """Try waiting requests first come, first served."""

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return the rows as they stand."""
        return np.arange(len(waiting.request))


def least_peak(waiting: WaitingView) -> list[int]:
    """Return rows that fill a micro-batch so that the busiest GPUs have least to do.

    The oldest is always in. Then, as long as one fits, the request comes in with which
    the sum over layers of the busiest GPU's load is least per token; equals by age.
    """
    room = len(waiting.load)
    tokens = waiting.tokens[:room]
    chosen = [0]
    total = int(tokens[0])
    load = waiting.load[0] + (waiting.taken if waiting.taken.size else 0.0)
    free = np.arange(1, room)
    while len(chosen) < waiting.seats:
        free = free[tokens[free] <= waiting.budget - total]
        if not free.size:
            break
        peaks = (load + waiting.load[free]).max(axis=2).sum(axis=1)
        best = int(free[first_least(peaks / (total + tokens[free]))])
        chosen.append(best)
        total += int(tokens[best])
        load = load + waiting.load[best]
        free = free[free != best]
    return chosen


def first_least(values: Floats) -> int:
    """Return the first place of the least value; rounding decides nothing.

    >>> first_least(np.array([2.0, 1.0 + 1e-15, 1.0]))
    1
    """
    return int((values <= values.min() * (1 + 1e-9)).argmax())


def _by_class() -> Foresight:
    return Foresight("predicted", "by_class", look=32)


@dataclass(frozen=True, slots=True)
class LeastPeak:
    """Fill micro-batches so that the busiest GPU of each layer has least to do.

    Parameters
    ----------
    foresight : Foresight
        What it knows of the paths of waiting requests, and of how many.
    """

    foresight: Foresight = field(default_factory=_by_class)

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return the chosen rows, then all others by age."""
        return chosen_first(waiting)


def chosen_first(waiting: WaitingView) -> Ints:
    """Return all rows: those of `least_peak` first, the others as they stand."""
    rows = np.arange(len(waiting.request))
    if not len(waiting.load):
        return rows
    chosen = np.array(least_peak(waiting))
    return np.concatenate([chosen, np.delete(rows, chosen)])


@dataclass(frozen=True, slots=True)
class SmallestKeys:
    """Run the ready micro-batches with the smallest keys of the policy's order.

    Parameters
    ----------
    width : int
        How many run in one lockstep stage; 0 is all of them, as engines do today.
    """

    width: int = 0

    def stage(self, ready: Sequence[BatchView], keys: Floats) -> Sequence[int]:
        """Return the rows to run: smallest key first, then longest ready, then number."""
        numbers = np.array([batch.batch for batch in ready])
        since = np.array([batch.ready_s for batch in ready])
        rows = np.lexsort((numbers, since, keys)).tolist()
        return rows[: self.width] if self.width else rows


ASSIGNS: dict[str, type[RoundRobin | LeastTokens | LeastKv]] = {
    "round_robin": RoundRobin,
    "least_tokens": LeastTokens,
    "least_kv": LeastKv,
}
