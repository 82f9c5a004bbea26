"""Which experts a pass is believed to need soon: what prefetching goes by.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

from collections.abc import Sequence

import numpy as np

from moesim.policy.path import Popularity, Seen, Watched, on_slots
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.placement import Placement
from moesim.spec.residency import PrefetchSpec
from moesim.streams import stream
from moesim.types import Bools, Floats


def layers_ahead(layer: int, lookahead: int, layers: int) -> range:
    """Return the layers whose experts are asked for at the attention of `layer`.

    Each is asked for once, as early as the lookahead allows: those in front of it at
    the first layer.

    >>> [list(layers_ahead(layer, 2, 4)) for layer in range(4)]
    [[0, 1, 2], [3], [], []]
    """
    first = 0 if layer == 0 else layer + lookahead
    return range(first, min(layer + lookahead + 1, layers))


def believed(
    spec: PrefetchSpec, needed: Sequence[int], slots: int, draw: tuple[int, int]
) -> list[int]:
    """Return the slots that ``next_layer`` or ``path`` believe are needed, ascending.

    Parameters
    ----------
    spec : PrefetchSpec
        Who guesses, and how well.
    needed : sequence of int
        The truth: slots of one layer on one GPU.
    slots : int
        How many slots there are.
    draw : tuple of int
        Seed and number of the draw, different for every pass, layer and GPU.
    """
    if spec.name == "path" or slots == 1 or not needed:
        return sorted(needed)
    chance = stream(draw[0], "residency.prefetch", draw[1])
    right = chance.random(len(needed)) < spec.hit_rate
    other = chance.integers(0, slots - 1, len(needed))
    found = {
        slot if hit else int(wrong + (wrong >= slot))
        for slot, hit, wrong in zip(needed, right, other, strict=True)
    }
    return sorted(found)


def likeliest(mean: Floats) -> list[int]:
    """Return as many slots as should be needed, those with most tokens to expect.

    Parameters
    ----------
    mean : (S,) array of float
        Tokens to expect, which are Poisson: a slot is needed with ``1 - exp(-mean)``.

    >>> likeliest(np.array([0.1, 3.0, 0.2, 2.0]))
    [1, 3]
    """
    count = round(float(-np.expm1(-mean).sum()))
    order = np.argsort(-mean, kind="stable")
    return sorted(order[:count].tolist())


def lacking(mean: Floats, there: Bools) -> Floats:
    """Return ``(L, G)``: how many experts should be needed that are not there.

    Parameters
    ----------
    mean : (L, S, G) array of float
        Tokens to expect at each slot, which are Poisson.
    there : (L, S, G) array of bool
        Which slots are in device memory.
    """
    missing: Floats = np.where(there, 0.0, -np.expm1(-mean))
    return missing.sum(axis=1)


class Forecast:
    """Learns which experts the requests of each class need, from passes that ended.

    Parameters
    ----------
    source : RoutingSource
        What routes the passes; they have to be routed by `watch`.
    classes : int
        Kinds of requests to tell apart.
    """

    def __init__(self, source: RoutingSource, classes: int) -> None:
        self.watch = Watched(source, classes)
        self.predictor = Popularity(source, classes)
        self._pending: dict[int, Seen | None] = {}

    def depart(self, number: int, keys: TokenKeys, placement: Placement) -> Floats:
        """Return ``(L, S, G)`` tokens to expect of a pass that has just been routed."""
        self._pending[number] = self.watch.take()
        return on_slots(self.predictor.expect(keys), placement)

    def land(self, number: int) -> None:
        """Learn from a pass that ends now."""
        seen = self._pending.pop(number)
        if seen is not None:
            self.predictor.learn(seen)
