"""What bends routers while they serve: all but `AsRouted` change model outputs.

A gate adds a bias to the log weights that synthetic routing draws by. In DeepSeek-V3
and Megatron-LM such a bias is trained and then frozen; here it goes on moving, which a
served model could do, at the price of answering differently.

Axes: ``L`` MoE layers, ``E`` experts.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moesim.policy.order import check_number
from moesim.types import Floats, Ints

FLATTEST = 1e3
"""Largest temperature and rate."""


@dataclass(frozen=True, slots=True)
class AsRouted:
    """Leave routers alone."""

    def steer(self, bias: Floats, seen: Ints) -> Floats:
        """Return the bias as it is."""
        return bias


@dataclass(frozen=True, slots=True)
class SignBias:
    """A router bias that steps against the load.

    After each pass every expert's bias moves by `rate`: up if it had fewer tokens than
    the layer's mean, down if more. Source: Megatron-LM, ``get_updated_expert_bias``,
    applied to each pass instead of each training batch.

    Parameters
    ----------
    rate : float
        How far, in log weight; Megatron's default.
    """

    rate: float = 1e-3
    changes_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("rate", self.rate, FLATTEST)

    def steer(self, bias: Floats, seen: Ints) -> Floats:
        """Return the bias after a pass in which experts had `seen` tokens."""
        mean = seen.mean(axis=1, keepdims=True)
        return bias + self.rate * np.sign(mean - seen)


@dataclass(frozen=True, slots=True)
class ProportionalBias:
    """A router bias in proportion to the excess load.

    After each pass, in each layer whose coefficient of variation is `threshold` or
    more, an expert's bias falls by `rate` times its excess over the mean, as a share of
    the mean.

    Parameters
    ----------
    rate, threshold : float
        How far, in log weight per unit of excess; and from what imbalance on.
    """

    rate: float = 0.1
    threshold: float = 0.3
    changes_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("rate", self.rate, FLATTEST)
        check_number("threshold", self.threshold, FLATTEST)

    def steer(self, bias: Floats, seen: Ints) -> Floats:
        """Return the bias after a pass in which experts had `seen` tokens."""
        mean = np.maximum(seen.mean(axis=1, keepdims=True), np.finfo(float).tiny)
        uneven = seen.std(axis=1, keepdims=True) / mean >= self.threshold
        return bias - self.rate * uneven * ((seen - mean) / mean)


@dataclass(frozen=True, slots=True)
class GateTemperature:
    """Routers whose log weights are divided.

    Parameters
    ----------
    temperature : float
        Above 1 experts become more alike, below 1 less: weights ``w ** (1 / T)``.
    """

    temperature: float = 2.0
    changes_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, FLATTEST)
        if self.temperature < 1 / FLATTEST:
            least = f"a number from {1 / FLATTEST:g}"
            raise ValueError(f"temperature is {least}; got {self.temperature!r}")

    def steer(self, bias: Floats, seen: Ints) -> Floats:
        """Return the bias as it is."""
        return bias
