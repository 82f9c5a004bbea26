"""How a rank's running requests share its micro-batches and its budget of tokens.

Axes: ``R`` data-parallel ranks, ``M`` seats.
"""

import numpy as np
from numpy.typing import NDArray

from moesim.types import Ints


def fair_share(ready: Ints, rank: NDArray[np.int32], running: Ints, most: int) -> Ints:
    """Return the ready seats that run now: of each rank's, a fair share at most.

    The others wait for the next micro-batch, so that those in flight stay alike.

    Parameters
    ----------
    ready, rank : (M,) arrays of int
        Seats in order of rank, and the rank of each.
    running : (R,) array of int
        Requests that run on each rank, in a pass or not.
    most : int
        Micro-batches in flight.
    """
    if most == 1:
        return ready
    count = np.bincount(rank, minlength=len(running))
    place = np.arange(len(ready)) - (count.cumsum() - count)[rank]
    share = -(-running // most)
    return ready[place < share[rank]]


def within_budget(
    left: NDArray[np.int32], rank: NDArray[np.int32], budget: Ints
) -> Ints:
    """Return what of `left` runs when each rank's budget goes to the oldest first.

    Only prompts that may be cut have more than one token left.

    Parameters
    ----------
    left, rank : (M,) arrays of int
        Tokens left of each seat, in order of rank.
    budget : (R,) array of int
        Tokens of each rank.
    """
    total = np.bincount(rank, left, len(budget)).astype(np.int64)
    if (total <= budget).all():
        return left.astype(np.int64)
    before = left.cumsum(dtype=np.int64) - left
    before -= (total.cumsum() - total)[rank]
    return np.clip(budget[rank] - before, 0, left)
