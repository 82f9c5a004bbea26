"""How long routed experts take: a roofline with a fixed price per activated expert.

An expert is three matrices of ``hidden x expert_width`` (gate, up, down). Its weights
are read once per job however few tokens it has, so small batches are bound by memory
and a token more costs next to nothing.

Shared experts that are fused with the routed ones are one expert more of every GPU, as
wide as all of them, behind its slots.

Axes: ``S`` slots of a GPU and maybe one for its shared expert, ``G`` GPUs; leading axes
(``L`` layers) are free.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.spec.system import BYTES, System
from moesim.types import Floats, Ints

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
        _compute(tokens, system),
        active * _fixed(tokens.shape[-2], system) + _moved(tokens, system),
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
        _compute(mean, system),
        active * _fixed(mean.shape[-2], system) + _moved(mean, system),
    )
    return _on_gpus(work + launches * _launch(system), system)


def _fixed(slots: int, system: System) -> float | Floats:
    """Return the seconds it takes to read each slot's weights."""
    model = system.model
    sizes = model.expert_parameters, model.shared_parameters
    stored: Any = _by_slot(slots, sizes, system)
    read: float | Floats = stored * BYTES[system.precision.experts]
    return read / system.topology.gpu.memory_rate


def _moved(tokens: NDArray[Any], system: System) -> Floats:
    """Return the seconds to move the activations of each slot's tokens."""
    model, gpu = system.model, system.topology.gpu
    inner = _by_slot(tokens.shape[-2], (model.expert_width, model.shared_width), system)
    width = 2 * model.hidden + 3 * inner
    return tokens * (width * BYTES[system.precision.experts] / gpu.memory_rate)


def _compute(tokens: NDArray[Any], system: System) -> Floats:
    """Return the seconds of each slot's arithmetic."""
    model = system.model
    rate = system.topology.gpu.expert_rate(system.precision.experts)
    sizes = model.expert_parameters, model.shared_parameters
    parameters = _by_slot(tokens.shape[-2], sizes, system)
    return tokens * (2.0 * parameters / rate)


def _by_slot(slots: int, sizes: tuple[int, int], system: System) -> int | Ints:
    """Return the size of a routed expert, and of the shared one if it has a slot."""
    routed, shared = sizes
    if not system.fuses or slots != system.jobs_per_gpu:
        return routed
    return np.array([routed] * (slots - 1) + [shared])[:, None]


def _launch(system: System) -> float:
    return EXPERT_KERNELS * system.topology.gpu.launch_s


def _on_gpus(seconds: Floats, system: System) -> Floats:
    """Return the seconds on GPUs that may be slow; ``G`` is the last axis."""
    return seconds / system.topology.speeds
