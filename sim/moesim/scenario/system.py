"""What is fixed while an instance serves, and where its experts live.

Every maker raises `InputError`; keys in its problems are relative to the section that it
makes.
"""

from dataclasses import replace

import numpy as np

from moesim.errors import InputError, Problem
from moesim.policy.place.affinity import affinity, transitions
from moesim.policy.place.catalogue import (
    BY_LOAD,
    NAMES,
    PILOT_TOKENS,
    WITHOUT_COPIES,
)
from moesim.policy.place.files import read_loads, read_placement
from moesim.policy.place.pilot import drawn_pilot, recorded_pilot
from moesim.routing.source import count
from moesim.scenario.pieces import (
    file_of,
    model_of,
    sequence_lengths,
    source_of,
    topology_of,
    workload_of,
)
from moesim.scenario.residency import needs_popularity, residency_of
from moesim.scenario.schema import Sections
from moesim.spec.model import ModelSpec
from moesim.spec.placement import PLACEMENTS, Placement, contiguous
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology
from moesim.types import Floats, Ids


def placed_system(scenario: Sections, seed: int | None = None) -> System:
    """Return the system with all experts in device memory; the rest as `system_of`."""
    return System(
        model=model_of(scenario),
        topology=topology_of(scenario),
        placement=placement_of(scenario, seed),
        precision=Precision(**scenario.precision.model_dump()),
        dispatch=scenario.kernels.dispatch,
        experts=scenario.kernels.experts,
        shared_experts=scenario.kernels.shared_experts,
        attention=scenario.kernels.attention,
        tensor_parallel=scenario.cluster.tensor_parallel,
    )


def system_of(scenario: Sections, seed: int | None = None) -> System:
    """Return everything that is fixed while the instance serves.

    Parameters
    ----------
    scenario : Sections
        The scenario.
    seed : int, optional
        Of the run, whose routing a pilot measures. Without one nothing is measured:
        where loads decide, a placement of as many slots stands in, which is all that
        memory depends on.
    """
    system = placed_system(scenario, seed)
    popularity = np.zeros((0, 0))
    if seed is not None and needs_popularity(scenario):
        ids = _pilot(scenario, system.model, seed)
        popularity = count(ids, system.model.experts).astype(float)
    spec = residency_of(scenario, system, seed or 0, popularity)
    return replace(system, residency=spec) if spec else system


def placement_of(scenario: Sections, seed: int | None = None) -> Placement:
    """Return where the experts live; parameters and errors as `system_of`."""
    section = scenario.placement
    name, spare = section.name, section.redundant_experts
    model, topology = model_of(scenario), topology_of(scenario)
    layers, gpus = len(model.moe_layers), topology.gpus
    if name == "file":
        return _from_file(scenario, model, topology)
    if name in PLACEMENTS:
        return PLACEMENTS[name](layers, model.experts, gpus, spare)
    if seed is None:
        return _stand_in(scenario, model, topology)
    if name == "affinity":
        moves = transitions(_pilot(scenario, model, seed), model.experts)
        return affinity(moves, gpus, topology.nodes, spare, seed)
    loads = _loads(scenario, model, seed)
    return BY_LOAD[name](loads, gpus, topology.nodes, model.groups, spare)


def fitting_keys(scenario: Sections) -> None:
    """Raise `InputError` for what is wrong with a placement whatever the model is.

    Keys that its name does not take, a file that is not there, copies of experts where
    none are made.
    """
    section = scenario.placement
    taken = NAMES[section.name]
    problems = [
        Problem(f"does nothing unless placement.name is {_takers(key)}", key=key)
        for key in ("path", "tokens")
        if getattr(section, key) is not None and key not in taken
    ]
    if section.name == "file" and section.path is None:
        problems.append(Problem("file needs path", key="name"))
    if section.name in WITHOUT_COPIES and section.redundant_experts:
        message = f"{section.name} makes no copies: leave redundant_experts out"
        problems.append(Problem(message, key="redundant_experts"))
    if section.path is not None and section.tokens is not None:
        message = "does nothing where loads come from a file (placement.path)"
        problems.append(Problem(message, key="tokens"))
    if problems:
        raise InputError(problems)
    if section.path is not None:
        file_of(section.path)


def measures_a_pilot(scenario: Sections) -> bool:
    """Return whether the placement goes by a pilot of the scenario's own traffic."""
    section = scenario.placement
    return "tokens" in NAMES[section.name] and section.path is None


def left_for_pilot(scenario: Sections) -> None:
    """Raise `InputError` if a pilot is to be taken of a log that is used up."""
    measures = measures_a_pilot(scenario) or needs_popularity(scenario)
    if measures and scenario.routing["name"] == "log":
        source = source_of(scenario, model_of(scenario), scenario.seed)
        used = scenario.workload.num_prompts
        recorded_pilot(sequence_lengths(source), used, tokens=1)


def _takers(key: str) -> str:
    names = [name for name, keys in NAMES.items() if key in keys]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _stand_in(scenario: Sections, model: ModelSpec, topology: Topology) -> Placement:
    """Return a placement with the right slots, once all that can be checked is."""
    section, layers = scenario.placement, len(model.moe_layers)
    if section.path is not None:
        read_loads(file_of(section.path), layers, model.experts)
    return contiguous(layers, model.experts, topology.gpus, section.redundant_experts)


def _from_file(scenario: Sections, model: ModelSpec, topology: Topology) -> Placement:
    section, layers = scenario.placement, len(model.moe_layers)
    path = file_of(section.path)
    placement = read_placement(path, layers, model.experts, topology.gpus)
    spare = placement.phy2log.shape[1] - model.experts
    if section.redundant_experts not in (0, spare):
        message = f"the file has {spare} redundant experts; leave this out"
        raise InputError([Problem(message, key="redundant_experts")])
    return placement


def _loads(scenario: Sections, model: ModelSpec, seed: int) -> Floats:
    section = scenario.placement
    if section.path is not None:
        path, layers = file_of(section.path), len(model.moe_layers)
        return read_loads(path, layers, model.experts)
    return count(_pilot(scenario, model, seed), model.experts).astype(float)


def _pilot(scenario: Sections, model: ModelSpec, seed: int) -> Ids:
    """Return the experts of the pilot's tokens, by the run's own routing."""
    source = source_of(scenario, model, seed)
    tokens = scenario.placement.tokens or PILOT_TOKENS
    recorded = sequence_lengths(source)
    if recorded is None:
        return source.route(drawn_pilot(workload_of(scenario), tokens, seed))
    used = scenario.workload.num_prompts
    return source.route(recorded_pilot(recorded, used, tokens))
