"""``moesim list``: what a scenario can name, read from the registries themselves."""

from collections.abc import Sequence
from dataclasses import fields
from inspect import getdoc
from pathlib import Path
from typing import Any

from moesim.policy.bundle import policy_parameters
from moesim.policy.cache import CACHES, RULES
from moesim.policy.cache_rules import Belady, Static
from moesim.policy.catalogue import POLICIES, keeps_outputs
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.place.affinity import affinity
from moesim.policy.place.catalogue import BY_LOAD, NAMES
from moesim.policy.place.files import read_placement
from moesim.policy.rebalance import REBALANCES
from moesim.routing.catalogue import SOURCES
from moesim.scenario.named import GIVEN
from moesim.spec.catalogue import load_model, model_names
from moesim.spec.hardware import gpu_names, load_gpu
from moesim.spec.parameters import count_parameters
from moesim.spec.placement import PLACEMENTS
from moesim.units import format_bandwidth, format_binary_bytes

FOLDER = Path("scenarios")


def listing(kinds: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return name and description of everything of these kinds."""
    makers = {
        "models": _models,
        "gpus": _gpus,
        "policies": _policies,
        "routing": _routing,
        "placements": _placements,
        "replicas": _replicas,
        "rebalances": _rebalances,
        "caches": _caches,
        "scenarios": _scenarios,
    }
    return {kind: makers[kind]() for kind in kinds}


def text(found: dict[str, dict[str, str]]) -> str:
    """Return a listing as aligned lines under a heading each."""
    lines: list[str] = []
    for kind, entries in found.items():
        width = max((len(name) for name in entries), default=0)
        lines += [f"{kind}:"]
        lines += [f"  {name:<{width}}  {said}" for name, said in entries.items()]
        lines += ["  (none)"] if not entries else []
    return "\n".join(lines)


def _models() -> dict[str, str]:
    return {name: _model(name) for name in model_names()}


def _model(name: str) -> str:
    model = load_model(name)
    total = count_parameters(model).total / 1e9
    shared = ", shared expert" if model.shared_width else ""
    return (
        f"{total:.1f} B parameters, {len(model.moe_layers)} of {model.layers} layers "
        f"MoE, {model.experts} experts, top {model.top_k}{shared}"
    )


def _gpus() -> dict[str, str]:
    found = {}
    for name in gpu_names():
        gpu = load_gpu(name)
        memory = format_binary_bytes(gpu.hbm_bytes)
        speed = format_bandwidth(gpu.hbm_bandwidth)
        found[name] = f"{memory} at {speed}, {gpu.bf16_flops / 1e12:.0f} bf16 TFLOPS"
    return found


def _policies() -> dict[str, str]:
    found = {}
    for name, kind in POLICIES.items():
        parameters = ", ".join(policy_parameters(name))
        said = first_line(kind) + (f" ({parameters})" if parameters else "")
        mark = "" if keeps_outputs(name) else " [changes model outputs]"
        found[name] = said + mark
    return found


def _routing() -> dict[str, str]:
    found = {}
    for name, kind in SOURCES.items():
        idle = GIVEN if hasattr(kind, "pass_counts") else (*GIVEN, "draw")
        takes = [f.name for f in fields(kind) if f.init and f.name not in idle]
        found[name] = first_line(kind) + (f" ({', '.join(takes)})" if takes else "")
    return found


def _placements() -> dict[str, str]:
    makers = {**PLACEMENTS, **BY_LOAD, "affinity": affinity, "file": read_placement}
    found = {}
    for name, takes in NAMES.items():
        said = first_line(makers[name]).removeprefix("Return ")
        parameters = f" ({', '.join(takes)})" if takes else ""
        found[name] = said[:1].upper() + said[1:] + parameters
    return found


def _replicas() -> dict[str, str]:
    return {name: first_line(kind) for name, kind in DISPATCHES.items()}


def _rebalances() -> dict[str, str]:
    found = {}
    for name, kind in REBALANCES.items():
        keys = [item.name.removesuffix("_s") for item in fields(kind) if item.init]
        found[name] = f"{first_line(kind)} ({', '.join(keys)})"
    return found


def _caches() -> dict[str, str]:
    rules = {**RULES, "static": Static, "belady": Belady}
    return {name: first_line(rules[name]) for name in CACHES}


def first_line(thing: Any) -> str:
    """Return the first line of something's documentation."""
    return (getdoc(thing) or "").split("\n")[0]


def _scenarios() -> dict[str, str]:
    """Return the scenarios below the working directory, with their questions."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: question(path) for path in files}


def question(path: Path) -> str:
    """Return the comment in a scenario's first line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(500).strip().lstrip("# ")
