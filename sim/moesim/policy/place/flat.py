"""Placements by load that know neither nodes nor groups.

Axes: ``L`` MoE layers, ``E`` experts, ``P`` slots of a layer, ``G`` GPUs.
"""

import numpy as np

from moesim.errors import InputError, Problem
from moesim.policy.place.eplb import eplb_global, pack
from moesim.spec.placement import Placement, slot_count
from moesim.types import Floats, Ints


def greedy(
    weights: Floats, gpus: int, nodes: int = 1, groups: int = 1, redundant: int = 0
) -> Placement:
    """Return the heaviest expert first, each to the least loaded GPU with a free slot.

    No expert has a second copy: what can be had for no memory at all.

    Parameters and errors are those of `eplb`; and `redundant` must be 0.
    """
    if redundant:
        message = f"greedy makes no copies: 0 is expected, not {redundant}"
        raise InputError([Problem(message, key="redundant_experts")])
    return eplb_global(weights, gpus)


def tensorrt_llm(
    weights: Floats, gpus: int, nodes: int = 1, groups: int = 1, redundant: int = 0
) -> Placement:
    """Return the placement of TensorRT-LLM's load balancer (commit 0d919a4f).

    As EPLB's global one, but of equally loaded experts the highest number gets the
    copy, copies of one expert are placed one after the other, and where nothing was
    measured the slots are shared out evenly, the first experts getting the remainder.

    Parameters and errors are those of `eplb`.
    """
    loads = np.asarray(weights, float)
    layers, experts = loads.shape
    slots = slot_count(layers, experts, gpus, redundant)
    copies = _copies(loads, slots)
    expert = _repeated(copies, slots)
    share = np.take_along_axis(loads / copies, expert, axis=1)
    if slots == gpus:  # here one slot a GPU is filled by load, too
        order = np.argsort(-share, axis=1, kind="stable")
    else:
        order = pack(share, gpus)
    return Placement(np.take_along_axis(expert, order, axis=1), gpus)


def _copies(loads: Floats, slots: int) -> Ints:
    """Return ``(L, E)`` copies: ties go to the highest number."""
    layers, experts = loads.shape
    row = np.arange(layers)
    copies = np.ones((layers, experts), np.int64)
    share = loads[:, ::-1].copy()
    for _ in range(experts, slots):
        hottest = experts - 1 - share.argmax(axis=1)
        copies[row, hottest] += 1
        share[row, experts - 1 - hottest] = loads[row, hottest] / copies[row, hottest]
    idle = ~loads.any(axis=1)
    each, rest = divmod(slots, experts)
    copies[idle] = each + (np.arange(experts) < rest)
    return copies


def _repeated(copies: Ints, slots: int) -> Ints:
    """Return ``(L, slots)``: each expert as often as it has copies, in order."""
    experts = np.tile(np.arange(copies.shape[1]), len(copies))
    return np.repeat(experts, copies.ravel()).reshape(len(copies), slots)
