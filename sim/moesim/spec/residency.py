"""Experts that do not all fit into device memory: what stays, and what brings the rest.

Axes: ``L`` MoE layers, ``E`` logical experts, ``S`` slots of a GPU, ``G`` GPUs.
"""

from dataclasses import dataclass, field
from typing import Literal

from moesim.types import Floats, Ints

Scope = Literal["layer", "gpu"]
CacheName = Literal["lru", "lfu", "fifo", "lifo", "static", "belady"]
OnMiss = Literal["load", "cpu", "cheaper"]
PrefetchName = Literal["none", "next_layer", "class", "path"]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One node's host: what it computes with, reads from, and how much it holds.

    The defaults are assumed, of no measured machine: two sockets with eight channels of
    DDR5-4800 each stream 614 GB/s at most, of which half is taken as reached; 4 Tflop/s
    are what AMX reaches in bf16 on such a machine within a factor of two; 6 GB/s are one
    PCIe 4.0 drive.

    Parameters
    ----------
    memory_bandwidth : float
        Bytes per second that experts on the processor read their weights at.
    flops : float
        Arithmetic per second that they reach.
    nvme_bandwidth : float
        Bytes per second of the node's drives together.
    memory_bytes : float
        What copies of experts may take.
    """

    memory_bandwidth: float = 300e9
    flops: float = 4e12
    nvme_bandwidth: float = 6e9
    memory_bytes: float = 1024.0 * 2**30


@dataclass(frozen=True, slots=True)
class PrefetchSpec:
    """Who guesses which experts a pass will need.

    Parameters
    ----------
    name : {"none", "next_layer", "class", "path"}
        Nobody; the truth, right with `hit_rate` expert by expert; what requests of such
        classes needed so far; the truth.
    hit_rate : float
        Of ``next_layer``.
    lookahead : int
        How many layers ahead of its attention a pass asks; 0: for the layer itself.
    seed : int
        Of the draws of ``next_layer``; the run's.
    """

    name: PrefetchName = "none"
    hit_rate: float = 0.8
    lookahead: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ResidencySpec:
    """Which experts each GPU keeps in device memory, and how others come in.

    Parameters
    ----------
    copies : int
        Slots of all MoE layers together that a GPU holds in device memory.
    scope : {"layer", "gpu"}
        Every layer has places of its own, or all share them.
    cache : str
        Who leaves when another comes in.
    pinned : (L, S, G) array of int
        1 for slots that never leave.
    popularity : (L, E) array of float
        Tokens that experts had in a pilot; empty: not known.
    on_miss : {"load", "cpu", "cheaper"}
        An absent expert is brought in, or computed by the node's processor, or whatever
        should end first.
    prefetch : PrefetchSpec
        Who guesses what will be needed.
    sync_s : float
        Seconds between noting that experts are absent and acting on it, once for each
        micro-batch, layer and GPU with absent ones.
    host_experts : int
        Experts that a node holds in host memory, the others lie on its drives; 0: all
        are in host memory.
    host : HostSpec
        The node.
    """

    copies: int
    scope: Scope = "layer"
    cache: CacheName = "lru"
    pinned: Ints = field(compare=False, kw_only=True)
    popularity: Floats = field(compare=False, kw_only=True)
    on_miss: OnMiss = "load"
    prefetch: PrefetchSpec = PrefetchSpec()
    sync_s: float = 0.0
    host_experts: int = 0
    host: HostSpec = HostSpec()
