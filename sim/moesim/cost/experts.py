"""How long routed experts take: a roofline with a fixed price per activated expert.

An expert is three matrices of ``hidden x expert_width`` (gate, up, down). Its weights
are read once per job however few tokens it has, so small batches are bound by memory
and a token more costs next to nothing.

Axes: ``S`` slots of a GPU, ``G`` GPUs; leading axes (``L`` layers) are free.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.spec.system import BYTES, System
from moesim.types import Floats

EXPERT_KERNELS = 6
"""Kernels of one launch of experts: permute, quantise, gate-up, activate, down, reduce.

Six launches of 3.7 us are the 22.6 us that remain of H100's decode tables (SGLang
wideep_generation_moe, DeepEP kernels) after 16.2 us per activated expert.
"""


def expert_time(tokens: NDArray[Any], system: System) -> Floats:
    """Return the seconds of every expert job; a slot without tokens has none.

    ``max(2 m 3hf / F, b (3hf + m (2h + 3f)) / B)`` for ``m`` tokens, widths ``h`` and
    ``f`` of model and expert, and ``b`` bytes per element: weights, input, output and
    three inner vectors are moved once. The launch comes on top, once per slot with
    `per_expert` kernels; a `grouped` kernel charges the GPU's first slot with tokens.

    Parameters
    ----------
    tokens : (..., S, G) array
        Tokens at each slot.

    Returns
    -------
    (..., S, G) array of float
        Seconds, on the GPU's own speed.
    """
    active = tokens > 0
    if system.experts == "grouped":
        launches = active & (np.cumsum(active, axis=-2) == 1)
    else:
        launches = active
    work = np.maximum(
        _compute(tokens, system), active * _fixed(system) + _moved(tokens, system)
    )
    return _on_gpus(work + launches * _launch(system), system)


def expected_expert_time(mean: NDArray[Any], system: System) -> Floats:
    """Return the seconds to expect of expert jobs whose tokens are Poisson.

    A slot with a mean of ``m`` tokens is activated, and pays for its weights, with
    probability ``1 - exp(-m)``. A `grouped` launch is paid with the probability that
    the GPU has any token, and spread over its slots. Exact where an expert is bound by
    memory alone or by arithmetic alone; between them it is a lower bound (Jensen).

    Parameters
    ----------
    mean : (..., S, G) array
        Tokens to expect at each slot.

    Returns
    -------
    (..., S, G) array of float
        Seconds to expect; 0 where no token is expected.
    """
    active = -np.expm1(-np.asarray(mean, float))
    launches = active
    if system.experts == "grouped":
        shares = active.sum(axis=-2, keepdims=True)
        some = -np.expm1(-np.sum(mean, axis=-2, keepdims=True))
        launches = active * (some / np.where(shares > 0, shares, 1.0))
    work = np.maximum(
        _compute(mean, system), active * _fixed(system) + _moved(mean, system)
    )
    return _on_gpus(work + launches * _launch(system), system)


def _fixed(system: System) -> float:
    """Return the seconds it takes to read one expert's weights."""
    stored = system.model.expert_parameters * BYTES[system.precision.experts]
    return stored / system.topology.gpu.memory_rate


def _moved(tokens: NDArray[Any], system: System) -> Floats:
    """Return the seconds to move the activations of each slot's tokens."""
    model, gpu = system.model, system.topology.gpu
    width = 2 * model.hidden + 3 * model.expert_width
    return tokens * (width * BYTES[system.precision.experts] / gpu.memory_rate)


def _compute(tokens: NDArray[Any], system: System) -> Floats:
    """Return the seconds of each slot's arithmetic."""
    rate = system.topology.gpu.expert_rate(system.precision.experts)
    return tokens * (2.0 * system.model.expert_parameters / rate)


def _launch(system: System) -> float:
    return EXPERT_KERNELS * system.topology.gpu.launch_s


def _on_gpus(seconds: Floats, system: System) -> Floats:
    """Return the seconds on GPUs that may be slow; ``G`` is the last axis."""
    return seconds / system.topology.speeds
