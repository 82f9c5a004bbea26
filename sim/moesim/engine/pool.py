"""Paged KV memory of the data-parallel ranks: whole blocks, each with one owner.

Axes: ``R`` ranks, ``N`` requests.
"""

import numpy as np

from moesim.types import Ints


class KvPool:
    """Blocks of every rank; a request's blocks all lie on its rank."""

    def __init__(self, ranks: int, requests: int, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.free: Ints = np.full(ranks, blocks)
        self.held: Ints = np.zeros(requests, np.int64)
        self.peak: Ints = np.zeros(ranks, np.int64)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def missing(self, request: int, tokens: int) -> int:
        """Return how many more blocks a request needs to hold this many tokens."""
        return max(0, self.blocks_for(tokens) - int(self.held[request]))

    def fits(self, rank: int, request: int, tokens: int) -> bool:
        """Return whether the rank's free blocks let a request hold so many tokens."""
        return self.missing(request, tokens) <= self.free[rank]

    def take(self, rank: int, request: int, tokens: int) -> None:
        """Give a request the blocks it needs to hold this many tokens."""
        more = self.missing(request, tokens)
        if more > self.free[rank]:
            message = f"rank {rank} has {self.free[rank]} free KV blocks, not {more}"
            raise AssertionError(message)
        self.free[rank] -= more
        self.held[request] += more
        self.peak[rank] = max(self.peak[rank], self.blocks - self.free[rank])

    def release(self, rank: int, request: int) -> None:
        """Take back all blocks of a request."""
        self.free[rank] += self.held[request]
        self.held[request] = 0
