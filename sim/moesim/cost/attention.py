"""What runs on a token's own GPUs: attention, gate, shared experts, dense layers, head.

Each `Block` of dense arithmetic is one roofline: all its products see the same rows, so
their weights and arithmetic add up. Attention cores come on top. All arrays of a
`PassLoad` are per GPU; with ``tensor_parallel = t`` each of the `t` GPUs of a rank
carries the rank's figures, does a `t`-th of the heads and weights, and joins a ring
all-reduce after attention and after a feed-forward network that is shared or dense.

Axes: ``L`` MoE layers, ``G`` GPUs, ``K`` kinds of layer.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from moesim.cost.pass_ import PassLoad
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.spec.parameters import attention_parameters
from moesim.spec.system import BYTES, System
from moesim.types import Floats, Ints

ATTENTION_KERNELS = {"gqa": 3, "mla": 4}
"""Kernels of an attention core: rotate, append to the cache (in one kernel for grouped
queries), attend, reduce the split cache.

Launches of 3.7 us make 11 and 15 us; the constants of H100's tables, fitted one by one,
are 12.1 us (generation_attention), 14.8 (generation_mla) and 14.7 (context_attention).
"""
_ACTIVATION = 2.0
"""Bytes of an activation between dense products: 16 bits in every engine."""


@dataclass(frozen=True, slots=True)
class Block:
    """Dense arithmetic of one layer on one GPU.

    Parameters
    ----------
    weights : float
        Weights read once, and multiplied with every row.
    width : float
        Elements read and written per row.
    products, kernels : int
        Matrix products, and other kernels.
    """

    weights: float
    width: float
    products: int
    kernels: int

    def __add__(self, other: "Block") -> "Block":
        """Return both blocks run one after the other."""
        return Block(
            self.weights + other.weights,
            self.width + other.width,
            self.products + other.products,
            self.kernels + other.kernels,
        )

    def __sub__(self, part: "Block") -> "Block":
        """Return what is left without a part of it."""
        return Block(
            self.weights - part.weights,
            self.width - part.width,
            self.products - part.products,
            self.kernels - part.kernels,
        )


NOTHING = Block(0.0, 0.0, 0, 0)


def attention_times(load: PassLoad, system: System) -> tuple[Floats, Floats, Floats]:
    """Return the seconds of everything that runs outside the routed experts.

    A GPU without rows runs a dummy step of one row. Padding rows cost dense arithmetic
    but no attention core. Durations are on the GPU's own speed.

    Returns
    -------
    attention, useful : (L, G) arrays of float
        Before each MoE layer's dispatch; and the same for the real tokens alone.
    tail : (G,) array of float
        After the last MoE layer: dense layers, final norm and LM head.
    """
    attention, useful, tail = times_by_kind(load, system)
    kind = kinds_of_layer(system.model)
    return attention[kind], useful[kind], tail


def kinds_of_layer(model: ModelSpec) -> Ints:
    """Return ``(L,)``: the row of `times_by_kind` that holds for each MoE layer."""
    return layers_of(model).kind[:-1]


def times_by_kind(load: PassLoad, system: System) -> tuple[Floats, Floats, Floats]:
    """Return `attention_times` with a row for each kind of layer: ``(K, G)``."""
    layers = layers_of(system.model)
    rows = np.maximum(load.tokens + load.padding, 1)
    spent = _walk(rows, load, system, layers)
    useful = spent
    if not np.array_equal(rows, load.tokens):
        real = _walk(load.tokens, load, system, layers)
        useful = np.where(load.tokens > 0, real, 0.0)
    speeds = system.topology.speeds
    tail = (spent[layers.kind[-1]] + _head(load.sequences, system)) / speeds
    return spent / speeds, useful / speeds, tail


@dataclass(frozen=True, slots=True)
class Layers:
    """Transformer layers up to a MoE layer, or after the last: ``(K, 1)`` by kind.

    Most MoE layers are alike; `kind` is ``(L + 1,)``. `back` is whether the last of the
    layers looks back a window only.
    """

    kind: Ints
    all: Ints
    windowed: Ints
    dense: Ints
    moe: Ints
    back: Ints


@lru_cache(16)
def layers_of(model: ModelSpec) -> Layers:
    """Return how the transformer's layers divide over the MoE layers."""
    moe_layers = np.array(model.moe_layers)
    size = len(moe_layers) + 1
    step = np.searchsorted(moe_layers, np.arange(model.layers))
    total = np.bincount(step, minlength=size)
    windowed = np.bincount(step[~np.array(model.full_attention)], minlength=size)
    moe = (np.arange(size) < len(moe_layers)).astype(np.int64)
    back = np.zeros(size, np.int64)
    back[step] = ~np.array(model.full_attention)
    counts = np.stack([total, windowed, total - moe, moe, back])
    kinds, kind = np.unique(counts, axis=1, return_inverse=True)
    return Layers(kind, *kinds[:, :, None])


def _walk(rows: Ints, load: PassLoad, system: System, layers: Layers) -> Floats:
    """Return ``(K, G)``: seconds up to a MoE layer, or after the last, by kind."""
    model, parts = system.model, system.tensor_parallel
    around = block_time(rows, projections(model, parts), system)
    core = core_time(load.attended, load.kv_read, system)
    back = core_time(*windowed(load, model.attention.window), system)
    reduce = all_reduce(rows, system)
    dense = block_time(rows, feed_forward(model, model.dense_width, parts), system)
    apart = system.fuses
    routes = router(model) if apart else gate(model, parts)
    routing = block_time(rows, routes, system)
    return (
        layers.all * (around + core + reduce)
        + layers.windowed * (back - core)
        + layers.dense * (dense + reduce)
        + layers.moe * (routing + reduce * bool(model.shared_width and not apart))
    )


def block_time(rows: Ints, block: Block, system: System) -> Floats:
    """Return the seconds of a block for each count of rows: roofline and launches.

    Formats of 8 bits and fewer quantise the input of every product by one more kernel.
    """
    gpu, form = system.topology.gpu, system.precision.weights
    arithmetic = 2.0 * rows * block.weights / gpu.dense_rate(form)
    moved = block.weights * BYTES[form] + rows * block.width * _ACTIVATION
    per_product = 1 if form.endswith("16") else 2
    launches = block.products * per_product + block.kernels
    return np.maximum(arithmetic, moved / gpu.memory_rate) + launches * gpu.launch_s


def projections(model: ModelSpec, parts: int) -> Block:
    """Return the products around one attention core, and the two norms of a layer."""
    spec, hidden = model.attention, model.hidden
    weights = attention_parameters(hidden, spec, parts)
    heads, width = spec.heads / parts, 2.0 * hidden
    if spec.kind == "gqa":
        # In and out of the fused query-key-value product and the output product.
        width += 2.0 * (heads + _kv_heads(spec, parts)) * spec.head_dim
        return Block(weights, width + 4.0 * hidden, 2, 2)
    query, value = heads * (spec.nope_dim + spec.rope_dim), heads * spec.head_dim
    lifted = heads * (spec.nope_dim + spec.head_dim)
    width += 2.0 * (spec.q_rank + spec.kv_rank) + spec.rope_dim + query + lifted + value
    # Down (fused), up for queries, both halves of the key-value lift, and output.
    return Block(weights, width + 4.0 * hidden, 5 if spec.q_rank else 4, 3)


def gate(model: ModelSpec, parts: int) -> Block:
    """Return the router of a MoE layer (scores and top-k) and its shared experts."""
    return router(model) + feed_forward(model, model.shared_width, parts)


def router(model: ModelSpec) -> Block:
    """Return scores and top-k of a MoE layer."""
    width = float(model.hidden + 2 * model.experts)
    return Block(model.hidden * model.experts, width, 1, 1)


def feed_forward(model: ModelSpec, width: int, parts: int) -> Block:
    """Return a gated feed-forward network of that inner width."""
    if not width:
        return NOTHING
    inner = width / parts
    return Block(3.0 * model.hidden * inner, 2.0 * model.hidden + 5.0 * inner, 2, 1)


def _head(sequences: Ints, system: System) -> Floats:
    """Return the seconds of the final norm and the LM head; none for no sequence."""
    model = system.model
    vocabulary = model.vocab / system.tensor_parallel
    block = Block(model.hidden * vocabulary, 3.0 * model.hidden + vocabulary, 1, 1)
    return np.where(sequences > 0, block_time(sequences, block, system), 0.0)


def windowed(load: PassLoad, window: int) -> tuple[Ints, Ints]:
    """Return `attended` and `kv_read` of a layer that looks back `window` tokens.

    Only sums are known, so the cap is applied to the mean context: exact when every
    context is on the same side of the window, too high by up to a window otherwise.
    """
    attended = np.minimum(load.attended, load.tokens * window)
    reach = load.tokens + load.sequences * window
    return attended, np.minimum(np.minimum(load.kv_read, reach), attended)


def core_time(attended: Ints, kv_read: Ints, system: System) -> Floats:
    """Return the seconds of one layer's attention core.

    A decoded token meets each cached token once, so `kv_read` of the pairs are
    decode's: a roofline of arithmetic and streaming the cache. The pairs beyond are
    prefill's, priced by arithmetic; engines run the two as separate kernels. A chunk of
    a prompt counts one row of its pairs as decode, one part in the chunk's length.
    """
    gpu = system.topology.gpu
    prefill, decode, cached = _per_pair(system)
    fresh = np.maximum(attended - kv_read, 0) * (2.0 * prefill / gpu.attention_rate)
    arithmetic = kv_read * (2.0 * decode / gpu.attention_rate)
    streamed = kv_read * (cached / gpu.memory_rate)
    kernels = ATTENTION_KERNELS[system.model.attention.kind]
    busy = kernels * gpu.launch_s * (attended > 0)
    return fresh + np.maximum(arithmetic, streamed) + busy


def _per_pair(system: System) -> tuple[float, float, float]:
    """Return multiplications per pair (prefill, decode) and bytes per cached token.

    MLA decodes in the latent space (all heads share one cached vector) and prefills
    with keys and values spelt out, as DeepSeek-V2 (arXiv 2405.04434, section 2.1) does.
    """
    spec, parts = system.model.attention, system.tensor_parallel
    size = BYTES[system.precision.kv]
    heads = spec.heads / parts
    if spec.kind == "gqa":
        pair = heads * 2.0 * spec.head_dim
        return pair, pair, 2.0 * _kv_heads(spec, parts) * spec.head_dim * size
    spelt = heads * (spec.nope_dim + spec.rope_dim + spec.head_dim)
    latent = heads * (2.0 * spec.kv_rank + spec.rope_dim)
    return spelt, latent, (spec.kv_rank + spec.rope_dim) * size


def _kv_heads(spec: AttentionSpec, parts: int) -> float:
    """Return key-value heads on one of `parts` GPUs: at least one, maybe a copy."""
    return max(spec.kv_heads / parts, 1.0)


def all_reduce(rows: Ints, system: System) -> Floats:
    """Return the seconds of a ring all-reduce of the rows' hidden vectors in a rank."""
    parts, gpu = system.tensor_parallel, system.topology.gpu
    if parts == 1:
        return np.zeros(len(rows))
    row_bytes = 2.0 * (parts - 1) / parts * system.model.hidden * _ACTIVATION
    moved = rows.astype(float) * row_bytes
    return moved / gpu.allreduce_rate + gpu.nvlink_latency_s
