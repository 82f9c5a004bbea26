"""Experts that follow each other on one GPU: placement by transitions between layers.

After ExFlow (arXiv 2401.08383), which solves an integer program; here a local search
puts one layer at a time into the best place that the others leave it. It helps an
execution in which tokens stay where their expert ran. With data-parallel attention, as
simulated here, a token goes home after every layer: then nothing is gained.

Axes: ``L`` MoE layers, ``E`` experts, ``G`` GPUs, ``S`` experts of a GPU.
"""

import numpy as np

from moesim.errors import InputError, Problem
from moesim.spec.placement import Placement, contiguous
from moesim.streams import stream
from moesim.types import Floats, Ids, Ints

STARTS = 4
"""Starts by chance; the search begins at the best of them and neighbours together."""
Counts = Ints | Floats
"""Whole numbers; as floats they multiply faster."""
SWEEPS = 12
"""Sweeps over all layers at most; the search ends after one that changes nothing."""


def transitions(ids: Ids, experts: int) -> Ints:
    """Return ``(L - 1, E, E)``: tokens by their first choices in successive layers.

    Parameters
    ----------
    ids : (T, L, k) array
        Experts of each token in each layer.
    """
    first = ids[:, :, 0].astype(np.int64)
    pairs = first[:, :-1] * experts + first[:, 1:]
    size = experts * experts
    rows = [np.bincount(column, minlength=size) for column in pairs.T]
    return np.array(rows, np.int64).reshape(-1, experts, experts)


def affinity(
    moves: Ints, gpus: int, nodes: int = 1, redundant: int = 0, seed: int = 0
) -> Placement:
    """Return equal numbers of experts a GPU such that tokens move as little as found.

    The search never worsens `hops`, and where it ends before `SWEEPS` sweeps no
    exchange of experts within one layer can better it. Loads play no part, as in
    ExFlow, so the experts that many tokens use may end up on one GPU.

    Parameters
    ----------
    moves : (L - 1, E, E) array
        ``moves[l, a, b]``: tokens that use expert ``a`` in layer ``l`` and ``b`` next.
    gpus, nodes : int
        GPUs, and nodes that they are spread over evenly.
    redundant : int
        Must be 0: every expert has one slot.
    seed : int
        Of the starts by chance.

    Raises
    ------
    InputError
        `redundant` is not 0, or the GPUs do not divide the experts.
    """
    if redundant:
        message = f"affinity makes no copies: 0 is expected, not {redundant}"
        raise InputError([Problem(message, key="redundant_experts")])
    layers, experts = len(moves) + 1, moves.shape[1]
    counts = moves.astype(float)
    start = contiguous(layers, experts, gpus)
    nearness = _nearness(gpus, nodes)
    homes = [home_of(start)]
    rng = stream(seed, "affinity")
    for _ in range(STARTS):
        first = rng.permutation(homes[0][0])
        homes.append(_chain(first, counts, nearness))
    best = max(homes, key=lambda home: gain(home, counts, nearness))
    best = improved(best, counts, nearness)
    return Placement(np.argsort(best, axis=1, kind="stable"), gpus)


def hops(placement: Placement, moves: Ints, nodes: int = 1) -> float:
    """Return how far a token goes between layers: 0 on its GPU, 1 on its node, else 2.

    Parameters
    ----------
    placement : Placement
        Without copies of experts.
    moves, nodes
        As in `affinity`.

    Returns
    -------
    float
        Mean over all transitions, 0 if there are none; on one node the share that
        changes the GPU.
    """
    total = moves.sum()
    if not total:
        return 0.0
    nearness = _nearness(placement.gpus, nodes)
    near = gain(home_of(placement), moves, nearness)
    return float(nearness.max() - near / total)


def home_of(placement: Placement) -> Ints:
    """Return ``(L, E)``: the GPU of each expert's first slot."""
    return placement.log2phy[:, :, 0] // placement.slots_per_gpu


def gain(home: Ints, moves: Counts, nearness: Floats) -> float:
    """Return the transitions that stay near: once for the node, once for the GPU."""
    near = nearness[home[:-1, :, None], home[1:, None, :]]
    return float((moves * near).sum())


def improved(home: Ints, moves: Counts, nearness: Floats) -> Ints:
    """Return ``(L, E)`` homes that are no worse, and that no one layer can better.

    Given its neighbours, a layer's best homes are a linear assignment of experts to
    slots, which is solved exactly; a layer moves only if that is strictly better.
    """
    home = home.copy()
    layers = len(home)
    unsettled = np.ones(layers + 2, bool)
    for _ in range(SWEEPS):
        for layer in np.flatnonzero(unsettled[1:-1]).tolist():
            # Only a change next door can make a settled layer's homes other than best.
            unsettled[layer : layer + 3] |= _settle(home, layer, moves, nearness)
            unsettled[layer + 1] = False
        if not unsettled[1:-1].any():
            break
    return home


def _settle(home: Ints, layer: int, moves: Counts, nearness: Floats) -> bool:
    """Move one layer's experts to the best homes; return whether that helped."""
    worth = _worth(home, layer, moves, nearness)
    here = np.arange(len(worth))
    best = _assigned(worth)
    better = worth[here, best].sum() > worth[here, home[layer]].sum()
    if better:
        home[layer] = best
    return bool(better)


def _worth(home: Ints, layer: int, moves: Counts, nearness: Floats) -> Floats:
    """Return ``(E, G)``: transitions that stay near if an expert lives on a GPU."""
    worth = np.zeros((home.shape[1], len(nearness)))
    if layer > 0:
        worth += moves[layer - 1].T @ nearness[home[layer - 1]]
    if layer + 1 < len(home):
        worth += moves[layer] @ nearness[home[layer + 1]]
    return worth


def _assigned(worth: Floats) -> Ints:
    """Return ``(E,)`` GPUs, each with equally many experts, of the greatest worth."""
    from scipy.optimize import linear_sum_assignment

    experts, gpus = worth.shape
    slots = np.repeat(worth, experts // gpus, axis=1)
    _, slot = linear_sum_assignment(slots, maximize=True)
    return slot // (experts // gpus)


def _chain(first: Ints, moves: Counts, nearness: Floats) -> Ints:
    """Return ``(L, E)`` homes, each layer's the best after the layer before it."""
    home = np.tile(first, (len(moves) + 1, 1))
    for layer, counts in enumerate(moves):
        home[layer + 1] = _assigned(counts.T @ nearness[home[layer]])
    return home


def _nearness(gpus: int, nodes: int) -> Floats:
    """Return ``(G, G)``: 1 for the same GPU, and 1 for the same of several nodes."""
    same = np.eye(gpus)
    if nodes == 1:
        return same
    node = np.arange(gpus) // (gpus // nodes)
    return same + (node[:, None] == node)
