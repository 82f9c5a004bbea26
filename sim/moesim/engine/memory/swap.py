"""KV blocks that leave for the host's memory and come back over its ports.

A copy queues at the host port of its GPU, first come, first served, one queue for each
direction; it takes its bytes over what a copy from the host reaches
(``GpuSpec.host_bandwidth``), either way. Copies are asked for in order of time, so a
queue is a closed form: a copy asked for at ``A`` is done at ``max(A, D) + S``, ``D``
being when the one before it is. All GPUs of a rank move their shares of the same blocks
at the same time, so one queue stands for theirs.

Axis: ``R`` ranks.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil

from moesim.cost.memory import kv_bytes
from moesim.engine.clock import ticks
from moesim.spec.memory import MemorySpec
from moesim.spec.system import System
from moesim.types import Ints


@dataclass(frozen=True, slots=True)
class Kept:
    """A request on the host: its computed tokens, and its bytes on each GPU's host.

    Until `done` the last of them are on their way there.
    """

    rank: int
    tokens: int
    bytes: int
    done: int


class Swap:
    """The hosts' memory of all ranks, and the ports that lead there.

    Parameters
    ----------
    system : System
        What a block weighs, and how fast it moves.
    spec : MemorySpec
        How many bytes of each GPU its host may hold.
    block_size : int
        Tokens of a block.

    Attributes
    ----------
    kept : dict of int to Kept
        What is on the host, by request.
    used : list of R int
        Bytes of each GPU of a rank on its host.
    count, moved : int
        Requests that have left, and bytes moved either way by all GPUs.
    """

    def __init__(self, system: System, spec: MemorySpec, block_size: int) -> None:
        ranks = system.ranks
        self.system = system
        self.space = spec.swap_space_bytes
        self.block_size = block_size
        self.kept: dict[int, Kept] = {}
        self.used = [0] * ranks
        self.peak = 0
        self.count = self.moved = 0
        self._out = [0] * ranks
        self._in = [0] * ranks
        self._leaving: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        self._coming: list[Kept] = []

    def tokens(self, request: int) -> int:
        """Return how many computed tokens of a request are on the host."""
        kept = self.kept.get(request)
        return kept.tokens if kept else 0

    def put(self, request: int, rank: int, tokens: int, now: int) -> bool:
        """Send a request's computed tokens to the host; return whether there is room.

        Whole blocks move; those without a computed token are free at once.
        """
        blocks = -(-tokens // self.block_size)
        size = ceil(kv_bytes(self.system, blocks * self.block_size))
        if not tokens or self.used[rank] + size > self.space:
            return False
        done = self._out[rank] = max(now, self._out[rank]) + self._time(size)
        self._leaving[rank].append((done, blocks))
        self.kept[request] = Kept(rank, tokens, size, done)
        self.used[rank] += size
        self.peak = max(self.peak, self.used[rank])
        self.count += 1
        self.moved += size * self.system.tensor_parallel
        return True

    def back(self, request: int) -> None:
        """Let a request come back into the pass that is being drafted, if it is away."""
        kept = self.kept.pop(request, None)
        if kept:
            self.used[kept.rank] -= kept.bytes
            self._coming.append(kept)

    def settle(self, now: int, free: Ints) -> int:
        """Return when all copies are done that the pass just drafted waits for.

        It waits for the blocks it takes that are still on their way out, and for those
        of its requests that come back; they come once they are on the host, and once
        there is room for them.

        Parameters
        ----------
        free : (R,) array of int
            Blocks that nobody holds now, some of which may be on their way out.
        """
        room = [self._clean(rank, int(left), now) for rank, left in enumerate(free)]
        ready = max(room, default=now)
        for kept in self._coming:
            rank = kept.rank
            asked = max(room[rank], kept.done, self._in[rank])
            self._in[rank] = asked + self._time(kept.bytes)
            ready = max(ready, self._in[rank])
            self.moved += kept.bytes * self.system.tensor_parallel
        self._coming.clear()
        return ready

    def _clean(self, rank: int, free: int, now: int) -> int:
        """Return when all blocks in use on a rank have been left by who had them."""
        leaving = self._leaving[rank]
        while leaving and leaving[0][0] <= now:
            leaving.popleft()
        short = sum(blocks for _, blocks in leaving) - free
        ready = now
        while short > 0:
            ready, blocks = leaving.popleft()
            if blocks > short:
                leaving.appendleft((ready, blocks - short))
            short -= blocks
        return ready

    def _time(self, size: int) -> int:
        return ticks(size / self.system.topology.gpu.host_bandwidth)
