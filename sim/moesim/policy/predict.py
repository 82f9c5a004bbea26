"""What is known or guessed about routing to come, and the honest cut between the two.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs.
"""

import numpy as np

from moesim.cost.experts import expected_expert_time
from moesim.policy.view import Knowledge, Stage
from moesim.spec.system import System
from moesim.types import Floats, Ints


class GlobalPopularity:
    """The `global` predictor: every micro-batch will route like all routing so far.

    It learns from passes that have ended, and assumes uniform routing before any has.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        layers = len(system.model.moe_layers)
        gpus, slots = system.topology.gpus, system.placement.slots_per_gpu
        self.seen: Ints = np.zeros((layers, slots, gpus), np.int64)

    def observe(self, slots: Ints) -> None:
        """Learn from ``(L, S, G)``, the tokens each slot of an ended pass received."""
        self.seen += slots

    def expect(self, tokens: int) -> Floats:
        """Return ``(L, G)``: the expert seconds that a pass of `tokens` should cost."""
        total = self.seen.sum(axis=(1, 2), keepdims=True)
        size = self.seen[0].size
        share = np.where(total > 0, self.seen / np.maximum(total, 1), 1.0 / size)
        mean = share * tokens * self.system.model.top_k
        return expected_expert_time(mean, self.system).sum(axis=1)


def known_experts(truth: Floats, guess: Floats, layer: int, stage: Stage) -> Floats:
    """Return ``(L, G)``: the truth where routing has happened, the guess elsewhere."""
    gated = layer + (stage != "attention")
    return np.concatenate([truth[:gated], guess[gated:]])


def guess_for(knowledge: Knowledge, truth: Floats, predicted: Floats | None) -> Floats:
    """Return ``(L, G)``: what a policy of this knowledge believes of layers to come."""
    if knowledge == "oracle":
        return truth
    if knowledge == "predicted" and predicted is not None:
        return predicted
    return np.full_like(truth, np.nan)
