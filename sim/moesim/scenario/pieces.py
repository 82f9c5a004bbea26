"""A scenario's sections, each made into the thing it describes.

Every maker raises `InputError`; keys in its problems are relative to the section that it
makes, so a loader can point at the line.
"""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from moesim.cost.memory import kv_capacity_blocks
from moesim.errors import InputError, Problem, file_meant
from moesim.policy.bundle import Policy, Setting, make_policy
from moesim.policy.catalogue import POLICIES
from moesim.routing.catalogue import SOURCES
from moesim.routing.source import RoutingSource
from moesim.scenario.memory import memory_of, usable_share
from moesim.scenario.named import make, none_of, policy_problems
from moesim.scenario.quantities import expanded, shown
from moesim.scenario.rebalance import rebalance_of, set_aside
from moesim.scenario.schema import Sections, Table
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import load_gpu
from moesim.spec.model import ModelSpec
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.spec.topology import Topology
from moesim.workload.arrivals import ARRIVALS, Arrivals, TraceArrivals
from moesim.workload.generate import Phases, WorkloadSpec
from moesim.workload.lengths import LENGTHS, Lengths, TraceLength
from moesim.workload.traces import READERS, Trace, read_trace


def model_of(scenario: Sections) -> ModelSpec:
    """Return the model: a preset, or a Hugging Face ``config.json``."""
    return load_model(_expanded(scenario.model, ""))


def topology_of(scenario: Sections) -> Topology:
    """Return the cluster."""
    section = scenario.cluster
    count = section.nodes * section.gpus_per_node
    speed = tuple(section.speed.get(number, 1.0) for number in range(count))
    gpu = load_gpu(section.gpu)
    if section.host_bandwidth is not None:
        gpu = replace(gpu, host_bandwidth=section.host_bandwidth)
    return Topology(
        gpu,
        section.nodes,
        section.gpus_per_node,
        speed if section.speed else (),
    )


def source_of(scenario: Sections, model: ModelSpec, seed: int) -> RoutingSource:
    """Return what routes the tokens."""
    table = dict(scenario.routing)
    if "hot" in table:
        table["hot"] = _hot(table["hot"])
    _expand(table)
    given = {
        "layers": len(model.moe_layers),
        "experts": model.experts,
        "top_k": model.top_k,
        "groups": model.groups,
        "top_groups": model.top_groups,
        "seed": seed,
    }
    return make(SOURCES, "name", table, given)


def workload_of(scenario: Sections) -> WorkloadSpec:
    """Return what arrives, in words."""
    section = scenario.workload
    phases = section.phases
    return WorkloadSpec(
        num_prompts=section.num_prompts,
        arrivals=arrivals_of(scenario),
        input_len=length_of(section.input_len, "input_tokens"),
        output_len=length_of(section.output_len, "output_tokens"),
        classes=tuple(section.classes.items()),
        max_concurrency=section.max_concurrency,
        phases=Phases(phases.share, phases.mean_requests) if phases else None,
    )


def arrivals_of(scenario: Sections) -> Arrivals:
    """Return the law of arrival; a trace is read from its file."""
    table = dict(scenario.workload.arrivals)
    if table.get("type") != "trace":
        return make(ARRIVALS, "type", table, {})
    trace = _trace(table, {"type", "path", "format", "speedup", "request_rate"})
    pace = {key: table[key] for key in ("speedup", "request_rate") if key in table}
    return TraceArrivals(trace, **pace)


def length_of(table: Table, column: str) -> Lengths:
    """Return a law of lengths; a trace's are read from its file."""
    if table.get("type") == "trace":
        return TraceLength(getattr(_trace(table, {"type", "path", "format"}), column))
    return make(LENGTHS, "type", dict(table), {})


def policy_of(scenario: Sections) -> Policy:
    """Return the policy, with the roles that the serving section names."""
    table = scenario.policy
    name = table.get("name")
    if isinstance(name, str) and ":" in name:
        message = (
            f"{shown(name)} is code, which a scenario file may not name; use "
            "`--policy module:Class` or the Python interface"
        )
        raise InputError([Problem(message, key="name")])
    if not isinstance(name, str) or name not in POLICIES:
        raise InputError([Problem(none_of(name, list(POLICIES)), key="name")])
    problems = policy_problems(name, table)
    if problems:
        raise InputError(problems)
    return make_policy(table, setting_of(scenario))


def setting_of(scenario: Sections) -> Setting:
    """Return the roles that the serving and placement sections name."""
    serving = scenario.serving
    loop = rebalance_of(scenario)
    return Setting(serving.assign, serving.replica, serving.stage_width, loop)


def serving_of(scenario: Sections, system: System) -> ServingSpec:
    """Return the batching limits, with a KV pool as large as memory allows."""
    section = scenario.serving
    names = {item.name for item in fields(ServingSpec)} - {"kv_blocks", "memory"}
    limits = section.model_dump(include=names)
    serving = ServingSpec(**limits, memory=memory_of(scenario))
    share, asked = section.gpu_memory_utilization, section.kv_blocks
    if asked == "auto":
        share = usable_share(scenario)
    most = kv_capacity_blocks(
        system,
        serving,
        share,
        staging_bytes=set_aside(scenario, system),
    )
    blocks = most if asked == "auto" else asked
    if blocks > most:
        message = f"{blocks} blocks do not fit: each rank has memory for {most}"
        raise InputError([Problem(message, key="kv_blocks")])
    return replace(serving, kv_blocks=blocks)


def sequence_lengths(source: RoutingSource) -> Any:
    """Return the lengths of a replayed log's sequences, or None."""
    return getattr(source, "sequence_lengths", None)


def file_of(path: Any) -> Path:
    """Return the file that a ``path`` of the scenario leads to."""
    table = {"path": path}
    _expand(table)
    return Path(table["path"])


def _trace(table: Table, allowed: set[str]) -> Trace:
    problems = [
        Problem(f"unknown key for trace: {none_of(key, sorted(allowed))}", key=str(key))
        for key in table
        if key not in allowed
    ]
    if "path" not in table:
        problems.append(Problem("trace needs path", key="type"))
    form = table.get("format", "auto")
    if form not in ("auto", *READERS):
        problems.append(Problem(none_of(form, ["auto", *READERS]), key="format"))
    if problems:
        raise InputError(problems)
    copy = dict(table)
    _expand(copy)
    return read_trace(copy["path"], form)


def _expand(table: Table) -> None:
    """Make the table's path one that leads to a file."""
    if "path" not in table:
        return
    path = _expanded(table["path"], "path")
    if not os.path.exists(path):
        message = f"there is no file {shown(path)}{file_meant(Path(path))}"
        raise InputError([Problem(message, key="path")])
    table["path"] = path


def _expanded(value: Any, key: str) -> str:
    if not isinstance(value, str):
        message = f"the path of a file is expected; got {shown(value)}"
        raise InputError([Problem(message, key=key)])
    try:
        return str(expanded(value)) if "${" in value else value
    except ValueError as error:
        raise InputError([Problem(str(error), key=key)]) from None


def _hot(value: Any) -> tuple[tuple[int, int], ...]:
    """Return ``[{layer: 2, expert: 5}]`` as pairs."""
    problem = "a list of {layer: ..., expert: ...} is expected"
    if not isinstance(value, list | tuple):
        raise InputError([Problem(f"{problem}; got {shown(value)}", key="hot")])
    pairs = []
    for number, item in enumerate(value):
        whole = isinstance(item, dict) and set(item) == {"layer", "expert"}
        if not whole or not all(type(part) is int for part in item.values()):
            raise InputError(
                [Problem(f"{problem}; got {item!r:.60}", key=f"hot.{number}")]
            )
        pairs.append((item["layer"], item["expert"]))
    return tuple(pairs)
