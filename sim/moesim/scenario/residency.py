"""Experts that need not all be in device memory: ``residency`` of a scenario.

Keys in problems are relative to the section. Axes: ``L`` MoE layers, ``E`` experts,
``S`` slots of a GPU, ``G`` GPUs.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from moesim.cost.memory import memory_budget
from moesim.cost.weights import expert_bytes
from moesim.errors import InputError, Problem
from moesim.policy.pins import pins_that_fit
from moesim.policy.rebalance import TensorrtLlm
from moesim.policy.stock import brings_in, capacities
from moesim.scenario.check import Check
from moesim.scenario.copies import PREFETCHES
from moesim.scenario.memory import usable_share
from moesim.scenario.pieces import policy_of
from moesim.scenario.rebalance import rebalance_of
from moesim.scenario.schema import ResidencySection, Sections
from moesim.spec.placement import PLACEMENTS
from moesim.spec.residency import HostSpec, PrefetchSpec, ResidencySpec
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.types import Floats, Ints
from moesim.units import format_binary_bytes


def needs_popularity(scenario: Sections) -> bool:
    """Return whether the most popular experts stay, so that a pilot has to tell them."""
    section = scenario.residency
    if section is None:
        return False
    return section.cache == "static" or isinstance(section.pinned, int)


def residency_of(
    scenario: Sections, system: System, seed: int, popularity: Floats
) -> ResidencySpec | None:
    """Return which experts stay, or None where all do.

    Parameters
    ----------
    scenario, system : Sections, System
        The scenario, and what serves, all its experts in device memory.
    seed : int
        Of guesses.
    popularity : (L, E) array of float
        Tokens of experts in a pilot; empty: not measured.

    Raises
    ------
    InputError
        Experts to stay do not fit, or leave no place for others to come in.
    """
    section = scenario.residency
    if section is None:
        return None
    guess = section.prefetch
    lookahead = 1 if guess.lookahead is None else guess.lookahead
    prefetch = PrefetchSpec(guess.name, guess.hit_rate or 0.0, lookahead, seed)
    spec = ResidencySpec(
        copies=0,
        scope=section.scope,
        cache=section.cache,
        pinned=_pinned(section, system, popularity),
        popularity=popularity,
        on_miss=section.on_miss,
        prefetch=prefetch,
        sync_s=section.sync,
        host_experts=0 if section.host_experts == "all" else section.host_experts,
        host=host_of(scenario),
    )
    spec = replace(spec, copies=_copies(scenario, system, spec))
    if not _pins_are_told(scenario):
        spec = replace(spec, pinned=pins_that_fit(spec, system.placement))
    _fits(spec, system)
    return spec


def host_of(scenario: Sections) -> HostSpec:
    """Return each node's host."""
    names = {"memory": "memory_bytes"}
    given = {
        names.get(key, key): value
        for key, value in scenario.cluster.host or ()
        if value is not None
    }
    return HostSpec(**given)


def _copies(scenario: Sections, system: System, spec: ResidencySpec) -> int:
    """Return how many experts of all layers each GPU keeps."""
    asked, every = _section(scenario).hbm_experts, system.resident_copies
    if isinstance(asked, int):
        if asked > every:
            message = f"each GPU has {every} slots in all layers; got {asked}"
            raise InputError([Problem(message, key="hbm_experts")])
        return asked
    if asked != "auto":
        return int(float(asked.rstrip("% ")) / 100 * every + 1e-9)
    return min(every, _below_threshold(scenario, replace(system, residency=spec)))


def _below_threshold(scenario: Sections, system: System) -> int:
    """Return how many experts fit beside all else below the threshold of memory."""
    section, serving = _section(scenario), scenario.serving
    most = section.threshold or 0.0
    share = usable_share(scenario)
    if most >= share:
        short = share < serving.gpu_memory_utilization
        key = "memory.capacity" if short else "serving.gpu_memory_utilization"
        message = (
            f"experts up to {most:g} of the GPU leave nothing for the KV cache: "
            f"{key} is {share:g}"
        )
        raise InputError([Problem(message, key="threshold")])
    names = {item.name for item in fields(ServingSpec)}
    known = {key: value for key, value in serving if key in names - {"kv_blocks"}}
    budget = memory_budget(system, ServingSpec(**known), serving.gpu_memory_utilization)
    room = most * budget.hbm_bytes - sum(budget.parts.values())
    size = expert_bytes(system.model, system.precision.experts)
    return max(0, int(room // size))


def _section(scenario: Sections) -> ResidencySection:
    assert scenario.residency is not None
    return scenario.residency


def _pins_are_told(scenario: Sections) -> bool:
    """Return whether the file alone says which slots of which GPU are pinned.

    If not, a pilot tells it anew with each seed, and GPUs keep what fits.
    """
    told = scenario.placement.name in (*PLACEMENTS, "file")
    return told and not isinstance(_section(scenario).pinned, int)


def _pinned(section: ResidencySection, system: System, popularity: Floats) -> Ints:
    """Return ``(L, S, G)``: 1 for slots of pinned experts, copies included."""
    layers, experts = system.placement.replicas.shape
    kept = np.zeros((layers, experts), np.int64)
    if isinstance(section.pinned, int):
        if section.pinned > experts:
            message = f"a layer has {experts} experts; got {section.pinned}"
            raise InputError([Problem(message, key="pinned")])
        worth = popularity if popularity.size else np.zeros((layers, experts))
        order = np.argsort(-worth, axis=1, kind="stable")[:, : section.pinned]
        np.put_along_axis(kept, order, 1, axis=1)
    else:
        for number, one in enumerate(section.pinned):
            _inside(one, kept.shape, number)
            kept[one["layer"], one["expert"]] = 1
    held = np.take_along_axis(kept, system.placement.phy2log, axis=1)
    shape = layers, system.topology.gpus, system.placement.slots_per_gpu
    return held.reshape(shape).swapaxes(1, 2)


def _inside(one: dict[str, int], shape: tuple[int, int], number: int) -> None:
    for key, size in zip(("layer", "expert"), shape, strict=True):
        if one[key] >= size:
            message = f"there is no {key} {one[key]}: they are 0 to {size - 1}"
            raise InputError([Problem(message, key=f"pinned.{number}.{key}")])


def _fits(spec: ResidencySpec, system: System) -> None:
    """Raise `InputError` unless each cache has a place that an expert can come into."""
    layers, slots = len(system.placement.phy2log), system.placement.slots_per_gpu
    by_layer = spec.pinned.sum(axis=1).max(axis=1)
    sizes, pinned = capacities(spec.copies, layers, slots), by_layer.tolist()
    whole, where = slots, "a layer"
    if spec.scope == "gpu":
        sizes = [min(spec.copies, layers * slots)]
        pinned = [int(spec.pinned.sum(axis=(0, 1)).max())]
        whole, where = layers * slots, "a GPU"
    for size, kept in zip(sizes, pinned, strict=True):
        if kept > size:
            message = (
                f"{kept} pinned experts of {where} on a GPU do not fit into {size}"
            )
            raise InputError([Problem(message, key="pinned")])
        if kept == size < whole and brings_in(spec):
            message = (
                f"{size} experts of {where} stay on a GPU, {kept} of them pinned: "
                "no place is left for others to come in; one is needed"
            )
            raise InputError([Problem(message, key="hbm_experts")])
    _host_fits(spec, system)


def _host_fits(spec: ResidencySpec, system: System) -> None:
    """Raise `InputError` if a node's memory does not hold the experts it should."""
    node = np.repeat(system.topology.node, system.placement.slots_per_gpu)
    size = expert_bytes(system.model, system.precision.experts)
    for number in range(system.topology.nodes):
        mine = system.placement.phy2log[:, node == number]
        held = sum(len(np.unique(row)) for row in mine)
        if spec.host_experts:
            held = min(held, spec.host_experts)
        if held * size > spec.host.memory_bytes:
            need = format_binary_bytes(held * size)
            has = format_binary_bytes(spec.host.memory_bytes)
            message = (
                f"{held} experts of a node take {need}, and its host has {has} for "
                "them (cluster.host.memory): keep fewer there, the others on drives"
            )
            raise InputError([Problem(message, key="host_experts")])


def residency_fits(scenario: Sections) -> None:
    """Raise `InputError` for what residency cannot go with, or does nothing with."""
    section = scenario.residency
    if section is None:
        return
    problems = [*_not_simulated(scenario), *_without_effect(section)]
    if section.cache == "belady":
        message = (
            "belady knows the future, which no run does; it is a bound for the "
            "caches of moesim.policy.cache"
        )
        problems.append(Problem(message, key="cache"))
    if problems:
        raise InputError(problems)


def _not_simulated(scenario: Sections) -> Iterator[Problem]:
    serving = scenario.serving
    if "lockstep" in (serving.coupling, policy_of(scenario).coupling):
        message = "is not simulated in lockstep: experts come and go within a stage"
        yield Problem(message)
    if serving.engine == "array":
        yield Problem("needs the event engine: serving.engine auto or event")
    if scenario.placement.rebalance is not None:
        yield Problem("is not simulated where placement.rebalance moves experts")
    guesses = _section(scenario).prefetch.name
    if guesses == "class" and scenario.routing.get("draw") == "counts":
        message = "class learns from tokens, and routing.draw counts has none"
        yield Problem(message, key="prefetch.name")


def _without_effect(section: ResidencySection) -> Iterator[Problem]:
    guess = section.prefetch
    for key in ("hit_rate", "lookahead"):
        if getattr(guess, key) is not None and key not in PREFETCHES[guess.name]:
            message = f"does nothing with prefetch {guess.name}"
            yield Problem(message, key=f"prefetch.{key}")
    if section.threshold is not None and section.hbm_experts != "auto":
        yield Problem("does nothing unless hbm_experts is auto", key="threshold")
    still = section.on_miss == "cpu" and guess.name == "none"
    if still and section.cache != "static":
        message = (
            f"{section.cache} does nothing with on_miss cpu and no prefetch: "
            "nobody ever comes in; static says who is there"
        )
        yield Problem(message, key="cache")


def _host_used(scenario: Sections) -> None:
    """Raise `InputError` for a host that does nothing."""
    if scenario.residency is None and scenario.cluster.host is not None:
        raise InputError("does nothing without a section residency")


def _port_used(scenario: Sections) -> None:
    """Raise `InputError` for a bandwidth to the host that nothing goes over."""
    if scenario.cluster.host_bandwidth is None or scenario.residency is not None:
        return
    swaps = scenario.memory is not None and scenario.memory.preemption == "swap"
    if not swaps and not isinstance(rebalance_of(scenario), TensorrtLlm):
        raise InputError(
            "does nothing without a section residency, memory.preemption swap, or "
            "placement.rebalance tensorrt_llm"
        )


def _hold_used(scenario: Sections) -> None:
    """Raise `InputError` for holding back from loads that nobody does."""
    if scenario.residency is None and scenario.policy.get("swap_hold"):
        raise InputError("does nothing without a section residency")


_AT = ("residency",)
IDLE = (
    Check(("cluster", "host"), _host_used, (_AT,)),
    Check(
        ("cluster", "host_bandwidth"),
        _port_used,
        (_AT, ("memory",), ("placement", "rebalance")),
    ),
    Check(("policy", "swap_hold"), _hold_used, (_AT,)),
)
"""Checks of settings elsewhere that do nothing without the section."""
