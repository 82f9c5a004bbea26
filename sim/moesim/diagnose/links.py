"""How fast an all-to-all of given sizes is on the modelled fabric, as nccl-tests tell it.

Nothing is modelled here: copies come from `cost.partial`, their time from the closed
form of a pass that has the cluster to itself, in which everything but dispatch is free.

``size`` is what each rank hands over, its own share included. Algorithm bandwidth is
size over time; bus bandwidth is ``(G - 1) / G`` of it, what really leaves a GPU.

Axes: ``T`` tokens, ``L`` layers of a log, ``k`` choices, ``G`` GPUs, ``C`` port classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moesim.cost.exchange import ExchangeLoad
from moesim.cost.partial import partial_load
from moesim.cost.pass_ import PassCost
from moesim.cost.uncontended import uncontended_seconds
from moesim.diagnose.exchange import shape_of, slots_of, system_of
from moesim.diagnose.traffic import Traffic
from moesim.errors import InputError, Problem
from moesim.spec.hardware import GpuSpec
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.spec.placement import contiguous
from moesim.spec.system import DispatchKernel, System
from moesim.spec.topology import PORT_CLASSES, Topology
from moesim.types import Floats

TOKENS = 1 << 11
"""Tokens of a log whose choices set the skew."""
SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30}
MOST_SIZES = 1000
LARGEST = 1 << 50
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Shares of what a rank hands over, on average, that each port moves.

    Parameters
    ----------
    tx, rx : (L, C, G) arrays of float
        Sent and received by each port, over what the mean rank hands over.
    topology : Topology
        The fabric.
    """

    tx: Floats
    rx: Floats
    topology: Topology


def balanced(gpu: GpuSpec, shape: tuple[int, int], dispatch: DispatchKernel) -> Pattern:
    """Return the pattern of equal shares from every GPU to every GPU.

    Parameters
    ----------
    shape : (int, int)
        Nodes, and GPUs of a node.
    """
    nodes, per_node = shape
    gpus = nodes * per_node
    model = ModelSpec(
        name="fabric",
        layers=1,
        moe_layers=(0,),
        hidden=1,
        vocab=1,
        attention=AttentionSpec(kind="gqa", heads=1, kv_heads=1, head_dim=1),
        experts=gpus,
        top_k=1,
        expert_width=1,
    )
    topology = Topology(gpu, nodes, per_node)
    system = System(model, topology, contiguous(1, gpus, gpus), dispatch=dispatch)
    source, slot = np.divmod(np.arange(gpus * gpus), gpus)
    kept = (source != slot)[:, None, None]
    return _pattern(
        partial_load(slot[:, None, None], kept, source, system), gpus, system
    )


def skewed(
    traffic: Traffic, gpu: GpuSpec, shape: tuple[int, int], dispatch: DispatchKernel
) -> Pattern:
    """Return the pattern of a log's tokens, spread over the GPUs in turn, by layer.

    Raises
    ------
    InputError
        The log only counts, or its experts are fewer than the GPUs.
    """
    gpus = shape[0] * shape[1]
    if traffic.ids is None:
        message = (
            "only counts tokens; the skew of an all-to-all needs each token's experts"
        )
        raise InputError([Problem(message, traffic.name)])
    if gpus > traffic.experts:
        message = f"{traffic.experts} experts cannot be spread over {gpus} GPUs"
        raise InputError([Problem(message, traffic.name)])
    system = system_of(traffic, shape_of(traffic), gpu, shape, dispatch)
    # Of tokens from all over the log, as many as each GPU can have equally.
    count = max(gpus, min(len(traffic.ids), TOKENS) // gpus * gpus)
    rows = np.linspace(0, len(traffic.ids) - 1, count).astype(np.int64)
    slots = slots_of(traffic.ids[rows])
    source = np.arange(count) % gpus
    kept = slots // system.placement.slots_per_gpu != source[:, None, None]
    load = partial_load(slots, kept, source, system)
    return _pattern(load, count * traffic.top_k / gpus, system)


def _pattern(load: ExchangeLoad, copies: float, system: System) -> Pattern:
    return Pattern(load.tx / copies, load.rx / copies, system.topology)


def bench(pattern: Pattern, sizes: Sequence[int]) -> list[Record]:
    """Return a row of each size: times in seconds, bandwidths in bytes per second.

    Times are means over layers; ``worst_s`` is the slowest layer's. ``bound`` says what
    takes most of the slowest layer's time: ``latency``, or a class of ports.
    """
    gpus = pattern.topology.gpus
    rows = []
    for size in sizes:
        times = [_seconds(pattern, layer, size) for layer in range(len(pattern.tx))]
        mean, worst = float(np.mean(times)), int(np.argmax(times))
        rows.append(
            {
                "bytes": size,
                "seconds": mean,
                "worst_s": times[worst],
                "algbw": size / mean,
                "busbw": size / mean * (gpus - 1) / gpus,
                "bound": _bound(pattern, worst, size),
            }
        )
    return rows


def _seconds(pattern: Pattern, layer: int, size: float) -> float:
    """Return the time of one all-to-all: a pass of nothing else."""
    gpus = pattern.topology.gpus
    price = size / pattern.topology.bandwidth[:, None]
    tx, rx = pattern.tx[layer] * price, pattern.rx[layer] * price
    none = np.zeros_like(tx)
    cost = PassCost(
        attention=np.zeros((1, gpus)),
        useful=np.zeros((1, gpus)),
        experts=np.zeros((1, 1, gpus)),
        tx=np.stack([tx, none])[None],
        rx=np.stack([rx, none])[None],
        tail=np.zeros(gpus),
        latency=pattern.topology.latency,
    )
    return uncontended_seconds(cost)


def _bound(pattern: Pattern, layer: int, size: float) -> str:
    moved = np.maximum(pattern.tx[layer], pattern.rx[layer]).max(axis=1)
    busy = size * moved / pattern.topology.bandwidth
    slowest = int((busy + (moved > 0) * pattern.topology.latency).argmax())
    if busy[slowest] < pattern.topology.latency[slowest]:
        return "latency"
    return PORT_CLASSES[slowest]


def parse_sizes(text: str, factor: float) -> list[int]:
    """Return sizes from the first to the last, each `factor` times the one before.

    Suffixes are nccl-tests': K, M, G are powers of 1024.

    Raises
    ------
    InputError
        The text is no ``8:128M`` (or one size), or there would be too many.

    Examples
    --------
    >>> parse_sizes("8:64", 2)
    [8, 16, 32, 64]
    >>> parse_sizes("1K", 2)
    [1024]
    """
    ends = [_size(part) for part in text.split(":")]
    if len(ends) > 2 or ends[0] > ends[-1]:
        message = f"FIRST:LAST such as 8:128M is expected; got {text!a:.40}"
        raise InputError([Problem(message, "--bytes")])
    if not 1 < factor <= LARGEST:
        message = f"a factor above 1 is expected; got {factor:g}"
        raise InputError([Problem(message, "--factor")])
    sizes: list[int] = []
    size = float(ends[0])
    while size <= ends[-1] and len(sizes) <= MOST_SIZES:
        sizes.append(round(size))
        size *= factor
    if len(sizes) > MOST_SIZES:
        message = f"more than {MOST_SIZES} sizes: take a larger factor"
        raise InputError([Problem(message, "--factor")])
    return list(dict.fromkeys(sizes))


def _size(text: str) -> int:
    number, suffix = text.strip().upper().removesuffix("B"), ""
    if number[-1:] in ("K", "M", "G"):
        number, suffix = number[:-1], number[-1]
    whole = number.isascii() and number.isdecimal() and len(number) < 16
    value = int(number) << SUFFIXES[suffix] if whole else 0
    if not 1 <= value <= LARGEST:
        message = f"a size such as 8, 64K or 128M is expected; got {text!a:.40}"
        raise InputError([Problem(message, "--bytes")])
    return value
