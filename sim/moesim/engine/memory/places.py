"""Where single requests' cached tokens are: in a stretch of memory, or on the host.

Paged memory knows only how many blocks a request holds, and none of this is there.
"""

from moesim.engine.batch.seats import Counts
from moesim.engine.memory.reservations import Reservations
from moesim.engine.memory.swap import Swap
from moesim.types import Ints


class Places:
    """What the batcher asks about a request's place; by default it has none.

    Attributes
    ----------
    stretches : Reservations or None
        With contiguous memory, who holds what.
    swap : Swap or None
        With preemption by swapping, who is on the host.
    """

    def __init__(self, stretches: Reservations | None = None) -> None:
        self.stretches = stretches
        self.swap: Swap | None = None

    def refusal(self, prompt: int, output: int) -> str:
        """Return why a request can never have a place, or nothing."""
        return self.stretches.refusal(prompt, output) if self.stretches else ""

    def kept(self, request: int) -> int:
        """Return how many of its computed tokens are on the host."""
        return self.swap.tokens(request) if self.swap else 0

    def give(self, rank: int, request: int, blocks: int) -> bool:
        """Give a request that comes in its place; return whether there was one."""
        if self.swap:
            self.swap.back(request)
        return not self.stretches or self.stretches.take(rank, request, blocks)

    def put(self, request: int, rank: int, computed: int, now: int) -> bool:
        """Return whether a request that is put back keeps its tokens: on the host."""
        return self.swap is not None and self.swap.put(request, rank, computed, now)

    def leave(self, rank: Counts, request: Counts) -> None:
        """Take back the places of requests that have ended."""
        if self.stretches:
            self.stretches.leave(rank.tolist(), request.tolist())

    def settle(self, now: int, free: Ints) -> int:
        """Return when a pass that takes blocks may begin, or 0: at once."""
        return self.swap.settle(now, free) if self.swap else 0
