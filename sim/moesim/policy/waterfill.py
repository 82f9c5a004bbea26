"""Where the shared expert of each token is served, if it is one more expert of all GPUs.

Every GPU holds the shared expert, in a slot of its own behind the others. So a token has
one more choice, of which nothing but the GPU is open.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``G`` GPUs, ``B`` blocks
of as many GPUs, each an instance.
"""

from collections.abc import Iterator

import numpy as np

from moesim.policy.shares import turns
from moesim.spec.system import System
from moesim.types import Bools, Ints, Slots


def with_shared(
    slots: Slots,
    source: Ints,
    system: System,
    kept: Bools | None = None,
    blocks: int = 1,
) -> Slots:
    """Return ``(T, L, k + 1)`` slots, the shared expert's last, `jobs_per_gpu` a GPU.

    Parameters
    ----------
    slots : (T, L, k) array of int
        Slots of the routed experts, as numbered by the placement.
    source : (T,) array of int
        The GPU that holds each token.
    system : System
        One that fuses shared experts.
    kept : (T, L, k) array of bool, optional
        Which of the choices are served; default all.
    blocks : int
        Into how many instances the GPUs fall; no token leaves its own.
    """
    width = system.jobs_per_gpu
    gpu = slots.astype(np.int64) // (width - 1)
    tokens, layers, top_k = slots.shape
    # In memory the axes go the other way round, as `exchange_load` likes them.
    whole = np.empty((top_k + 1, layers, tokens), np.int64).T
    whole[:, :, :-1] = slots + gpu
    home = np.broadcast_to(source[:, None], (tokens, layers))
    if system.shared_experts == "waterfill" and tokens:
        gpu = gpu if kept is None else np.where(kept, gpu, -1)
        home = waterfilled(gpu, source, system, blocks)
    whole[:, :, -1] = home * width + width - 1
    return whole


def waterfilled(gpu: Ints, source: Ints, system: System, blocks: int = 1) -> Ints:
    """Return ``(T, L)``: the GPU of each token's shared expert.

    How many each GPU serves is what `poured` says of routed work. The first tokens of a
    GPU stay there, as far as that allows. Each of the others goes where it goes anyway,
    if there is room on the GPU of its first choice, else of its second, and so on; else
    to its own node; else anywhere: always in order of tokens, and of GPUs.

    Parameters
    ----------
    gpu : (T, L, k) array of int
        GPUs of the routed experts; -1 where a choice is not served.
    source, system, blocks
        As in `with_shared`.
    """
    layers, gpus = gpu.shape[1], system.topology.gpus
    own = np.bincount(source, minlength=gpus)
    quota = quotas(_routed(gpu, gpus), own, system, blocks)
    stay = np.minimum(quota, own)
    room = quota - stay
    result = np.repeat(source[:, None], layers, axis=1)
    token, layer = np.nonzero(turns(source)[:, None] >= stay[:, source].T)
    for size, where in _asked(gpu, source, system, blocks):
        place = where[token, layer]
        cell = np.full(len(token), -1)
        asks = place >= 0
        group = (layer * size + place)[asks]
        cell[asks] = dealt(group, room.reshape(layers * size, -1))
        found = cell >= 0
        result[token[found], layer[found]] = cell[found] % gpus
        room -= np.bincount(cell[found], minlength=room.size).reshape(room.shape)
        token, layer = token[~found], layer[~found]
    return result


def _asked(
    gpu: Ints, source: Ints, system: System, blocks: int
) -> Iterator[tuple[int, Ints]]:
    """Yield into how many parts the GPUs fall, and which ``(T, L)`` of them are asked."""
    gpus = system.topology.gpus
    for choice in range(gpu.shape[2]):
        yield gpus, gpu[:, :, choice]
    for parts in (system.topology.nodes, blocks):
        yield (
            parts,
            np.broadcast_to((source // (gpus // parts))[:, None], gpu.shape[:2]),
        )


def quotas(routed: Ints, own: Ints, system: System, blocks: int = 1) -> Ints:
    """Return ``(L, G)``: how many tokens' shared experts each GPU serves.

    Parameters
    ----------
    routed : (L, G) array of int
        Tokens of the routed experts of each GPU.
    own : (G,) array of int
        Tokens that each GPU holds.
    """
    if system.shared_experts == "fused":
        return np.broadcast_to(own, routed.shape)
    model, layers = system.model, len(routed)
    total = np.tile(own.reshape(blocks, -1).sum(axis=1), layers)
    heights = routed.reshape(layers * blocks, -1) * model.expert_width
    return poured(heights, model.shared_width, total).reshape(routed.shape)


def poured(heights: Ints, unit: int, count: Ints) -> Ints:
    """Return ``(N, G)``: how many units are put on each height, the highest least.

    One after the other each unit goes on the lowest, of equals on the first. No other
    way of putting them has a lower highest.

    Parameters
    ----------
    heights : (N, G) array of int
        What is there already.
    unit : int
        What each adds.
    count : (N,) array of int
        How many there are.

    Examples
    --------
    >>> poured(np.array([[5, 0, 2]]), 2, np.array([4]))
    array([[0, 3, 1]])
    """
    low = heights.min(axis=1, keepdims=True)
    high, wanted = low + unit * count[:, None], count[:, None]

    def below(level: Ints) -> Ints:
        """Count the units that are put where it is at most so high."""
        return np.maximum((level - heights) // unit + 1, 0)

    while (low < high).any():
        middle = (low + high) // 2
        enough = below(middle).sum(axis=1, keepdims=True) >= wanted
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    units = below(high)
    last = (units > 0) & ((high - heights) % unit == 0)
    surplus = units.sum(axis=1, keepdims=True) - wanted
    later = last[:, ::-1].cumsum(axis=1)[:, ::-1]
    return units - (last & (later <= surplus))


def dealt(group: Ints, room: Ints) -> Ints:
    """Return ``(n,)``: the place each gets in its group, counted over all; -1 for none.

    Parameters
    ----------
    group : (n,) array of int
        Who asks where, in order.
    room : (Q, c) array of int
        How many each place of each group takes; filled from the first on.
    """
    each = room.sum(axis=1)
    begin = each.cumsum() - each
    nth = turns(group)
    place = np.searchsorted(room.cumsum(), begin[group] + nth, side="right")
    return np.where(nth < each[group], place, -1)


def _routed(gpu: Ints, gpus: int) -> Ints:
    """Return ``(L, G)``: how many choices that are served fall on each GPU."""
    layers = gpu.shape[1]
    cell = (gpu + np.arange(layers)[:, None] * gpus)[gpu >= 0]
    return np.bincount(cell, minlength=layers * gpus).reshape(layers, gpus)
