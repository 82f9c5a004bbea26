"""Parts of a layer's attention that another job may come between.

A part is priced at what the whole costs more than the rest, so cutting changes when
work is done and never how much: the parts sum to `attention_times`, whatever is cut.

Axes: ``G`` GPUs, ``K`` kinds of layer (see `cost.attention`).
"""

import numpy as np

from moesim.cost.attention import (
    Block,
    all_reduce,
    block_time,
    core_time,
    gate,
    layers_of,
    projections,
    router,
    windowed,
)
from moesim.cost.pass_ import PassLoad
from moesim.spec.model import ModelSpec
from moesim.spec.system import System
from moesim.types import Floats, Ints


def shared_by_kind(load: PassLoad, system: System) -> Floats:
    """Return ``(K, G)``: seconds of the shared experts of each kind of layer.

    With several GPUs in a rank their all-reduce is part of it. All zeros in a model
    without shared experts.
    """
    layers, rows = layers_of(system.model), _rows(load)
    return layers.moe * _shared(rows, system) / system.topology.speeds


def core_by_kind(load: PassLoad, system: System) -> Floats:
    """Return ``(K, G)``: seconds of the second job of attention that is cut in two.

    The cut is before the attention core of the layer's last transformer layer: the
    first job is its norm and projections (and all earlier layers), the second its core,
    output projection and router, as DeepSeek's decoding pipeline has them. Shared
    experts that run before dispatch belong to the second.
    """
    layers, rows = layers_of(system.model), _rows(load)
    model, parts = system.model, system.tensor_parallel
    window = windowed(load, model.attention.window)
    core = np.where(
        layers.back > 0,
        core_time(*window, system),
        core_time(load.attended, load.kv_read, system),
    )
    whole, after = projections(model, parts), after_core(model, parts)
    output = block_time(rows, whole, system) - block_time(rows, whole - after, system)
    rest = core + output + all_reduce(rows, system)
    rest = rest + block_time(rows, router(model), system)
    if system.shared_experts == "before":
        rest = rest + _shared(rows, system)
    return layers.moe * rest / system.topology.speeds


def after_core(model: ModelSpec, parts: int) -> Block:
    """Return the part of `projections` that follows the core, and the second norm.

    MLA lifts its values there; what it does for queries and keys comes before.
    """
    spec, hidden = model.attention, model.hidden
    values = -(-spec.heads // parts) * spec.head_dim
    width = values + 3.0 * hidden
    if spec.kind == "gqa":
        return Block(values * hidden, width, 1, 1)
    return Block(values * (hidden + spec.kv_rank), width + values, 2, 1)


def _rows(load: PassLoad) -> Ints:
    """Return ``(G,)``: rows of dense arithmetic; a GPU without any runs a dummy."""
    return np.maximum(load.tokens + load.padding, 1)


def _shared(rows: Ints, system: System) -> Floats:
    """Return ``(G,)``: what the shared experts of one layer add."""
    model, parts = system.model, system.tensor_parallel
    if not model.shared_width:
        return np.zeros(len(rows))
    whole = block_time(rows, gate(model, parts), system)
    alone = block_time(rows, router(model), system)
    return whole - alone + all_reduce(rows, system)
