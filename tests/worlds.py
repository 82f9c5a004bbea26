"""Small systems and random micro-batches for tests, built without any cost model."""

import numpy as np

from moesim.cost.pass_ import PassLoad
from moesim.engine.clock import Clock
from moesim.engine.event.engine import EventEngine
from moesim.engine.lockstep.engine import LockstepEngine
from moesim.engine.microbatch import MicroBatch, TickCost
from moesim.measure.columns import Recorder
from moesim.policy.bundle import Policy, make_policy
from moesim.spec.hardware import GpuSpec
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.spec.topology import Topology
from moesim.workload.requests import Requests

GPU = GpuSpec(
    name="unit",
    bf16_flops=989.4e12,
    fp8_flops=1978.8e12,
    fp4_flops=1978.8e12,
    hbm_bytes=80 * 2**30,
    hbm_bandwidth=3.35e12,
    nvlink_bandwidth=450e9,
    nic_bandwidth=50e9,
    nvlink_latency_s=2e-6,
    nic_latency_s=5e-6,
)


def tiny_model(layers=2, experts=8, top_k=2):
    attention = AttentionSpec(kind="gqa", heads=4, kv_heads=2, head_dim=16)
    return ModelSpec(
        name="tiny",
        layers=layers,
        moe_layers=tuple(range(layers)),
        hidden=64,
        vocab=1000,
        attention=attention,
        experts=experts,
        top_k=top_k,
        expert_width=128,
    )


def tiny_system(layers=2, count=8, gpus=4, nodes=1, top_k=2, **options):
    """Return a small system with experts placed contiguously."""
    phy2log = np.tile(np.arange(count), (layers, 1))
    return System(
        model=tiny_model(layers, count, top_k),
        topology=Topology(GPU, nodes, gpus // nodes),
        placement=Placement(phy2log, gpus),
        **options,
    )


def requests_of(arrival_s, inputs, outputs, max_concurrency=0):
    count = len(arrival_s)
    return Requests(
        arrival_s=np.asarray(arrival_s, float),
        input_tokens=np.broadcast_to(np.asarray(inputs, np.int64), count).copy(),
        output_tokens=np.broadcast_to(np.asarray(outputs, np.int64), count).copy(),
        klass=np.zeros(count, np.int64),
        max_concurrency=max_concurrency,
    )


def durations(rng, shape, largest, empty=0.2):
    """Return whole durations on a coarse grid: ties everywhere, some of them none."""
    return rng.integers(1, largest + 1, shape) * (rng.random(shape) >= empty)


def random_cost(rng, system, largest=6, empty=0.2):
    layers, gpus = len(system.model.moe_layers), system.topology.gpus
    slots = system.placement.slots_per_gpu
    tx = durations(rng, (layers, 2, 2, gpus), largest, empty)
    rx = durations(rng, (layers, 2, 2, gpus), largest, empty)
    if system.topology.nodes == 1:
        tx[:, :, 1] = rx[:, :, 1] = 0
    nothing = (tx.sum(-1) == 0) | (rx.sum(-1) == 0)
    tx[nothing] = rx[nothing] = 0
    attention = durations(rng, (layers, gpus), largest, empty)
    return TickCost(
        attention=attention,
        useful=attention // 2,
        experts=durations(rng, (layers, slots, gpus), largest, empty),
        tx=tx,
        rx=rx,
        tail=durations(rng, (gpus,), largest, empty),
        latency=rng.integers(1, 4, 2),
    )


def batch_of(cost, number=0, admitted=0, guess=None):
    """Return a micro-batch with this cost and otherwise empty figures."""
    layers, slots, gpus = cost.experts.shape
    zeros = np.zeros(gpus, np.int64)
    load = PassLoad(
        tokens=zeros,
        padding=zeros,
        sequences=zeros,
        attended=zeros,
        kv_read=zeros,
        slots=(cost.experts > 0).astype(np.int64),
        tx=np.zeros((layers, 2, gpus), np.int64),
        rx=np.zeros((layers, 2, gpus), np.int64),
    )
    truth = cost.experts.sum(axis=1) / 1e12
    return MicroBatch(
        number=number,
        admitted=admitted,
        requests=np.array([number]),
        chunk=np.array([1]),
        oldest_arrival_s=admitted / 1e12,
        load=load,
        cost=cost,
        source_tokens=zeros,
        source_padding=zeros,
        padding_slots=np.zeros((layers, slots, gpus), np.int64),
        sent=np.zeros((2, 2, gpus)),
        received=np.zeros((2, 2, gpus)),
        traffic=np.zeros((2, gpus, gpus)),
        experts_s=truth,
        guess_s=truth if guess is None else guess,
    )


def play_batches(system, batches, policy="fifo", engine=EventEngine):
    """Return when each batch ended, and the recorder, with all admitted as they say."""
    clock = Clock()
    recorder = Recorder(system, requests_of([0.0], 1, 1))
    policy = policy if isinstance(policy, Policy) else make_policy(policy)
    walker = engine(clock, system, policy, recorder)
    done = {}

    def admit(event):
        batch = event._value
        walker.admit(batch, lambda b: done.setdefault(b.number, clock.now))

    for batch in batches:
        clock.after(batch.admitted, admit, batch)
    clock.run()
    return [done[batch.number] for batch in batches], recorder


ENGINES = {"queued": EventEngine, "lockstep": LockstepEngine}
