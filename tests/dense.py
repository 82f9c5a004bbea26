"""GPUs that are bound by one thing alone, and loads for what runs outside the experts."""

import numpy as np

from moesim.cost.attention import attention_times
from moesim.cost.pass_ import PassLoad
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import GpuSpec
from moesim.spec.placement import contiguous
from moesim.spec.system import System
from moesim.spec.topology import Topology

FOREVER = 1e30
"""A rate at which nothing takes time."""
ARITHMETIC = GpuSpec("arithmetic", 1e12, 2e12, 4e12, 1, *[FOREVER] * 3)
MEMORY = GpuSpec("memory", *[FOREVER] * 3, 1, 1e12, *[FOREVER] * 2)
LAUNCHES = GpuSpec("launches", *[FOREVER] * 3, 1, *[FOREVER] * 3, launch_s=1.0)


def system_of(name, gpu, gpus=2, speed=(), **options):
    model = load_model(name)
    placement = contiguous(model.moe_layer_count, model.experts, gpus, 0)
    return System(model, Topology(gpu, 1, gpus, speed), placement, **options)


def load_of(system, tokens=0, padding=0, sequences=0, attended=0, kv_read=0):
    """Return a load of which the routed part is left empty."""
    gpus = system.topology.gpus
    given = (tokens, padding, sequences, attended, kv_read)
    columns = [np.broadcast_to(np.asarray(x), gpus) for x in given]
    none = np.zeros((system.model.moe_layer_count, 2, gpus), int)
    return PassLoad(*columns, slots=none, tx=none, rx=none)


def total(system, **load):
    """Return the seconds of a whole pass on the first GPU."""
    attention, _, tail = attention_times(load_of(system, **load), system)
    return attention[:, 0].sum() + tail[0]
