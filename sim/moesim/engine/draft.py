"""What the instance has decided to run, before it is routed and priced.

Axes: ``M`` requests of the pass, ``T`` tokens, ``G`` GPUs, ``R`` data-parallel ranks.
"""

from dataclasses import dataclass

import numpy as np

from moesim.spec.system import System
from moesim.types import Ints


@dataclass(frozen=True, slots=True)
class Draft:
    """A micro-batch to be: ``(M,)`` columns.

    Parameters
    ----------
    number, now : int
        Number of the micro-batch, and the time.
    oldest_arrival_s : float
        When its oldest request arrived.
    requests, rank, klass : (M,) arrays of int
        Who, on which data-parallel rank, of what class.
    start, chunk : (M,) arrays of int
        First position computed in this pass, and how many.
    samples : (M,) array of int
        1 where the pass ends with a new token, else 0.
    padding : (R,) array of int
        Rows added to each rank.
    ready : int
        When it may begin at the earliest: once the KV blocks it needs have moved.
    """

    number: int
    now: int
    oldest_arrival_s: float
    requests: Ints
    rank: Ints
    klass: Ints
    start: Ints
    chunk: Ints
    samples: Ints
    padding: Ints
    ready: int = 0


def sources(rank: Ints, rows: Ints, system: System) -> Ints:
    """Return the GPU at which each row enters: dealt to its rank's GPUs in turn."""
    of_rank = np.repeat(rank, rows)
    if system.tensor_parallel == 1:
        return of_rank
    turn = np.arange(len(of_rank)) % system.tensor_parallel
    return of_rank * system.tensor_parallel + turn


def on_gpus(rank: Ints, amount: Ints, system: System) -> Ints:
    """Return ``(G,)``: each rank's total amount, on every GPU of the rank."""
    total = np.bincount(rank, amount, system.ranks).astype(np.int64)
    return np.repeat(total, system.tensor_parallel)
