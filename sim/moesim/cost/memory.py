"""What has to fit into a GPU's memory, and the KV blocks that the rest holds.

Every GPU of an instance carries the same: its share of one data-parallel rank
(attention, dense layers, shared experts, vocabulary), its slots of routed experts, and
buffers. Bytes are of one GPU throughout.
"""

from dataclasses import dataclass
from typing import TypeVar

from moesim.cost.buffers import Case, activation_bytes, exchange_bytes
from moesim.cost.weights import experts_bytes, resident_bytes
from moesim.errors import InputError, Problem
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.spec.serving import ServingSpec
from moesim.spec.system import BYTES, System
from moesim.types import Ints
from moesim.units import format_binary_bytes

Tokens = TypeVar("Tokens", int, Ints)
"""A number of tokens, or an array of them."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory of one GPU goes, in bytes.

    Parameters
    ----------
    hbm_bytes, usable_bytes : float
        Device memory, and the share of it that the engine may use.
    resident_bytes, experts_bytes : float
        Weights that every rank has, and routed experts in this GPU's slots.
    buffer_bytes, workspace_bytes, reserve_bytes : float
        Communication buffers, activations, and what the user sets aside.
    staging_bytes : float
        Where experts arrive that move while the instance serves.
    """

    hbm_bytes: float
    usable_bytes: float
    resident_bytes: float
    experts_bytes: float
    buffer_bytes: float
    workspace_bytes: float
    reserve_bytes: float
    staging_bytes: float = 0.0

    @property
    def free_bytes(self) -> float:
        """What is left for the KV cache; negative when the model does not fit."""
        return self.usable_bytes - sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they are for, largest concerns first."""
        return {
            "attention, dense, shared, vocabulary": self.resident_bytes,
            "routed experts": self.experts_bytes,
            "all-to-all buffers": self.buffer_bytes,
            "activations": self.workspace_bytes,
            "reserve": self.reserve_bytes,
            "experts on the move": self.staging_bytes,
        }

    def __str__(self) -> str:
        """Return the arithmetic on one line."""
        terms = [f"{format_binary_bytes(size)} {name}" for name, size in self._used()]
        usable = format_binary_bytes(self.usable_bytes)
        whole = format_binary_bytes(self.hbm_bytes)
        left = f"{format_binary_bytes(self.free_bytes)} for the KV cache"
        return f"{usable} of {whole} usable - {' - '.join(terms)} = {left}"

    def _used(self) -> list[tuple[str, float]]:
        return [(name, size) for name, size in self.parts.items() if size > 0]


def kv_bytes_per_token(
    model: ModelSpec, element_bytes: float, tensor_parallel: int = 1
) -> float:
    """Return the cache one more token needs on one GPU, over all layers.

    Grouped-query attention keeps a key and a value per key-value head, and splits heads
    among tensor-parallel GPUs; latent attention keeps one compressed vector with its
    rotary part, whole on each of them (arXiv 2405.04434, table 1).

    >>> from moesim.spec.catalogue import load_model
    >>> kv_bytes_per_token(load_model("mixtral-8x7b"), 2)
    131072.0
    >>> kv_bytes_per_token(load_model("deepseek-v3"), 2)
    70272.0
    """
    width = _kv_elements(model.attention, tensor_parallel)
    return float(model.layers * width * element_bytes)


def rule_of_thumb_kv_bytes(model: ModelSpec, element_bytes: float) -> float:
    """Return the often-quoted ``2 x layers x hidden x bytes`` of a token.

    It is right where every query head has a key and a value of its own and all heads
    together are as wide as the model: multi-head attention. With grouped queries it is
    ``heads / kv_heads`` times too much and more, with latents far more.

    >>> from moesim.spec.catalogue import load_model
    >>> rule_of_thumb_kv_bytes(load_model("mixtral-8x7b"), 2)  # four times too much
    524288.0
    """
    return 2.0 * model.layers * model.hidden * element_bytes


def _kv_elements(attention: AttentionSpec, tensor_parallel: int) -> int:
    """Return the cached elements of a token and layer on one GPU."""
    if attention.kind == "mla":
        return attention.kv_rank + attention.rope_dim
    return 2 * -(-attention.kv_heads // tensor_parallel) * attention.head_dim


def blocks_for(tokens: Tokens, block_size: int) -> Tokens:
    """Return the KV blocks that hold sequences of `tokens` tokens; the last may be part
    empty. Works on a number and on arrays alike.

    >>> [blocks_for(n, 16) for n in (1, 16, 17, 4096, 4097)]
    [1, 1, 2, 256, 257]
    """
    return -(-tokens // block_size)


def memory_budget(
    system: System,
    serving: ServingSpec,
    utilization: float = 0.9,
    reserve_bytes: float = 0.0,
    case: Case = "balanced",
    staging_bytes: float = 0.0,
) -> MemoryBudget:
    """Return where the memory of each GPU goes.

    Activations and the rows that dispatch and combine move are those of a full
    micro-batch, once per micro-batch in flight, and the logits of a full batch in 32
    bits. With evenly spread experts nothing is left for a hot GPU: reserve more, or
    plan for another case, when routing is skewed.

    Parameters
    ----------
    utilization : float
        Share of device memory the engine may use (vLLM's ``gpu_memory_utilization``).
    reserve_bytes : float
        Set aside beside what is computed here, such as CUDA graphs.
    case : {"balanced", "expected", "worst"}
        How tokens are spread over GPUs.
    staging_bytes : float
        Of a buffer for experts that move (`relocation.staging_bytes`).
    """
    tokens, flights = serving.max_num_batched_tokens, serving.max_in_flight
    buffers = exchange_bytes(system, tokens, case)
    if system.dispatch == "normal":
        buffers *= flights
    hbm_bytes = system.topology.gpu.hbm_bytes
    activations = flights * activation_bytes(system, tokens, case)
    return MemoryBudget(
        hbm_bytes=hbm_bytes,
        usable_bytes=hbm_bytes * utilization,
        resident_bytes=resident_bytes(system),
        experts_bytes=experts_bytes(system),
        buffer_bytes=buffers,
        workspace_bytes=activations + logits_bytes(system, serving),
        reserve_bytes=reserve_bytes,
        staging_bytes=staging_bytes,
    )


def logits_bytes(system: System, serving: ServingSpec) -> float:
    """Return the logits of a full batch, in 32 bits, on one GPU of a rank."""
    return 4.0 * serving.max_num_seqs * system.model.vocab / system.tensor_parallel


def kv_capacity_blocks(
    system: System,
    serving: ServingSpec,
    utilization: float = 0.9,
    reserve_bytes: float = 0.0,
    case: Case = "balanced",
    staging_bytes: float = 0.0,
) -> int:
    """Return the KV blocks of each data-parallel rank: what is left holds so many.

    Layers with a sliding window keep no more than the window and the tokens being
    computed. That is set aside for `max_num_seqs` requests where it leaves more blocks
    than treating all layers alike, much as vLLM's hybrid cache does.

    Parameters
    ----------
    utilization, reserve_bytes, case, staging_bytes
        As in `memory_budget`.

    Raises
    ------
    InputError
        The weights do not fit, or leave room for no block; the arithmetic is shown.
    """
    budget = memory_budget(
        system, serving, utilization, reserve_bytes, case, staging_bytes
    )
    free, block = budget.free_bytes, serving.block_size
    blocks = int(free // (block * _layer_bytes(system) * system.model.layers))
    if system.model.attention.window_every:
        blocks = max(blocks, _windowed_blocks(system, serving, free))
    if blocks < 1:
        raise InputError([Problem(_too_little(system, budget))])
    return blocks


def kv_pool_bytes(system: System, serving: ServingSpec) -> float:
    """Return what the KV blocks of a rank fill on one of its GPUs.

    Where layers have windows, as the cheaper of both layouts, by which
    `kv_capacity_blocks` counts as well.
    """
    model, blocks = system.model, serving.kv_blocks
    layer = _layer_bytes(system)
    whole = blocks * serving.block_size * layer * model.layers
    if not model.attention.window_every:
        return whole
    full = blocks * serving.block_size * layer * sum(model.full_attention)
    return min(whole, full + _windows_bytes(system, serving))


def kv_bytes(system: System, tokens: int) -> float:
    """Return the cache of one request's first `tokens` tokens on one GPU.

    Layers with a window keep no more than the window.
    """
    model = system.model
    full = sum(model.full_attention) if model.attention.window_every else model.layers
    kept = min(tokens, model.attention.window) if full < model.layers else 0
    slots = full * tokens + (model.layers - full) * kept
    return slots * _layer_bytes(system)


def _layer_bytes(system: System) -> float:
    attention, split = system.model.attention, system.tensor_parallel
    return _kv_elements(attention, split) * BYTES[system.precision.kv]


def _windowed_blocks(system: System, serving: ServingSpec, free: float) -> int:
    """Return the blocks left once every request has its windows."""
    full = sum(system.model.full_attention) * _layer_bytes(system)
    kept = _windows_bytes(system, serving)
    return int((free - kept) // (serving.block_size * full))


def _windows_bytes(system: System, serving: ServingSpec) -> float:
    """Return what is set aside for the windows of all requests."""
    model, block = system.model, serving.block_size
    each = (blocks_for(model.attention.window, block) + 1) * block
    arriving = serving.max_in_flight * serving.max_num_batched_tokens
    windowed = model.layers - sum(model.full_attention)
    return (serving.max_num_seqs * each + arriving) * windowed * _layer_bytes(system)


def _too_little(system: System, budget: MemoryBudget) -> str:
    model, gpus = system.model, system.topology.gpus
    where = f"{gpus} x {system.topology.gpu.name}"
    slots = f"{system.placement.slots_per_gpu} experts a layer on each GPU"
    advice = "more GPUs, a narrower precision, or fewer redundant experts are needed"
    return f"{model.name} does not fit on {where} ({slots}): {budget}; {advice}"
