"""How long one pass takes when it has the cluster to itself: a closed form.

Nothing waits for another pass, only for the slowest GPU of each all-to-all, so a pass
is a chain of maxima. Engines must agree with it when a single pass is in flight.

Axes: ``G`` GPUs, ``C`` port classes.
"""

import numpy as np

from moesim.cost.pass_ import COMBINE, DISPATCH, PassCost
from moesim.types import Floats


def uncontended_seconds(cost: PassCost) -> float:
    """Return the seconds from admitting a pass to its end on the last GPU.

    Per layer: attention, dispatch, the GPU's expert jobs one after the other, combine.
    Shared experts that overlap dispatch run on the GPU from its start, ahead of the
    experts.
    """
    shared = cost.shared if cost.shared.size else np.zeros_like(cost.attention)
    ready = np.zeros(cost.attention.shape[1])
    for layer, attention in enumerate(cost.attention):
        there, back = (
            (cost.tx[layer, phase], cost.rx[layer, phase], cost.latency)
            for phase in (DISPATCH, COMBINE)
        )
        posted, work = (
            ready + attention - shared[layer],
            cost.experts[layer].sum(axis=0),
        )
        done = posted + shared[layer]
        arrived = _exchange(posted, *there)
        computed = np.where(work > 0, np.maximum(arrived, done) + work, arrived)
        ready = np.maximum(_exchange(computed, *back), done)
    return float((ready + cost.tail).max())


def _exchange(posted: Floats, tx: Floats, rx: Floats, latency: Floats) -> Floats:
    """Return ``(G,)``: when each GPU may go on after an all-to-all.

    A class of ports takes part when any of its ports sends. Receiving starts a latency
    after the first send of the class (cut through); a GPU goes on when it has received
    all, every send anywhere is a latency old, and everybody has posted.

    Parameters
    ----------
    posted : (G,) array of float
        When each GPU has computed and hands over what it has to send.
    tx, rx : (C, G) arrays of float
        Seconds of sending and receiving.
    latency : (C,) array of float
    """
    sends = tx > 0
    first = np.where(sends, posted, np.inf).min(axis=1) + latency
    last = (posted + tx).max(axis=1) + latency
    last = np.where(sends.any(axis=1), last, -np.inf).max()
    received = np.where(rx > 0, first[:, None] + rx, -np.inf).max(axis=0)
    return np.maximum(received, max(float(last), float(posted.max())))
