"""The running requests of one instance: one table, a column a request.

Columns stand in order of rank, and within a rank in the order in which requests came
in. A running request costs 28 B here while it runs; one that waits costs nothing.

Axes: ``R`` data-parallel ranks, ``M`` seats, some of which may have been left.
"""

import numpy as np
from numpy.typing import NDArray

from moesim.types import Ints

Counts = NDArray[np.int32]
REQUEST, RANK, KNOWN, COMPUTED, HELD, CHUNK, FLIGHT = range(7)
"""Rows of the table: who, where, tokens known and computed, KV blocks held, tokens of
the pass it is in, and that pass's number or `GROUND` or `GONE`."""
GROUND, GONE = -1, -2
Seated = tuple[int, int, int, int, int, int, int]
"""A request that comes in, as a column of the table."""
SLACK = 64
"""Seats left that are not worth tidying up."""


class Seats:
    """Running requests; every row is an attribute, a view into the table."""

    def __init__(self) -> None:
        self.table: Counts = np.zeros((7, 0), np.int32)

    def __len__(self) -> int:
        """Return how many seats there are, left ones included."""
        return self.table.shape[1]

    @property
    def request(self) -> Counts:
        """``(M,)`` numbers of the requests."""
        return self.table[REQUEST]

    @property
    def rank(self) -> Counts:
        """``(M,)`` ranks, ascending."""
        return self.table[RANK]

    @property
    def known(self) -> Counts:
        """``(M,)`` tokens of prompts and answers so far."""
        return self.table[KNOWN]

    @property
    def computed(self) -> Counts:
        """``(M,)`` tokens whose keys and values are cached."""
        return self.table[COMPUTED]

    @property
    def held(self) -> Counts:
        """``(M,)`` KV blocks."""
        return self.table[HELD]

    @property
    def chunk(self) -> Counts:
        """``(M,)`` tokens that the pass computes, of those in a pass."""
        return self.table[CHUNK]

    @property
    def flight(self) -> Counts:
        """``(M,)`` number of the pass, `GROUND` or `GONE`."""
        return self.table[FLIGHT]

    def ready(self) -> Ints:
        """Return the seats of requests that run but are in no pass."""
        return np.flatnonzero(self.table[FLIGHT] == GROUND)

    def of_pass(self, number: int) -> Ints:
        """Return the seats of a pass's requests."""
        return np.flatnonzero(self.table[FLIGHT] == number)

    def span(self, rank: int) -> tuple[int, int]:
        """Return where a rank's seats begin and end."""
        begin, end = np.searchsorted(self.table[RANK], (rank, rank + 1)).tolist()
        return begin, end

    def add(self, fresh: Counts) -> None:
        """Seat ``(7, K)`` requests behind those of their ranks; forget the left ones."""
        table = self.table[:, self.table[FLIGHT] != GONE]
        where = np.searchsorted(table[RANK], fresh[RANK], side="right")
        self.table = np.insert(table, where, fresh, axis=1)

    def tidy(self, alive: int) -> None:
        """Forget seats that have been left, when they are more than those in use."""
        if len(self) > 2 * alive + SLACK:
            self.table = self.table[:, self.table[FLIGHT] != GONE]
