"""Paged KV memory of the data-parallel ranks: whole blocks, counted, not numbered.

Who holds how many is the batcher's to know. Axis: ``R`` ranks.
"""

from typing import TypeVar

import numpy as np

from moesim.types import Ints

Tokens = TypeVar("Tokens", int, Ints)


class KvPool:
    """The free blocks of every rank, and the most that were ever in use."""

    def __init__(self, ranks: int, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.free: Ints = np.full(ranks, blocks)
        self.peak: Ints = np.zeros(ranks, np.int64)

    def blocks_for(self, tokens: Tokens) -> Tokens:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def used_in(self, block_size: int) -> Ints:
        """Return ``(R,)``: what is in use, in blocks of this many tokens."""
        used = self.blocks - self.free
        same = block_size == self.block_size
        return used if same else -(-used * self.block_size // block_size)

    def peak_in(self, block_size: int) -> Ints:
        """Return ``(R,)``: the most that was in use, in blocks of this many tokens."""
        return -(-self.peak * self.block_size // block_size)

    def take(self, rank: int, blocks: int) -> None:
        """Take blocks of one rank."""
        free = int(self.free[rank])
        if blocks > free:
            message = f"rank {rank} has {free} free KV blocks, not {blocks}"
            raise AssertionError(message)
        self.free[rank] = free - blocks
        self.peak[rank] = max(int(self.peak[rank]), self.blocks - free + blocks)

    def take_all(self, blocks: Ints) -> None:
        """Take ``(R,)`` blocks, so many of each rank."""
        if (blocks > self.free).any():
            rank = int((blocks > self.free).argmax())
            message = f"rank {rank} has {self.free[rank]} free KV blocks, not "
            raise AssertionError(f"{message}{blocks[rank]}")
        self.free -= blocks
        np.maximum(self.peak, self.blocks - self.free, out=self.peak)

    def release(self, rank: int, blocks: int) -> None:
        """Take back blocks of one rank."""
        self.free[rank] += blocks

    def release_all(self, blocks: Ints) -> None:
        """Take back ``(R,)`` blocks, so many of each rank."""
        self.free += blocks
