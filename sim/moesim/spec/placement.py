"""Where the experts live: which logical expert each physical slot holds.

Axes: ``L`` MoE layers, ``E`` logical experts, ``P`` physical slots of a layer, ``G``
GPUs, ``S`` slots of one GPU (``P = G * S``), ``R`` the most slots of one expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.errors import InputError, Problem
from moesim.types import Ints


@dataclass(frozen=True, eq=False)
class Placement:
    """``phy2log[l, p]`` is the expert held by slot ``p`` of MoE layer ``l``.

    Slot ``p`` lives on GPU ``p // S`` as its local slot ``p % S``: slots are GPU-major,
    as in EPLB's ``phy2log`` files. Every expert has at least one slot in every layer.
    All arrays are read-only; two placements are equal when their slots are.
    """

    phy2log: Ints
    gpus: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "phy2log", _frozen(np.array(self.phy2log, np.int64)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        same_slots = np.array_equal(self.phy2log, other.phy2log)
        return self.gpus == other.gpus and same_slots

    def __hash__(self) -> int:
        return hash((self.gpus, self.phy2log.shape, self.phy2log.tobytes()))

    @property
    def slots_per_gpu(self) -> int:
        """How many experts each GPU holds in each layer, ``S``."""
        return self.phy2log.shape[1] // self.gpus

    @cached_property
    def replicas(self) -> Ints:
        """``(L, E)``: how many slots hold each expert."""
        experts = int(self.phy2log.max()) + 1
        rows = [np.bincount(row, minlength=experts) for row in self.phy2log]
        return _frozen(np.stack(rows))

    @cached_property
    def log2phy(self) -> Ints:
        """``(L, E, R)``: the slots of each expert, ascending, padded by repeating."""
        layers, experts = self.replicas.shape
        width = int(self.replicas.max())
        order = np.argsort(self.phy2log, axis=1, kind="stable")
        first = np.cumsum(self.replicas, axis=1) - self.replicas
        turn = np.arange(width) % self.replicas[:, :, None]
        index = (first[:, :, None] + turn).reshape(layers, -1)
        slots = np.take_along_axis(order, index, axis=1)
        return _frozen(slots.reshape(layers, experts, width))

    def check(self, layers: int, experts: int) -> None:
        """Raise `InputError` unless every expert of every layer has a slot.

        Needed for placements that were read or computed; the makers below are right by
        construction.
        """
        problems = self._misfits(layers) or self._strays(experts)
        if problems:
            raise InputError([Problem(problem) for problem in problems])

    def _misfits(self, layers: int) -> list[str]:
        shape = self.phy2log.shape
        if len(shape) != 2:
            return [
                f"a placement has 2 axes (layers, slots), this one has {len(shape)}"
            ]
        problems = []
        if shape[0] != layers:
            found = f"the placement has {shape[0]} layers"
            problems.append(f"{found}, the model has {layers} MoE layers")
        if self.gpus < 1 or shape[1] < 1 or shape[1] % self.gpus:
            found = f"{shape[1]} slots cannot be divided evenly"
            problems.append(f"{found} among {self.gpus} GPUs")
        return problems

    def _strays(self, experts: int) -> list[str]:
        outside = np.argwhere((self.phy2log < 0) | (self.phy2log >= experts))
        if len(outside):
            layer, slot = outside[0]
            found = (
                f"slot {slot} of layer {layer} holds expert {self.phy2log[layer, slot]}"
            )
            return [f"{found}; experts are 0 to {experts - 1}"]
        cell = self.phy2log + np.arange(len(self.phy2log))[:, None] * experts
        slots = np.bincount(cell.ravel(), minlength=len(self.phy2log) * experts)
        homeless = np.argwhere(slots.reshape(-1, experts) == 0)
        if not len(homeless):
            return []
        layer, expert = homeless[0]
        return [
            f"no slot of layer {layer} holds expert {expert} ({len(homeless)} in all)"
        ]


PlacementMaker = Callable[[int, int, int, int], Placement]
"""Takes MoE layers, logical experts, GPUs and redundant slots of a layer."""


def contiguous(layers: int, experts: int, gpus: int, redundant: int = 0) -> Placement:
    """Return neighbouring experts on the same GPU, as vLLM places them at start.

    Parameters
    ----------
    layers, experts, gpus : int
        MoE layers, logical experts of a layer, GPUs.
    redundant : int
        Slots of a layer beyond one per expert; they hold experts 0, 1, ... once more.

    Raises
    ------
    InputError
        The slots cannot be divided evenly among the GPUs.

    Examples
    --------
    >>> contiguous(1, 4, 2).phy2log
    array([[0, 1, 2, 3]])
    >>> contiguous(1, 4, 2, redundant=2).phy2log
    array([[0, 1, 2, 3, 0, 1]])
    """
    slots = slot_count(layers, experts, gpus, redundant)
    return Placement(np.tile(np.arange(slots) % experts, (layers, 1)), gpus)


def round_robin(layers: int, experts: int, gpus: int, redundant: int = 0) -> Placement:
    """Return experts dealt to the GPUs in turn, redundant ones last.

    When the GPUs divide the experts, a second copy would be dealt to the GPU that has
    the first; so each copy is dealt to the next GPU instead.

    Parameters
    ----------
    layers, experts, gpus, redundant : int
        As in `contiguous`.

    Raises
    ------
    InputError
        The slots cannot be divided evenly among the GPUs.

    Examples
    --------
    >>> round_robin(1, 4, 2).phy2log
    array([[0, 2, 1, 3]])
    >>> round_robin(1, 4, 2, redundant=2).phy2log
    array([[0, 2, 1, 1, 3, 0]])
    """
    slots = slot_count(layers, experts, gpus, redundant)
    copy, expert = np.divmod(np.arange(slots), experts)
    if experts % gpus == 0:
        expert = expert - expert % gpus + (expert + copy) % gpus
    dealt = expert.reshape(-1, gpus).T.ravel()
    return Placement(np.tile(dealt, (layers, 1)), gpus)


PLACEMENTS: Mapping[str, PlacementMaker] = {
    "contiguous": contiguous,
    "round_robin": round_robin,
}
"""The makers by the names that scenario files use."""


def slot_count(layers: int, experts: int, gpus: int, redundant: int) -> int:
    """Return the slots of a layer.

    Raises
    ------
    InputError
        A size is out of range, or the slots cannot be divided evenly among the GPUs.
    """
    given = {"layers": layers, "experts": experts, "gpus": gpus}
    few = [f"{name} must be at least 1, not {n}" for name, n in given.items() if n < 1]
    if redundant < 0:
        few.append(f"redundant_experts must be at least 0, not {redundant}")
    if few:
        raise InputError([Problem(problem) for problem in few])
    slots = experts + redundant
    excess = slots % gpus
    if excess:
        fewer, more = redundant - excess, redundant + gpus - excess
        nearest = fewer if fewer >= 0 and excess <= gpus - excess else more
        raise InputError(
            f"{experts} experts and {redundant} redundant ones are {slots} slots, which"
            f" cannot be divided evenly among {gpus} GPUs; nearest that can:"
            f" redundant_experts: {nearest} ({(experts + nearest) // gpus} per GPU)"
        )
    return slots


def _frozen(array: Ints) -> Ints:
    array.setflags(write=False)
    return array
