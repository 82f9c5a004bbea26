"""What a whole pass costs: every part priced, put together for an engine.

Axes: ``L`` MoE layers, ``G`` GPUs, ``P`` phases, ``C`` port classes.
"""

import numpy as np

from moesim.cost.attention import attention_times, kinds_of_layer
from moesim.cost.cuts import core_by_kind, shared_by_kind
from moesim.cost.experts import expert_time
from moesim.cost.pass_ import NO_PART, PassCost, PassLoad
from moesim.spec.system import BYTES, System
from moesim.types import Floats

SCALE_BLOCK = 128
"""Elements that share one 4-byte scale in formats of 8 bits and fewer (DeepEP)."""


def price(load: PassLoad, system: System) -> PassCost:
    """Return what a pass costs."""
    attention, useful, tail = attention_times(load, system)
    kind, shared, core = kinds_of_layer(system.model), NO_PART, NO_PART
    if system.shared_experts == "overlapped":
        shared = shared_by_kind(load, system)[kind]
    if system.attention == "split":
        core = core_by_kind(load, system)[kind]
    seconds = port_seconds(system)
    there = np.stack([load.tx, load.rx], axis=1)
    back = there[:, ::-1]
    return PassCost(
        attention=attention,
        useful=useful,
        experts=expert_time(load.slots, system),
        tx=there * seconds[:, :, None],
        rx=back * seconds[:, :, None],
        tail=tail,
        latency=system.topology.latency,
        shared=shared,
        core=core,
    )


def port_seconds(system: System) -> Floats:
    """Return ``(P, C)``: seconds a port is busy with one token copy."""
    return copy_bytes(system)[:, None] / system.topology.bandwidth


def copy_bytes(system: System) -> Floats:
    """Return ``(P,)``: bytes of one token copy in dispatch and in combine."""
    formats = (system.precision.dispatch, system.precision.combine)
    sizes = np.array([BYTES[form] for form in formats])
    scales = np.where(sizes < 2, 4.0 / SCALE_BLOCK, 0.0)
    return system.model.hidden * (sizes + scales)
