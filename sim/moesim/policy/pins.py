"""Pinned experts where it is not known beforehand which GPU has how many of them.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

import numpy as np

from moesim.policy.stock import brings_in, capacities, popularity
from moesim.spec.placement import Placement
from moesim.spec.residency import ResidencySpec
from moesim.types import Ints


def pins_that_fit(spec: ResidencySpec, placement: Placement) -> Ints:
    """Return ``(L, S, G)``: of each cache's pinned slots, the most popular that fit.

    A place is left for those that pass where experts are brought in. Of equals, or where
    popularity is not known, the first slots stay.
    """
    worth = popularity(spec, placement)
    layers, slots, gpus = worth.shape
    kept = np.zeros_like(spec.pinned)
    if spec.scope == "gpu":
        keys = [(layer, slot) for slot in range(slots) for layer in range(layers)]
        caches = [(min(spec.copies, layers * slots), keys)]
    else:
        sizes = capacities(spec.copies, layers, slots)
        caches = [
            (size, [(layer, slot) for slot in range(slots)])
            for layer, size in enumerate(sizes)
        ]
    for size, keys in caches:
        passing = size < len(keys) and brings_in(spec)
        most = max(0, size - passing)
        for gpu in range(gpus):
            mine = [(*key, gpu) for key in keys if spec.pinned[(*key, gpu)]]
            mine.sort(key=lambda place: -worth[place])
            for place in mine[:most]:
                kept[place] = 1
    return kept
