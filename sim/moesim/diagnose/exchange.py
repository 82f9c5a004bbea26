"""Who sends tokens to whom: GPU to GPU and node to node, from the model's own exchange.

Neighbouring experts share a GPU; tokens start on the GPUs in turn, so that what is
uneven is the routing's doing.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``G`` GPUs, ``D`` nodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesim.cost.exchange import exchange_load
from moesim.cost.price import copy_bytes
from moesim.diagnose.traffic import Traffic
from moesim.spec.hardware import GpuSpec
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.spec.placement import contiguous
from moesim.spec.system import DispatchKernel, System
from moesim.spec.topology import NIC, Topology
from moesim.types import Ids, Ints

TOKENS = 1 << 13
"""Tokens whose way is followed."""
Record = dict[str, Any]


def shape_of(traffic: Traffic) -> ModelSpec:
    """Return a model of which only layers, experts and top_k mean anything."""
    count = len(traffic.layers)
    return ModelSpec(
        name="the log's",
        layers=count,
        moe_layers=tuple(range(count)),
        hidden=1,
        vocab=1,
        attention=AttentionSpec(kind="gqa", heads=1, kv_heads=1, head_dim=1),
        experts=traffic.experts,
        top_k=traffic.top_k,
        expert_width=1,
    )


def system_of(
    traffic: Traffic,
    model: ModelSpec | None,
    gpu: GpuSpec,
    shape: tuple[int, int],
    dispatch: DispatchKernel = "normal",
) -> System:
    """Return a cluster of ``(nodes, gpus_per_node)`` with neighbouring experts together.

    Raises
    ------
    InputError
        The experts cannot be divided evenly among the GPUs, even with copies.
    """
    nodes, per_node = shape
    gpus = nodes * per_node
    layers = len(traffic.layers)
    spare = (-traffic.experts) % gpus
    return System(
        model=model or shape_of(traffic),
        topology=Topology(gpu, nodes, per_node),
        placement=contiguous(layers, traffic.experts, gpus, spare),
        dispatch=dispatch,
    )


def slots_of(ids: Ids) -> Ints:
    """Return the slots of ids under `contiguous`, whose first ``E`` slots are experts."""
    slots: Ints = ids.astype(np.int64)
    return slots


def exchange(
    traffic: Traffic,
    gpu: GpuSpec,
    sizes: Sequence[int],
    per_node: int,
    model: ModelSpec | None,
) -> Record | None:
    """Return dispatch's copies between GPUs and nodes, for each EP size.

    None for logs that only count.
    """
    if traffic.ids is None:
        return None
    return {
        str(size): _of_size(traffic, gpu, _shape(size, per_node), model)
        for size in sizes
    }


def _shape(gpus: int, per_node: int) -> tuple[int, int]:
    """Return nodes and GPUs of a node; nodes are smaller where these do not divide."""
    width = next(n for n in range(min(per_node, gpus), 0, -1) if gpus % n == 0)
    return gpus // width, width


def _of_size(
    traffic: Traffic, gpu: GpuSpec, shape: tuple[int, int], model: ModelSpec | None
) -> Record:
    assert traffic.ids is not None
    system = system_of(traffic, model, gpu, shape)
    count = min(len(traffic.ids), TOKENS)
    ids = traffic.ids[np.linspace(0, len(traffic.ids) - 1, count).astype(np.int64)]
    source = np.arange(len(ids)) % system.topology.gpus
    load = exchange_load(slots_of(ids), source, system)
    pairs = load.traffic.sum(axis=0)
    nodes, width = shape
    by_node = load.traffic[NIC].reshape(nodes, width, nodes, width).sum(axis=(1, 3))
    cells = len(ids) * len(traffic.layers)
    received = load.rx.sum(axis=(0, 1)).astype(float)
    busiest = load.rx.sum(axis=1).astype(float)
    found: Record = {
        "nodes": nodes,
        "gpus_per_node": width,
        "tokens": len(ids),
        "gpu_to_gpu": pairs.tolist(),
        "node_to_node": by_node.tolist(),
        "copies_per_token": float(pairs.sum() / cells),
        "nic_copies_per_token": float(load.traffic[NIC].sum() / cells),
        "received_max_over_mean": float(received.max() / received.mean()),
        "received_layer_median": float(
            np.median(busiest.max(axis=1) / busiest.mean(axis=1))
        ),
        "hottest_gpu": int(received.argmax()),
    }
    if model is not None:
        size = float(copy_bytes(system)[0])
        found["bytes_per_token"] = found["copies_per_token"] * size
        found["nic_bytes_per_token"] = found["nic_copies_per_token"] * size
    return found
