"""Which rank serves a request, who is tried next, and which stage runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moesim.policy.view import BatchView, RankView, View, WaitingView
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
