"""What moving and computing tokens takes in memory while a micro-batch is on a GPU.

Bytes are of one GPU. What they depend on is how many tokens of all ranks reach it, so
every figure comes for three cases: tokens spread evenly; the most loaded GPU when
routing is uniform and only chance is at work; and every token on one GPU.
"""

from dataclasses import dataclass
from functools import cache
from math import prod, sqrt
from statistics import NormalDist
from typing import Literal, TypeVar, get_args

import numpy as np

from moesim.spec.model import ModelSpec
from moesim.spec.system import BYTES, System
from moesim.types import Floats

Amount = TypeVar("Amount", float, Floats)
"""A number, or an array of them."""

Case = Literal["balanced", "expected", "worst"]
CASES: tuple[Case, ...] = get_args(Case)
WIDE = 2.0
"""Bytes of an element of what is computed in 16 bits whatever the weights are in."""
SCALED, SCALE_BYTES = 128, 4
"""Elements of a narrow row that share a scale, and its bytes (DeepSeek's fp8)."""
LOW_LATENCY_TOKENS = 256
"""Tokens a rank hands to a low-latency kernel at a time; more go in several rounds, as
in vLLM (``VLLM_MOE_DP_CHUNK_SIZE``)."""
LOW_LATENCY_LIMIT = 2**35
"""Bytes that a low-latency buffer has to stay below: DeepEP counts it in 16 bytes."""


@dataclass(frozen=True, slots=True)
class Received:
    """What one GPU gets of one MoE layer's tokens, from all ranks together.

    Parameters
    ----------
    tokens, pairs : float
        Tokens that need at least one expert here, and (token, routed expert) pairs.
    shared : float
        Tokens that need the shared expert here, if it is one more expert of all GPUs.
    """

    tokens: float
    pairs: float
    shared: float = 0.0


def received(system: System, tokens: int, case: Case) -> Received:
    """Return what the GPU that matters receives when every rank computes `tokens`.

    ``expected`` is the mean, over draws of uniform routing, of the most loaded GPU: the
    mean load plus the largest of G normal deviations. A trained router is less even.

    Parameters
    ----------
    tokens : int
        Tokens of one rank in one micro-batch.
    case : {"balanced", "expected", "worst"}
        How they are spread. Fused shared experts are taken to be at home.
    """
    found, gpus = _routed(system, tokens, case), system.topology.gpus
    if not system.fuses:
        return found
    own = system.ranks * tokens / gpus
    others = found.tokens * (1 - 1 / gpus)
    return Received(own + others, found.pairs, own)


def _routed(system: System, tokens: int, case: Case) -> Received:
    """Return what the GPU receives for its routed experts."""
    model, gpus = system.model, system.topology.gpus
    everyone, k = float(system.ranks * tokens), model.top_k
    worst = Received(everyone, everyone * min(k, _local_experts(system)))
    if case == "worst":
        return worst
    here = model.experts / gpus
    missed = prod(
        max(0.0, model.experts - here - n) / (model.experts - n) for n in range(k)
    )
    mean = Received(everyone * (1 - missed), everyone * k / gpus)
    if case == "balanced" or gpus == 1:
        return mean
    # Pairs of a token are drawn without replacement, and those of all GPUs add up.
    apart = (model.experts - k) / max(1, model.experts - 1)
    spread = sqrt(everyone * k / gpus * (1 - 1 / gpus) * apart * gpus / (gpus - 1))
    hits = sqrt(everyone * missed * (1 - missed))
    most = largest_deviation(gpus)
    return Received(
        min(worst.tokens, mean.tokens + most * hits),
        min(worst.pairs, mean.pairs + most * spread),
    )


@cache
def largest_deviation(count: int) -> float:
    """Return the mean of the largest of `count` standard normal numbers.

    >>> [round(largest_deviation(n), 4) for n in (1, 2, 8)]
    [0.0, 0.5642, 1.4236]
    """
    grid = np.linspace(-9.0, 9.0, 3601)
    below = np.array([NormalDist().cdf(x) for x in grid]) ** count
    return float(grid[-1] - np.trapezoid(below, grid))  # by parts: of x dF


def _local_experts(system: System) -> int:
    """Return the most different experts that a GPU holds in a layer."""
    placement = system.placement
    slots = placement.phy2log.reshape(-1, placement.slots_per_gpu)
    ordered = np.sort(slots, axis=1)
    return int((np.diff(ordered, axis=1) != 0).sum(axis=1).max()) + 1


def expert_workspace_bytes(
    model: ModelSpec, pairs: Amount, width: int | None = None
) -> Amount:
    """Return the activations of one MoE layer for `pairs` (token, expert) pairs.

    Two buffers of 16-bit elements are alive together: input or down projection, and
    both halves of the gate. Source: vLLM's fused MoE, as tabulated in its pull request
    57270.

    Parameters
    ----------
    width : int, optional
        Of the expert; default that of a routed one.

    Examples
    --------
    >>> from moesim.spec.catalogue import load_model
    >>> expert_workspace_bytes(load_model("glm-4.5"), 1) / 1024
    20.0
    """
    hidden, inner = model.hidden, model.expert_width if width is None else width
    return pairs * WIDE * (max(inner, hidden) + max(2 * inner, hidden))


def received_bytes(model: ModelSpec, tokens: Amount, element: str) -> Amount:
    """Return what `tokens` dispatched rows fill, with their scales when 8 bits or less.

    Source: the temporaries in the table of vLLM's pull request 57270, where 131072
    tokens of 5120 elements in fp8 take 0.64 GiB.

    >>> from moesim.spec.catalogue import load_model
    >>> round(received_bytes(load_model("glm-4.5"), 131072, "fp8") / 2**30, 2)
    0.64
    """
    size = BYTES[element]
    scales = SCALE_BYTES / SCALED if size < WIDE else 0.0
    return tokens * model.hidden * (size + scales)


def exchange_bytes(system: System, tokens: int, case: Case) -> float:
    """Return the buffers of dispatch and combine on one GPU.

    ``normal`` kernels keep one row per received token on the way in and, reduced over
    this GPU's experts, one on the way back. ``low_latency`` kernels reserve room for
    every rank's tokens at every slot beforehand, whatever the routing. One GPU alone
    exchanges nothing.
    """
    model, gpus = system.model, system.topology.gpus
    if system.dispatch == "low_latency":
        slots = system.jobs_per_gpu * gpus
        return low_latency_buffer_bytes(model, slots, min(tokens, LOW_LATENCY_TOKENS))
    if gpus == 1:
        return 0.0
    return exchanged_bytes(system, received(system, tokens, case).tokens)


def exchanged_bytes(system: System, rows: Amount) -> Amount:
    """Return the buffers of ``normal`` kernels for `rows` tokens that reach a GPU."""
    model, formats = system.model, system.precision
    arriving = received_bytes(model, rows, formats.dispatch)
    return arriving + received_bytes(model, rows, formats.combine)


def low_latency_buffer_bytes(
    model: ModelSpec, slots: int, tokens: int, row_bytes: float | None = None
) -> float:
    """Return what DeepEP's low-latency kernels reserve for `tokens` tokens of a rank.

    Dispatch and combine, each double-buffered, of every slot of a layer; redundant
    slots count. Source: what DeepEP asks for, 2116 MB for 288 slots, 128 tokens and a
    width of 7168 in its issue 28.

    Parameters
    ----------
    slots : int
        Physical experts of a layer on all GPUs.
    row_bytes : float, optional
        Bytes of a token's row; default 16 of header and its elements in 16 bits.
        `scaled_row_bytes` is what later releases need.
    """
    row = 2 * model.hidden + 16 if row_bytes is None else row_bytes
    return 4.0 * slots * tokens * row


def scaled_row_bytes(model: ModelSpec) -> float:
    """Return a token's row in DeepEP releases whose combine carries scales.

    Elements in 16 bits and a pair of them for every 128. Source: the sizes that vLLM's
    issue 57894 reports for 448 slots (64 of them redundant) and a width of 5120: 35.55
    GiB for 2048 tokens, 26.66 for 1536.
    """
    return 2.0 * model.hidden + SCALE_BYTES * model.hidden / SCALED


def low_latency_most_tokens(model: ModelSpec, slots: int) -> int:
    """Return the tokens of a rank up to which such a buffer can be addressed at all.

    Redundant experts lower it: 2151 tokens of a width of 5120 with 384 slots, 1843 with
    448 (the issue found 1840 to work and 1856 to fail).
    """
    a_token = low_latency_buffer_bytes(model, slots, 1, scaled_row_bytes(model))
    return int((LOW_LATENCY_LIMIT - 1) // a_token)


def workspace_pairs(system: System, tokens: int, case: Case) -> tuple[float, float]:
    """Return the pairs for which experts' activations are allocated.

    Those of routed experts, and those of the shared one where it is fused with them.
    Low-latency kernels hand over a masked array with a row for every rank's token at
    every slot of this GPU. Source: 3.5 GiB for DeepSeek-V3 with 32 ranks of 256 tokens
    and 16 slots, in vLLM's pull request 55579.
    """
    if system.dispatch == "low_latency":
        rows = float(system.ranks * min(tokens, LOW_LATENCY_TOKENS))
        return system.placement.slots_per_gpu * rows, system.fuses * rows
    load = received(system, tokens, case)
    return load.pairs, load.shared


def activation_bytes(system: System, tokens: int, case: Case) -> float:
    """Return the activations of one micro-batch of `tokens` tokens a rank."""
    pairs, shared = map(np.array, workspace_pairs(system, tokens, case))
    return float(activated_bytes(system, np.array(tokens), pairs, shared))


def activated_bytes(
    system: System, tokens: Floats, pairs: Floats, shared: Floats
) -> Floats:
    """Return the activations of a GPU with so many tokens, and pairs at its experts.

    Two copies of the residual stream stay; beside them lives the larger of what
    attention, a dense feed-forward network, and the experts need in one layer. The
    plan, a run's pool and its ledger all ask here.

    Parameters
    ----------
    tokens, pairs : arrays of float
        Tokens of the GPU's own rank, and (token, routed expert) pairs that it receives.
    shared : array of float
        Tokens at its shared expert, if that is fused with routed ones: then it runs as
        one of them, at its own width, and not beside them.
    """
    model, split = system.model, system.tensor_parallel
    attention = model.attention
    heads = -(-attention.heads // split)
    width = attention.nope_dim + attention.rope_dim or attention.head_dim
    kv_heads = heads if attention.kind == "mla" else -(-attention.kv_heads // split)
    attended = heads * (width + attention.head_dim)
    attended += kv_heads * (width + attention.head_dim)
    dense = 2 * -(-model.dense_width // split) + model.hidden
    alone = 0 if system.fuses else 2 * -(-model.shared_width // split)
    experts = expert_workspace_bytes(model, pairs)
    experts = experts + expert_workspace_bytes(model, shared, model.shared_width)
    beside = tokens * (WIDE * (2 * model.hidden + alone))
    each = WIDE * max(attended, dense if model.dense_layer_count else 0)
    at_once: Floats = np.maximum(tokens * each, experts)
    return beside + at_once
