"""What bends the choices of routers: a temperature, and a bias of each expert.

Axes: ``N`` rows of weights, row by row of ``L`` MoE layers in turn; ``E`` experts.
"""

from dataclasses import dataclass

import numpy as np

from moesim.types import Floats

LEAST_LOG = -600.0
"""Least log weight beside the row's largest: every expert can still be drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Bend:
    """A change of the weights that experts are drawn by: it changes model outputs.

    Parameters
    ----------
    bias : (L, E) array of float
        What is added to the log weights of each layer.
    temperature : float
        What the log weights are divided by before: 1 leaves them as they are, more
        makes experts alike.
    """

    bias: Floats
    temperature: float = 1.0

    def logs(self, logs: Floats) -> Floats:
        """Return ``(N, E)`` log weights, bent; N is a multiple of L."""
        bent = logs / self.temperature
        layers, experts = self.bias.shape
        bent = (bent.reshape(-1, layers, experts) + self.bias).reshape(-1, experts)
        return np.maximum(bent - bent.max(axis=1, keepdims=True), LEAST_LOG)

    def weights(self, weights: Floats) -> Floats:
        """Return ``(N, E)`` weights, bent: ``w ** (1 / temperature) * exp(bias)``."""
        return np.exp(self.logs(np.log(weights)))
