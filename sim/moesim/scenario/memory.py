"""Memory while serving: section ``memory`` of a scenario."""

from collections.abc import Sequence
from dataclasses import fields

from moesim.errors import InputError, Problem
from moesim.measure.memory import Reserved
from moesim.scenario.quantities import bytes_text
from moesim.scenario.schema import MemorySection, Sections, Table
from moesim.spec.memory import MemorySpec

NEEDS = {
    "reserve": ("kv_allocator", "contiguous"),
    "max_model_len": ("reserve", "max_model_len"),
    "swap_space": ("preemption", "swap"),
}
"""What each key that may be left out is for: a value of another key."""
DEFAULTS = MemorySpec()


def memory_of(scenario: Sections) -> MemorySpec | None:
    """Return the rules of memory, or None where a scenario says nothing of it.

    Raises
    ------
    InputError
        A key is given that does nothing beside the others.
    """
    section = scenario.memory
    if section is None:
        return None
    given = section.model_dump(exclude_none=True)
    taken = _taken(given)
    problems = [
        Problem(f"does nothing unless memory.{needed} is {value}", key=key)
        for key, (needed, value) in NEEDS.items()
        if key in given and key not in taken
    ]
    if section.kv_allocator == "contiguous" and section.preemption == "swap":
        message = "does nothing: with kv_allocator contiguous nobody is preempted"
        problems.append(Problem(message, key="preemption"))
    if scenario.residency is not None and section.preemption == "swap":
        message = "swap is not simulated beside residency: both need the host's ports"
        problems.append(Problem(message, key="preemption"))
    if problems:
        raise InputError(problems)
    if "swap_space" in given:
        given["swap_space_bytes"] = section.swap_space
        del given["swap_space"]
    return MemorySpec(**given)


def usable_share(scenario: Sections) -> float:
    """Return the share of device memory within which a pool is sized."""
    share = scenario.serving.gpu_memory_utilization
    return share if scenario.memory is None else min(share, scenario.memory.capacity)


def check_capacity(known: Reserved) -> None:
    """Raise `InputError` if what is always in memory is more than may be in use."""
    if known.total > known.limit:
        message = f"what is always in memory is more than may be in use: {known}"
        if known.total - known.kv_pool < known.limit:
            message += "; serving.kv_blocks auto is a pool that fits"
        raise InputError([Problem(message, key="capacity")])


def check_reserve(spec: MemorySpec | None, tokens: int) -> None:
    """Raise `InputError` if not one stretch of ``max_model_len`` fits on a rank.

    Parameters
    ----------
    tokens : int
        What a rank's KV memory holds.
    """
    if spec is None or not spec.contiguous or spec.reserve != "max_model_len":
        return
    if spec.max_model_len > tokens:
        message = (
            f"{spec.max_model_len} tokens in a row are set aside for every request, and "
            f"a rank has KV memory for {tokens}"
        )
        raise InputError([Problem(message, key="max_model_len")])


def filled(section: MemorySection) -> Table:
    """Return the section with the defaults of the keys that do something."""
    data: Table = section.model_dump(exclude_none=True)
    known: Table = {
        "reserve": DEFAULTS.reserve,
        "max_model_len": DEFAULTS.max_model_len,
    }
    known["swap_space"] = bytes_text(DEFAULTS.swap_space_bytes)
    data = {key: known[key] for key in _taken(data)} | data
    order = [item.name.removesuffix("_bytes") for item in fields(MemorySpec)]
    return {key: data[key] for key in order if key in data}


def drop_idle(table: object, changes: Sequence[str]) -> None:
    """Drop what does nothing any more in a section some of whose keys have changed.

    What was asked for just now stays, to be refused.

    Parameters
    ----------
    table : object
        The section, if there is one.
    changes : sequence of str
        Dotted keys that have changed.
    """
    if not isinstance(table, dict):
        return
    taken = _taken(table)
    for key in NEEDS:
        if key not in taken and f"memory.{key}" not in changes:
            table.pop(key, None)


def _taken(table: Table) -> list[str]:
    """Return the keys of `NEEDS` that do something beside the others."""
    taken = []
    if table.get("kv_allocator") == "contiguous":
        taken.append("reserve")
        if table.get("reserve", DEFAULTS.reserve) == "max_model_len":
            taken.append("max_model_len")
    if table.get("preemption") == "swap":
        taken.append("swap_space")
    return taken
