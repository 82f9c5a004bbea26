"""From one placement to the next: what stays, what moves, and from where.

Axes: ``L`` MoE layers, ``P`` slots of a layer, ``G`` GPUs, ``S`` slots of a GPU, ``M``
slots whose expert comes from another GPU.
"""

from dataclasses import dataclass

import numpy as np

from moesim.spec.placement import Placement
from moesim.types import Bools, Ints


@dataclass(frozen=True, slots=True)
class Moves:
    """What it takes to go from one placement to another.

    Parameters
    ----------
    changed : (L, P) array of bool
        Slots that hold another expert than before. Some of those experts were on the
        GPU already and need no link.
    layer, slot, expert : (M,) arrays of int
        Slots whose expert was not on their GPU, in order: one copy each over a link.
        Of two such slots of one expert on one GPU only the first is listed.
    source, target : (M,) arrays of int
        The GPU that has the expert, and the one that gets it.
    """

    changed: Bools
    layer: Ints
    slot: Ints
    expert: Ints
    source: Ints
    target: Ints

    def __len__(self) -> int:
        """Return how many expert copies cross to another GPU, ``M``."""
        return len(self.slot)

    def received(self, gpus: int) -> Ints:
        """Return ``(L, G)``: expert copies that reach each GPU in each layer."""
        cell = self.layer * gpus + self.target
        return np.bincount(cell, minlength=len(self.changed) * gpus).reshape(-1, gpus)


def moved(old: Placement, new: Placement, nodes: int = 1) -> Moves:
    """Return what changes between two placements of the same slots.

    An expert comes from a GPU of the target's node if one has it, else from any; of
    several, from the next in number after the target, so that not all ask the first.

    Parameters
    ----------
    old, new : Placement
        Before and after.
    nodes : int
        Nodes that the GPUs are spread over evenly.
    """
    width, gpus = old.slots_per_gpu, old.gpus
    changed = old.phy2log != new.phy2log
    before, after = (p.phy2log.reshape(-1, gpus, width) for p in (old, new))
    wanted = after[:, :, :, None]
    there = (before[:, :, None, :] == wanted).any(axis=3)
    earlier = np.tri(width, k=-1, dtype=bool)
    again = ((after[:, :, None, :] == wanted) & earlier).any(axis=3)
    layer, target, place = np.nonzero(~there & ~again)
    expert = after[layer, target, place]
    return Moves(
        changed=changed,
        layer=layer,
        slot=target * width + place,
        expert=expert,
        source=_sources(old, (layer, expert, target), nodes),
        target=target,
    )


def preserve_slots(old: Placement, new: Placement) -> Placement:
    """Return `new` with experts that stay on their GPU in the slots they had.

    The others fill the slots that are left, in the order they have in `new`. As vLLM's
    ``preserve_intragpu_slots``, which saves copies within a GPU.

    Parameters
    ----------
    old, new : Placement
        Before and after: the same layers, slots and GPUs.
    """
    width = old.slots_per_gpu
    before, after = (p.phy2log.reshape(-1, width) for p in (old, new))
    row = np.arange(len(after))
    free = np.ones(after.shape, bool)
    held = np.full(after.shape, -1)
    for place in range(width):
        same = free & (after == before[:, place, None])
        found, stays = same.argmax(axis=1), same.any(axis=1)
        held[stays, place] = before[stays, place]
        free[row[stays], found[stays]] = False
    held[held < 0] = after[free]
    return Placement(held.reshape(new.phy2log.shape), new.gpus)


def _sources(old: Placement, wanted: tuple[Ints, Ints, Ints], nodes: int) -> Ints:
    """Return ``(M,)`` GPUs for the wanted layers, experts and targets."""
    layer, expert, target = wanted
    holders = old.log2phy[layer, expert] // old.slots_per_gpu
    per_node = old.gpus // nodes
    onward = (holders - target[:, None]) % old.gpus
    away = holders // per_node != target[:, None] // per_node
    nearest = (onward + away * old.gpus).argmin(axis=1)
    return holders[np.arange(len(layer)), nearest]
