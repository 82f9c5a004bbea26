"""Shared experts that are served as one more expert of every GPU: where, and how evenly.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.measure.balance import Balance
from moesim.spec.system import System
from moesim.types import Ints

if TYPE_CHECKING:
    from moesim.measure.columns import PassRecord


class SharedLog:
    """What passes say of them.

    Attributes
    ----------
    balance : Balance
        Of GPUs' work of a layer, shared experts included, in widths of experts.
    tokens, away : int
        Tokens' shared experts of all layers, and how many were not served at home.
    """

    def __init__(self, system: System) -> None:
        self.routed = system.placement.slots_per_gpu
        self.widths = system.model.expert_width, system.model.shared_width
        self.balance = Balance()
        self.tokens = 0
        self.away = 0

    def add(self, record: "PassRecord") -> None:
        """Take in a pass, with ``(L, S + 1, G)`` tokens of slots.

        As many stay at home as may. Where padding is routed it counts like tokens.
        """
        slots, own = record.slot_tokens, record.source_tokens
        routed, shared = slots[:, : self.routed].sum(axis=1), slots[:, self.routed]
        if shared[0].sum() > own.sum():
            own = own + record.source_padding
        expert, wide = self.widths
        self.balance.add(routed * expert + shared * wide)
        self.tokens += int(shared.sum())
        self.away += int(np.maximum(shared - own, 0).sum())

    def facts(self) -> dict[str, Any]:
        """Return what a record says of them; nothing of a run that fuses none."""
        if not self.tokens:
            return {}
        return {
            "shared_away_frac": self.away / self.tokens,
            "balancedness_with_shared": self.balance.vllm,
        }


def routed_cells(system: System) -> Ints:
    """Return which cells of waits, ``(L, G, S + 1)`` flat, are of routed experts."""
    placement, jobs = system.placement, system.jobs_per_gpu
    layers, gpus = len(placement.phy2log), placement.gpus
    cell = np.arange(layers * gpus * jobs).reshape(layers, gpus, jobs)
    return cell[:, :, : placement.slots_per_gpu].ravel()
