"""The caches of one GPU's experts: how large each is, what it starts with, who leaves.

Keys are ``(layer, slot)``. Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

import numpy as np

from moesim.policy.cache import RULES, RankedCache, make_cache
from moesim.policy.cache_rules import Fifo, Key
from moesim.spec.placement import Placement
from moesim.spec.residency import ResidencySpec
from moesim.types import Floats, Ints


def capacities(copies: int, layers: int, slots: int) -> list[int]:
    """Return how many slots of each layer stay if every layer has its own places.

    >>> capacities(7, 3, 4), capacities(99, 3, 4)
    ([3, 2, 2], [4, 4, 4])
    """
    whole, rest = divmod(min(copies, layers * slots), layers)
    return [whole + (layer < rest) for layer in range(layers)]


def stock(spec: ResidencySpec, placement: Placement, gpu: int) -> list[RankedCache]:
    """Return the cache of each layer of a GPU, filled; with scope ``gpu`` all are one.

    A server loads weights before it serves: caches start full, with the most popular
    experts where popularity is known, else with the first slots of each layer.
    """
    layers, slots = len(placement.phy2log), placement.slots_per_gpu
    worth = popularity(spec, placement)[:, :, gpu]
    pinned = spec.pinned[:, :, gpu]
    if spec.scope == "gpu":
        size = min(spec.copies, layers * slots)
        keys = [(layer, slot) for slot in range(slots) for layer in range(layers)]
        return [_filled(spec, size, keys, (worth, pinned))] * layers
    sizes = capacities(spec.copies, layers, slots)
    return [
        _filled(spec, sizes[at], [(at, s) for s in range(slots)], (worth, pinned))
        for at in range(layers)
    ]


def popularity(spec: ResidencySpec, placement: Placement) -> Floats:
    """Return ``(L, S, G)``: what a slot is worth; replicas share, unknown is 0."""
    layers, gpus = len(placement.phy2log), placement.gpus
    shape = layers, gpus, placement.slots_per_gpu
    if not spec.popularity.size:
        return np.zeros((shape[0], shape[2], shape[1]))
    each = spec.popularity / placement.replicas
    found = np.take_along_axis(each, placement.phy2log, axis=1)
    return found.reshape(shape).swapaxes(1, 2)


def _filled(
    spec: ResidencySpec,
    capacity: int,
    keys: list[tuple[int, int]],
    about: tuple[Floats, Ints],
) -> RankedCache:
    worth, pinned = about
    kept = [key for key in keys if pinned[key]]
    others = [key for key in keys if not pinned[key]]
    others.sort(key=lambda key: -worth[key])
    if spec.cache == "static":
        # One place is left for those that pass, if any are ever brought in.
        passing = capacity < len(keys) and brings_in(spec)
        most = max(0, capacity - len(kept) - passing)
        kept, others = kept + others[:most], others[most:]
        cache = RankedCache(capacity, Fifo(), frozenset(kept))
    else:
        cache = make_cache(spec.cache, capacity, pinned=kept)
    first: list[Key] = others[: cache.free]
    # Who came last stays longest, but for LIFO's.
    for key in first if spec.cache == "lifo" else reversed(first):
        cache.touch(key)
    return cache


def brings_in(spec: ResidencySpec) -> bool:
    """Return whether experts are ever brought in while serving."""
    return spec.on_miss != "cpu" or spec.prefetch.name != "none"


KEEPERS = (*RULES, "static")
"""Caches that need no future, by the name in a scenario."""
