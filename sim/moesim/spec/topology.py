"""A cluster: nodes of GPUs, joined by NVLink inside a node and by NICs between nodes."""

from dataclasses import dataclass

import numpy as np

from moesim.spec.hardware import GpuSpec
from moesim.types import Floats, Ints

NVLINK, NIC = 0, 1
"""Port classes, the axis ``C`` of every array of links."""
PORT_CLASSES = ("nvlink", "nic")


@dataclass(frozen=True, slots=True)
class Topology:
    """`nodes` nodes of `gpus_per_node` equal GPUs each.

    GPU ``g`` is on node ``g // gpus_per_node``.

    Parameters
    ----------
    speed : tuple of float
        Relative compute speed of each GPU (a straggler: 0.8); empty means all 1.
    """

    gpu: GpuSpec
    nodes: int
    gpus_per_node: int
    speed: tuple[float, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs there are, ``G``."""
        return self.nodes * self.gpus_per_node

    @property
    def node(self) -> Ints:
        """``(G,)``: the node of each GPU."""
        return np.arange(self.gpus) // self.gpus_per_node

    @property
    def speeds(self) -> Floats:
        """``(G,)``: the relative compute speed of each GPU."""
        return np.array(self.speed, float) if self.speed else np.ones(self.gpus)

    @property
    def bandwidth(self) -> Floats:
        """``(C,)``: bytes per second a port moves in one direction, as measured."""
        gpu = self.gpu
        return np.array(
            [
                gpu.nvlink_bandwidth * gpu.nvlink_efficiency,
                gpu.nic_bandwidth * gpu.nic_efficiency,
            ]
        )

    @property
    def latency(self) -> Floats:
        """``(C,)``: seconds of fixed cost of an all-to-all phase on each port class."""
        return np.array([self.gpu.nvlink_latency_s, self.gpu.nic_latency_s])
