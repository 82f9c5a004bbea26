"""How long every expert's job of a pass waited, from the history of a walk.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

from collections.abc import Callable

import numpy as np

from moesim.engine.array.walk import Walk
from moesim.spec.system import ExpertKernel
from moesim.types import Ints


def waits_of(walk: Walk, kernel: ExpertKernel) -> tuple[Ints, Ints]:
    """Return the cells, (layer, GPU, slot) as one number, and the waits of the jobs.

    Parameters
    ----------
    walk : Walk
        One that has passed all layers.
    kernel : {"grouped", "per_expert"}
        How the slots of a GPU are served.
    """
    service = np.ascontiguousarray(walk.batch.cost.experts.transpose(0, 2, 1))
    wait = walk.posted[1::2] - walk.entered[1::2] - walk.work[1::2]
    cells = np.flatnonzero(service)
    return cells, WAITS[kernel](walk, service, wait).take(cells)


def _grouped(_: Walk, service: Ints, wait: Ints) -> Ints:
    """Return ``(L, G, S)``: the wait of the one job for all slots."""
    return np.repeat(wait, service.shape[2], axis=1)


def _per_expert(walk: Walk, service: Ints, wait: Ints) -> Ints:
    """Return ``(L, G, S)``: each slot's start, less when its GPU entered the segment.

    Unless `Walk.started` says so, nothing came between the slots.
    """
    if walk.started.size:
        start = walk.started.transpose(0, 2, 1)
        return start - walk.entered[1::2, :, None]
    before: Ints = service.cumsum(axis=2) - service
    return before + wait[:, :, None]


WAITS: dict[ExpertKernel, Callable[[Walk, Ints, Ints], Ints]] = {
    "grouped": _grouped,
    "per_expert": _per_expert,
}
