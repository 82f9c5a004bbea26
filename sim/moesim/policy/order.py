"""Which job a GPU serves next: the place where peaks are staggered.

Keys are seconds; the smallest is served first, and equal keys by age. Axis: ``L``
layers.
"""

from dataclasses import dataclass
from math import inf
from typing import TypeGuard, get_args

import numpy as np

from moesim.policy.view import BatchView, Knowledge, View
from moesim.types import Floats


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serve every queue in order of local arrival."""

    def key(self, batch: BatchView, view: View) -> float:
        """Return the same key for all: age alone decides."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Oldest:
    """The micro-batch admitted first goes first everywhere."""

    def key(self, batch: BatchView, view: View) -> float:
        """Return the micro-batch's place in the order of admission."""
        return float(batch.batch)


@dataclass(frozen=True, slots=True)
class PerLayer:
    """Shortest bottleneck in this layer first: what looks at one layer can do.

    Parameters
    ----------
    knowledge : {"present", "predicted", "oracle"}
        What it knows of the routing.
    wait_budget_s : float
        A job queued this long is served before all others, oldest first.
    """

    knowledge: Knowledge = "present"
    wait_budget_s: float = inf

    def __post_init__(self) -> None:
        check(self.knowledge, self.wait_budget_s)

    def key(self, batch: BatchView, view: View) -> float:
        """Return the busiest GPU's seconds in the stage about to queue."""
        return float(stage_bottlenecks(batch)[0])


@dataclass(frozen=True, slots=True)
class CrossLayer:
    """Shortest remaining bottleneck over all layers to come first, with ageing.

    Parameters
    ----------
    knowledge : {"present", "predicted", "oracle"}
        What it knows of the routing to come.
    ageing : float
        Seconds of remaining work that one second of age outweighs; 0 is pure
        shortest-remaining-first, which starves the long.
    wait_budget_s : float
        A job queued this long is served before all others, oldest first: it bounds
        every delay. 0 is FIFO.
    """

    knowledge: Knowledge = "predicted"
    ageing: float = 0.5
    wait_budget_s: float = 5e-3

    def __post_init__(self) -> None:
        check(self.knowledge, self.wait_budget_s)
        if not (is_number(self.ageing) and 0 <= self.ageing < inf):
            raise ValueError(f"ageing is a number from 0; got {self.ageing!r}")

    def key(self, batch: BatchView, view: View) -> float:
        """Return remaining seconds, less what age is worth.

        Age grows equally fast for all that wait, so the arrival of the oldest request
        stands for it: the key of a queued job never has to be computed anew.
        """
        remaining = float(stage_bottlenecks(batch).sum())
        return remaining + self.ageing * batch.oldest_arrival_s


def check(knowledge: object, wait_budget_s: object) -> None:
    """Raise `ValueError` for a knowledge or a wait budget that means nothing."""
    if knowledge not in get_args(Knowledge):
        known = ", ".join(get_args(Knowledge))
        raise ValueError(f"knowledge {knowledge!r} is not one of {known}")
    if not (is_number(wait_budget_s) and float(wait_budget_s) >= 0):
        raise ValueError(f"wait_budget is a duration from 0; got {wait_budget_s!r}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; true and false are none.

    >>> is_number(1.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def stage_bottlenecks(batch: BatchView) -> Floats:
    """Return the busiest GPU's seconds in each stage still to come, this one first.

    A layer whose routing is unknown counts as the mean of the known ones, or as nothing
    when none is known. After the last layer nothing remains.
    """
    if batch.stage == "lm_head":
        return np.zeros(1)
    attention = batch.attention_s.max(axis=1)
    experts = fill_unknown(batch.experts_s.max(axis=1))
    path = np.stack([attention, experts], axis=1).ravel()
    return path[2 * batch.layer + (batch.stage == "experts") :]


def fill_unknown(per_layer: Floats) -> Floats:
    """Return ``(L,)`` with each NaN replaced by the mean of the others (or by 0)."""
    unknown = np.isnan(per_layer)
    if not unknown.any():
        return per_layer
    known = per_layer[~unknown]
    return np.where(unknown, known.mean() if known.size else 0.0, per_layer)


ORDERS: dict[str, type[Fifo | Oldest | PerLayer | CrossLayer]] = {
    "fifo": Fifo,
    "oldest": Oldest,
    "per_layer": PerLayer,
    "cross_layer": CrossLayer,
}
