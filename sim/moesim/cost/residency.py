"""How long experts take that are not in device memory: pure functions, in seconds.

Axes: any; tokens come as arrays of the caller's shape.
"""

import numpy as np

from moesim.cost.weights import expert_bytes, transfer_s
from moesim.spec.system import System
from moesim.types import Floats, Ints

ROW_BYTES = 2.0
"""Of an element of a token's activations, which cross to the host and back in 16 bits."""


def load_s(system: System) -> float:
    """Return the seconds that an idle PCIe port takes to bring in one expert."""
    return transfer_s(_size(system), system.topology.gpu.host_bandwidth)


def read_s(system: System) -> float:
    """Return the seconds that a node's idle drives take to read one expert."""
    assert system.residency is not None
    return transfer_s(_size(system), system.residency.host.nvme_bandwidth)


def cpu_s(tokens: Ints, system: System) -> Floats:
    """Return the seconds that a node's processor computes an expert's tokens.

    The larger of reading the weights once from host memory and of the arithmetic.
    """
    assert system.residency is not None
    host = system.residency.host
    arithmetic = 2.0 * tokens * system.model.expert_parameters / host.flops
    reading = np.full(np.shape(tokens), _size(system) / host.memory_bandwidth)
    seconds: Floats = np.maximum(reading, arithmetic)
    return seconds


def rows_s(tokens: Ints, system: System) -> Floats:
    """Return the seconds that rows take to the host; they take as long back.

    They are a few kilobytes beside experts of megabytes, and do not wait for the port.
    """
    each = ROW_BYTES * system.model.hidden / system.topology.gpu.host_bandwidth
    seconds: Floats = np.multiply(tokens, each)
    return seconds


def _size(system: System) -> float:
    return expert_bytes(system.model, system.precision.experts)
