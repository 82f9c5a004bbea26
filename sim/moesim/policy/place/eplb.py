"""DeepSeek's EPLB: copies of the hottest experts, packed evenly, by group and node.

Follows ``eplb.py`` of deepseek-ai/EPLB (commit d52c72d). Its README's example comes out
slot by slot. The original computes in single precision, this in double: where two loads
differ by less than that, they may part.

Axes: ``X`` independent problems, ``n`` items; ``L`` MoE layers, ``E`` experts, ``P``
slots of a layer, ``G`` GPUs, ``N`` nodes.
"""

import numpy as np

from moesim.spec.placement import Placement, slot_count
from moesim.types import Floats, Ints


def pack(weights: Floats, packs: int) -> Ints:
    """Return ``(X, n)``: the items of equal packs that are about equally heavy.

    The heaviest item goes first, each to the lightest pack that has room (ties: the
    first). One item a pack needs no thought and keeps its place.

    Parameters
    ----------
    weights : (X, n) array of float
        Weights; `packs` divides ``n``.

    Returns
    -------
    (X, n) array of int
        Items, pack by pack, each pack's in the order in which they came.

    Examples
    --------
    >>> pack(np.array([[5.0, 1.0, 4.0, 3.0]]), 2)
    array([[0, 1, 2, 3]])
    """
    problems, items = weights.shape
    room = items // packs
    if room == 1:
        return np.tile(np.arange(items), (problems, 1))
    row = np.arange(problems)
    load = np.zeros((problems, packs))
    filled = np.zeros((problems, packs), np.int64)
    chosen = np.empty((problems, items), np.int64)
    for item in np.argsort(-weights, axis=1, kind="stable").T:
        lightest = load.argmin(axis=1)
        place = filled[row, lightest]
        chosen[row, lightest * room + place] = item
        filled[row, lightest] = place + 1
        heavier = load[row, lightest] + weights[row, item]
        load[row, lightest] = np.where(place + 1 == room, np.inf, heavier)
    return chosen


def replicate(weights: Floats, slots: int) -> tuple[Ints, Ints]:
    """Return which expert each of `slots` copies is of, and how many each expert has.

    Every expert has one copy; each further one goes to the expert whose copies are the
    most loaded (ties: the lowest number).

    Parameters
    ----------
    weights : (X, n) array of float
        Load of each expert, shared evenly by its copies.

    Returns
    -------
    expert : (X, slots) array of int
        Experts 0 to n - 1, then those of further copies in the order they were given.
    copies : (X, n) array of int
        Copies of each expert.
    """
    problems, experts = weights.shape
    row = np.arange(problems)
    expert = np.tile(np.arange(slots), (problems, 1))
    copies = np.ones((problems, experts), np.int64)
    share = np.array(weights, float)
    for slot in range(experts, slots):
        hottest = share.argmax(axis=1)
        expert[:, slot] = hottest
        copies[row, hottest] += 1
        share[row, hottest] = weights[row, hottest] / copies[row, hottest]
    return expert, copies


def eplb(
    weights: Floats, gpus: int, nodes: int = 1, groups: int = 1, redundant: int = 0
) -> Placement:
    """Return EPLB's placement: hierarchical where groups divide among nodes, or global.

    Hierarchical keeps each group of experts on one node, so that a token of a
    group-limited model reaches few nodes. Two copies of one expert may share a GPU, as
    in the original.

    Parameters
    ----------
    weights : (L, E) array
        Load of each expert, not negative.
    gpus, nodes, groups : int
        GPUs, nodes that they are spread over evenly, and equal runs of neighbouring
        experts that form the model's groups.
    redundant : int
        Slots of a layer beyond one per expert.

    Raises
    ------
    InputError
        The slots cannot be divided evenly among the GPUs.

    Examples
    --------
    >>> eplb(np.array([[1, 5, 2, 2]]), gpus=2).phy2log
    array([[1, 0, 2, 3]])
    """
    if groups % nodes:
        return eplb_global(weights, gpus, redundant=redundant)
    loads = np.asarray(weights, float)
    layers, experts = loads.shape
    slots = slot_count(layers, experts, gpus, redundant)
    size, here = experts // groups, experts // nodes
    grouped = loads.reshape(layers, groups, size)
    order = pack(grouped.sum(axis=2), nodes)
    members = (order[:, :, None] * size + np.arange(size)).reshape(-1, here)
    row = np.repeat(np.arange(layers), nodes)[:, None]
    local = loads[row, members]
    expert, copies = replicate(local, slots // nodes)
    share = np.take_along_axis(local / copies, expert, axis=1)
    packed = np.take_along_axis(expert, pack(share, gpus // nodes), axis=1)
    held = np.take_along_axis(members, packed, axis=1)
    return Placement(held.reshape(layers, slots), gpus)


def eplb_global(
    weights: Floats, gpus: int, nodes: int = 1, groups: int = 1, redundant: int = 0
) -> Placement:
    """Return EPLB's placement without regard to nodes and groups, as for decoding.

    Parameters and errors are those of `eplb`.
    """
    return eplb(weights, gpus, 1, 1, redundant)
