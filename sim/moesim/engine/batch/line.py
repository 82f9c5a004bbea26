"""The waiting line of one rank: request numbers in one buffer, both ends open."""

import numpy as np
from numpy.typing import NDArray

LEAST = 16
"""Room at each end of a fresh buffer; else an eighth of what waits."""


class Line:
    """Request numbers, longest wait first; 5 B for one that waits in a long line.

    Every operation takes amortised time in the requests it touches, not in the length.
    """

    __slots__ = ("_buffer", "_head", "_tail")

    def __init__(self) -> None:
        self._buffer: NDArray[np.int32] = np.empty(0, np.int32)
        self._head = 0
        self._tail = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._tail - self._head

    def append(self, request: int) -> None:
        """Let a request wait behind all others."""
        if self._tail == len(self._buffer):
            self._make_room()
        self._buffer[self._tail] = request
        self._tail += 1

    def prepend(self, request: int) -> None:
        """Let a request wait before all others."""
        if not self._head:
            self._make_room()
        self._head -= 1
        self._buffer[self._head] = request

    def first(self, count: int) -> NDArray[np.int32]:
        """Return a copy of up to `count` requests that have waited longest."""
        return self._buffer[self._head : min(self._head + count, self._tail)].copy()

    def remove(self, requests: list[int], window: int) -> None:
        """Take out requests, all among the first `window`; others keep their places."""
        if self.first(len(requests)).tolist() == requests:
            self._head += len(requests)
            return
        seen = self.first(window)
        rest = seen[~np.isin(seen, requests)]
        self._head += len(requests)
        self._buffer[self._head : self._head + len(rest)] = rest

    def tolist(self) -> list[int]:
        """Return all that wait."""
        return self._buffer[self._head : self._tail].tolist()

    def _make_room(self) -> None:
        """Move all to a buffer with room at both ends."""
        count = len(self)
        spare = max(LEAST, count // 8)
        buffer = np.empty(count + 2 * spare, np.int32)
        buffer[spare : spare + count] = self._buffer[self._head : self._tail]
        self._buffer, self._head, self._tail = buffer, spare, spare + count
