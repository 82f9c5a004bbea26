"""Which resource binds a pass: what each costs it, as shares that sum to one.

A resource's share is how much longer a pass takes, in per cent, when that resource alone
is one per cent slower. Every price is linear in them or the larger of two that are, so
the shares sum to one (Euler), and one that hides behind another has none. They come
from the cost functions themselves, priced with a slower resource.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moesim.cost.even import EvenBatch, MeanLoad, even_load, mean_price
from moesim.cost.experts import expert_time
from moesim.cost.pass_ import PassCost
from moesim.cost.uncontended import uncontended_seconds
from moesim.spec.system import System
from moesim.types import Floats

STEP = 1e-6
"""By what share a resource is made slower to see what it costs."""
RATES: Mapping[str, tuple[str, ...]] = {
    "attention compute": ("attention_efficiency",),
    "dense compute": ("gemm_efficiency", "narrow_efficiency"),
    "expert compute": ("expert_efficiency",),
    "NVLink": ("nvlink_efficiency", "allreduce_efficiency"),
    "NIC": ("nic_efficiency",),
}
"""Resources that a GPU has for one purpose, and what says how fast each is."""
WAITS: Mapping[str, tuple[str, ...]] = {
    "link latency": ("nvlink_latency_s", "nic_latency_s"),
    "launches": ("launch_s",),
}
"""Fixed times, and what says how long each is."""
READS = ("KV reads", "dense weights", "expert weights")
"""What device memory is read for. Weights include what kernels stream beside them."""
RESOURCES = (*RATES, *READS, *WAITS)
"""All of them; `dense` is everything on a token's own GPU but the attention core."""


def pass_shares(load: MeanLoad, system: System) -> dict[str, float]:
    """Return the share of each of `RESOURCES` in a pass that runs alone."""
    base = uncontended_seconds(mean_price(load, system))
    slower = dict(_slower(load, system))
    longer = {name: uncontended_seconds(slower[name]) - base for name in RESOURCES}
    return {name: more / (STEP * base) for name, more in longer.items()}


def binding(shares: Mapping[str, float]) -> str:
    """Return the resource with the largest share; of equals, the first.

    >>> binding({"NIC": 0.25, "launches": 0.5, "NVLink": 0.25})
    'launches'
    """
    return max(shares, key=lambda name: shares[name])


def even_seconds(batches: Sequence[EvenBatch], system: System) -> float:
    """Return how long a pass of such batches takes that has the cluster to itself.

    With ``b`` sequences that decode, this is their time per output token, and ``b``
    over it the tokens per second of a rank.
    """
    return uncontended_seconds(mean_price(even_load(batches, system), system))


def even_parts(batches: Sequence[EvenBatch], system: System) -> dict[str, float]:
    """Return where the time of an even pass goes, in seconds of the mean GPU.

    Returns
    -------
    dict
        ``attention``, ``experts``, ``lm_head`` and ``exchange``: the rest, which is
        the all-to-all and, where placement is uneven, waiting for the busiest GPU.
    """
    cost = mean_price(even_load(batches, system), system)
    hidden = cost.shared.sum(axis=0) if cost.shared.size else 0.0
    parts = {
        "attention": float((cost.attention.sum(axis=0) - hidden).mean()),
        "experts": float(cost.experts.sum(axis=(0, 1)).mean()),
        "lm_head": float(cost.tail.mean()),
    }
    return parts | {"exchange": uncontended_seconds(cost) - sum(parts.values())}


def expert_bound(mean: Floats, system: System) -> str:
    """Return what binds most of the time of expert jobs, launches aside.

    Parameters
    ----------
    mean : (..., S, G) array of float
        Tokens of the job at each slot.

    Returns
    -------
    str
        ``expert compute`` or ``expert weights``.
    """
    gpu, base = system.topology.gpu, expert_time(mean, system).sum()

    def longer(rate: str) -> float:
        slower = _with_gpu(system, {rate: getattr(gpu, rate) / (1 + STEP)})
        return float(expert_time(mean, slower).sum() - base)

    compute = longer("expert_efficiency") > longer("hbm_efficiency")
    return "expert compute" if compute else "expert weights"


def _slower(load: MeanLoad, system: System) -> Iterator[tuple[str, PassCost]]:
    """Yield what the pass costs with each resource slower in turn."""
    gpu = system.topology.gpu
    for name, rates in RATES.items():
        changed = {rate: getattr(gpu, rate) / (1 + STEP) for rate in rates}
        yield name, mean_price(load, _with_gpu(system, changed))
    for name, waits in WAITS.items():
        changed = {wait: getattr(gpu, wait) * (1 + STEP) for wait in waits}
        yield name, mean_price(load, _with_gpu(system, changed))
    yield from _slower_reads(load, system)


def _slower_reads(load: MeanLoad, system: System) -> Iterator[tuple[str, PassCost]]:
    """Yield what the pass costs with memory slower for one kind of its reads.

    What an attention core takes is the difference to a pass that looks at no context.
    """
    nothing = 0 * load.own.attended
    bare = replace(load, own=replace(load.own, attended=nothing, kv_read=nothing))
    rate = system.topology.gpu.hbm_efficiency / (1 + STEP)
    slow = _with_gpu(system, {"hbm_efficiency": rate})
    whole, dense = mean_price(load, system), mean_price(bare, system)
    slow_whole, slow_dense = mean_price(load, slow), mean_price(bare, slow)
    yield (
        "KV reads",
        replace(
            whole,
            attention=slow_whole.attention - slow_dense.attention + dense.attention,
            tail=slow_whole.tail - slow_dense.tail + dense.tail,
        ),
    )
    yield (
        "dense weights",
        replace(
            whole,
            attention=whole.attention - dense.attention + slow_dense.attention,
            tail=whole.tail - dense.tail + slow_dense.tail,
            shared=slow_whole.shared,
        ),
    )
    yield "expert weights", replace(whole, experts=slow_whole.experts)


def _with_gpu(system: System, changed: Mapping[str, float]) -> System:
    given: dict[str, Any] = dict(changed)
    gpu = replace(system.topology.gpu, **given)
    return replace(system, topology=replace(system.topology, gpu=gpu))
