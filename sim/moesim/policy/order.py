"""Which job a GPU serves next: the place where peaks are staggered.

Keys are seconds; the smallest is served first, and equal keys by age. Axes: ``L``
layers, ``G`` GPUs.
"""

from dataclasses import dataclass
from math import inf
from typing import TypeGuard, get_args

import numpy as np

from moesim.policy.road import Road
from moesim.policy.view import BatchView, Knowledge, PredictorName, View
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


def check(
    knowledge: object, wait_budget_s: object, predictor: object = "global"
) -> None:
    """Raise `ValueError` for a knowledge, wait budget or predictor that means nothing."""
    _check_word("knowledge", knowledge, get_args(Knowledge))
    _check_word("predictor", predictor, get_args(PredictorName))
    if not (is_number(wait_budget_s) and float(wait_budget_s) >= 0):
        raise ValueError(f"wait_budget is a duration from 0; got {wait_budget_s!r}")


def _check_word(what: str, word: object, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{what} {word!r} is not one of {', '.join(known)}")


def check_number(name: str, value: object, most: float, none: float = 0.0) -> None:
    """Raise `ValueError` unless a value is a finite number from 0 to `most`, or `none`."""
    good = is_number(value) and (0 <= value <= most or value == none)
    if not good or value == inf:
        upto = f" to {most:g}" if most < inf else ""
        raise ValueError(f"{name} is a number from 0{upto}; got {value!r}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; true and false are none.

    >>> is_number(1.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def stage_bottlenecks(batch: BatchView, congestion: float = 0.0) -> Floats:
    """Return the busiest GPU's seconds in each stage still to come, this one first.

    A layer whose routing is unknown counts as the mean of the known ones, or as nothing
    when none is known. After the last layer nothing remains.

    Parameters
    ----------
    batch : BatchView
        The micro-batch.
    congestion : float
        How much a second of experts on a crowded part of the road counts more, and on
        an empty one less: 0 as any other, 1 in proportion to the crowd.
    """
    if batch.stage == "lm_head":
        return np.zeros(1)
    attention = batch.attention_s.max(axis=1)
    work = batch.experts_s
    if congestion and batch.road is not None:
        work = work * (1 + congestion * (crowd(batch.road) - 1))
    experts = fill_unknown(work.max(axis=1))
    path = np.stack([attention, experts], axis=1).ravel()
    return path[2 * batch.layer + (batch.stage == "experts") :]


def crowd(road: Road) -> Floats:
    """Return ``(L, G)``: how crowded each part of the road is, 1 on average.

    That is its share of time lately plus its share of the work under way, each over
    their mean; 1 everywhere while nothing is known.
    """
    terms = [road.use, road.ahead_s]
    known = [term / term.mean() for term in terms if term.any()]
    if not known:
        return np.ones_like(road.use)
    return np.mean(known, axis=0)


def fill_unknown(per_layer: Floats) -> Floats:
    """Return ``(L,)`` with each NaN replaced by the mean of the others (or by 0)."""
    unknown = np.isnan(per_layer)
    if not unknown.any():
        return per_layer
    known = per_layer[~unknown]
    return np.where(unknown, known.mean() if known.size else 0.0, per_layer)
