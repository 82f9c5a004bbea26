"""What could be gained at most, and by what: bounds, not promises.

A layer's experts take as long as its most loaded rank, so the time of all layers goes
as the sum over layers of the largest load, here over that of perfectly even loads
(``ratio``; 1 is perfect). ``saves`` is the share of the experts' time (waiting for the
slowest rank included) that goes away at most, were time in proportion to tokens. Where
few tokens meet each expert, weights set the time and less is to be had.

Placements are told twice: fitted to the log they are judged by, and fitted to its first
half and judged by its second.

Axes: ``B`` batches, ``W`` windows, ``L`` MoE layers, ``E`` experts, ``G`` GPUs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesim.diagnose.ranks import PASS, Batches
from moesim.diagnose.traffic import Traffic
from moesim.policy.place.eplb import eplb_global
from moesim.policy.place.flat import greedy
from moesim.routing import stats
from moesim.spec.placement import Placement
from moesim.types import Floats

Record = dict[str, Any]


def bounds(
    traffic: Traffic, batches: Batches, sizes: Sequence[int], seen: Record | None
) -> Record:
    """Return the bounds for each EP size.

    Parameters
    ----------
    seen : dict or None
        What `across.prediction` found.
    """
    return {str(size): _of_size(traffic, batches, size, seen) for size in sizes}


def _of_size(
    traffic: Traffic, batches: Batches, gpus: int, seen: Record | None
) -> Record:
    totals = traffic.totals
    now = time_ratio(stats.rank_counts(totals, gpus))
    found: Record = {"now": now, "perfect": bound(now, 1.0)}
    found["placement"] = _placement(traffic, gpus)
    found["replication"] = _replication(traffic, gpus)
    load = stats.rank_counts(totals, gpus)
    found["off_peak"] = bound(now, float(load.sum(axis=0).max() / load.sum() * gpus))
    found["prediction"] = _prediction(traffic, batches.get(PASS), gpus)
    found["prefetch"] = None
    if seen is not None:
        found["prefetch"] = {
            "hidden": seen["recall"],
            "without_looking": seen["blind_recall"],
        }
    return found


def time_ratio(load: Floats) -> float:
    """Return the time of ``(..., L, G)`` loads over that of even loads."""
    return float(load.max(axis=-1).sum() / load.mean(axis=-1).sum())


def bound(now: float, then: float) -> Record:
    """Return a ratio and the share of time that it saves; never less than nothing.

    >>> bound(2.0, 1.5)
    {'ratio': 1.5, 'saves': 0.25}
    """
    return {"ratio": then, "saves": max(0.0, 1 - then / now)}


def placed(counts: Floats, placement: Placement) -> Floats:
    """Return ``(..., L, G)``: tokens of each GPU when copies share evenly."""
    share = counts / placement.replicas
    layer = np.arange(counts.shape[-2])[:, None]
    slots = share[..., layer, placement.phy2log]
    shape = (*slots.shape[:-1], placement.gpus, placement.slots_per_gpu)
    return slots.reshape(shape).sum(axis=-1)


def spare_slots(experts: int, gpus: int) -> int:
    """Return the fewest copies that fill equal GPUs: at most one for each.

    >>> spare_slots(64, 8), spare_slots(60, 8)
    (8, 4)
    """
    return (-experts) % gpus or gpus


def _placement(traffic: Traffic, gpus: int) -> Record:
    """Return what moving experts gives, and what no placement without copies beats.

    GPUs hold equally many experts, as far as that divides.
    """
    totals = traffic.totals
    now = time_ratio(stats.rank_counts(totals, gpus))
    even = totals.sum(axis=1) / gpus
    ordered = np.sort(totals, axis=1)
    # The hottest expert shares its GPU with some: at best with the coldest.
    least = ordered[:, -1] + ordered[:, : traffic.experts // gpus - 1].sum(axis=1)
    best = float(np.maximum(even, least).sum() / even.sum())
    found: Record = {"limit": bound(now, best), "fitted": None, "held_out": None}
    if traffic.experts % gpus == 0:
        found["fitted"] = bound(now, time_ratio(placed(totals, greedy(totals, gpus))))
        found["held_out"] = _held_out(traffic, gpus, lambda known: greedy(known, gpus))
    return found


def _replication(traffic: Traffic, gpus: int) -> Record:
    totals = traffic.totals
    now = time_ratio(stats.rank_counts(totals, gpus))
    spare = spare_slots(traffic.experts, gpus)
    fitted = eplb_global(totals, gpus, redundant=spare)
    return {
        "redundant": spare,
        "fitted": bound(now, time_ratio(placed(totals, fitted))),
        "held_out": _held_out(
            traffic, gpus, lambda known: eplb_global(known, gpus, redundant=spare)
        ),
    }


def _held_out(traffic: Traffic, gpus: int, make: Any) -> Record | None:
    """Return what a placement fitted to the first half does to the second."""
    half = len(traffic.windows) // 2
    if not half:
        return None
    known, later = (
        traffic.windows[:half].sum(axis=0),
        traffic.windows[half:].sum(axis=0),
    )
    if not later.any():
        return None
    now = time_ratio(stats.rank_counts(later, gpus))
    return bound(now, time_ratio(placed(later, make(known))))


def _prediction(traffic: Traffic, passes: Floats | None, gpus: int) -> Record | None:
    """Return what knowing each pass in advance adds to the best fixed placement.

    A pass of few tokens is uneven even where the traffic is not: this is what is left
    for who foresees it, and can move or copy experts, or choose copies, in time.
    """
    if passes is None:
        return None
    spare = spare_slots(traffic.experts, gpus)
    fixed = eplb_global(traffic.totals, gpus, redundant=spare)
    left = time_ratio(placed(passes, fixed))
    return {"tokens": PASS, "after_placement": left, **bound(left, 1.0)}
