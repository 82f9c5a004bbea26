"""The honest cut between what is known of routing and what is guessed.

Axes: ``L`` MoE layers, ``G`` GPUs.
"""

import numpy as np

from moesim.policy.view import Knowledge, Stage
from moesim.types import Floats


def known_experts(truth: Floats, guess: Floats, layer: int, stage: Stage) -> Floats:
    """Return ``(L, G)``: the truth where routing has happened, the guess elsewhere.

    Of a policy of knowledge ``counts`` the caller gives the guess for both.
    """
    gated = layer + (stage != "attention")
    return np.concatenate([truth[:gated], guess[gated:]])


def guess_for(knowledge: Knowledge, truth: Floats, predicted: Floats | None) -> Floats:
    """Return ``(L, G)``: what a policy of this knowledge believes of layers to come."""
    if knowledge == "oracle":
        return truth
    if knowledge in ("counts", "predicted") and predicted is not None:
        return predicted
    return np.full_like(truth, np.nan)
