"""What a run writes down when experts move: whose slots they were, and what it cost.

As soon as experts have moved, tokens, service and waits are told to logical experts
pass by pass, by the placement with which the pass was formed; slots mean nothing then.

Axes: ``L`` MoE layers, ``E`` logical experts, ``P`` slots of a layer, ``S`` slots of a
GPU, ``G`` GPUs, ``C`` port classes, ``Q`` cells (layer, slot).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.measure.balance import Balance
from moesim.measure.waits import WaitColumns
from moesim.policy.watch import gpu_loads
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Floats, Ints

if TYPE_CHECKING:
    from moesim.measure.columns import PassRecord

PS_PER_S = 1e12


@dataclass(slots=True)
class PlanRow:
    """One plan: when, how much moved, and what it was good for.

    Parameters
    ----------
    planned, done : int
        When it was made, and when its last layer changed; -1: not yet.
    slots, experts : int
        Slots that hold another expert, and expert copies that crossed a link.
    bytes : float
        Bytes that crossed a link.
    held : int
        Picoseconds for which no micro-batch was formed because of it.
    """

    planned: int
    slots: int = 0
    experts: int = 0
    bytes: float = 0.0
    held: int = 0
    done: int = -1


class MoveLog:
    """Placements and moves of one run.

    Attributes
    ----------
    placement : Placement
        Where experts are now.
    moved : bool
        Whether they have ever been elsewhere.
    tokens, service : (L * E,) arrays of int
        What logical experts got, once `moved`.
    bytes, busy : (2, C, G) arrays
        Bytes of weights sent and received by each port, and picoseconds.
    """

    def __init__(self, system: System) -> None:
        gpus, placement = system.topology.gpus, system.placement
        self.first = placement
        self.placement = placement
        self.moved = False
        self.plans: list[PlanRow] = []
        self.tokens: Ints = np.zeros(placement.replicas.size, np.int64)
        self.service: Ints = np.zeros_like(self.tokens)
        self.bytes: Floats = np.zeros((2, len(PORT_CLASSES), gpus))
        self.busy: Ints = np.zeros((2, len(PORT_CLASSES), gpus), np.int64)
        self.kept = Balance()
        self.actual = Balance()
        self._formed: dict[int, Placement] = {}
        self._told: dict[int, Told] = {}

    def form(self, number: int) -> None:
        """Note that a pass is formed with the placement of now."""
        self._formed[number] = self.placement

    def of(self, number: int) -> Placement:
        """Return the placement with which a pass was formed."""
        return self._formed[number]

    def forget(self, number: int) -> None:
        """Note that a pass has ended, and all has been told of it."""
        del self._formed[number]
        self._told.pop(number, None)

    def waits(self, number: int, waits: WaitColumns) -> "WaitColumns | Told":
        """Return where a pass's waits are written down; weights have none."""
        if not self.moved or number not in self._formed:
            return waits
        if number not in self._told:
            self._told[number] = Told(waits, cells_of(self._formed[number]))
        return self._told[number]

    def switch(self, placement: Placement) -> None:
        """Note that experts are elsewhere from now on."""
        self.placement = placement
        self.moved = True

    def end_pass(self, record: "PassRecord") -> None:
        """Tell a pass's tokens and service to experts, once they have moved."""
        if not self.moved:
            return
        placement = self.of(record.number)
        cells = cells_of(placement)
        tokens = told(record.slot_tokens, cells, len(self.tokens))
        self.tokens += tokens
        self.service += told(record.slot_service, cells, len(self.service))
        by_expert = tokens.reshape(placement.replicas.shape)
        self.kept.add(gpu_loads(by_expert, self.first))
        self.actual.add(gpu_loads(by_expert, placement))

    def end_move(self, record: "PassRecord") -> None:
        """Note weights that have moved."""
        self.bytes[0] += record.sent.sum(axis=0)
        self.bytes[1] += record.received.sum(axis=0)
        self.busy[0] += record.tx.sum(axis=0)
        self.busy[1] += record.rx.sum(axis=0)

    def facts(self) -> dict[str, Any]:
        """Return what a record says of moves, over the whole run.

        Balancedness is over passes since the first move, if copies shared tokens
        evenly: ``balancedness_unmoved`` with the first placement, ``balancedness_moved``
        with that of each pass.
        """
        made = [row for row in self.plans if row.slots]
        return {
            "rebalances": len(made),
            "moved_slots": sum(row.slots for row in made),
            "moved_experts": sum(row.experts for row in made),
            "moved_bytes": sum(row.bytes for row in made),
            "rebalance_stall_s": sum(row.held for row in made) / PS_PER_S,
            "rebalance_s": _mean_s([row for row in made if row.done >= 0]),
            "balancedness_unmoved": self.kept.vllm,
            "balancedness_moved": self.actual.vllm,
        }


def _mean_s(rows: list[PlanRow]) -> float | None:
    """Return the mean time from a plan to its last change."""
    if not rows:
        return None
    return sum(row.done - row.planned for row in rows) / len(rows) / PS_PER_S


class Told:
    """Waits of one pass, which are told to experts instead of slots."""

    def __init__(self, waits: WaitColumns, cells: Ints) -> None:
        self.waits = waits
        self.cells = cells

    def extend(self, cells: Ints, waits: Ints) -> None:
        """Write down jobs' waits in picoseconds."""
        self.waits.extend(self.cells[cells], waits)


def cells_of(placement: Placement) -> Ints:
    """Return ``(Q,)``: the cell (layer, expert) of each (layer, slot)."""
    layers, experts = placement.replicas.shape
    return (placement.phy2log + (np.arange(layers) * experts)[:, None]).ravel()


def told(values: Ints, cells: Ints, count: int) -> Ints:
    """Return ``(count,)`` sums by expert of ``(L, S, G)`` values of slots."""
    total = np.zeros(count, np.int64)
    np.add.at(total, cells, values.swapaxes(1, 2).ravel())
    return total
