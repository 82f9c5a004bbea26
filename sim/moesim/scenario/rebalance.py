"""The loop that moves experts while serving: ``placement.rebalance`` of a scenario."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from moesim.cost.relocation import staging_bytes
from moesim.engine.clock import LONGEST_S
from moesim.errors import InputError, Problem
from moesim.policy.rebalance import REBALANCES, Rebalance, Still
from moesim.scenario.named import none_of
from moesim.scenario.quantities import shown
from moesim.scenario.schema import Sections
from moesim.spec.system import System
from moesim.units import parse_count, parse_duration, parse_number


def rebalance_of(scenario: Sections) -> Rebalance:
    """Return the loop, or what leaves experts where they are.

    Raises
    ------
    InputError
        There is no such loop, or it takes no such key or value.
    """
    table = scenario.placement.rebalance
    if table is None:
        return Still()
    name = table.get("name")
    if not isinstance(name, str) or name not in REBALANCES:
        raise InputError([Problem(none_of(name, list(REBALANCES)), key="name")])
    kinds = get_type_hints(REBALANCES[name])
    known = {
        item.name.removesuffix("_s"): item.name for item in fields(REBALANCES[name])
    }
    arguments: dict[str, Any] = {}
    problems = []
    for key, value in table.items():
        if key == "name":
            continue
        if key not in known:
            message = f"unknown key for {name}: {none_of(key, list(known))}"
            problems.append(Problem(message, key=str(key)))
            continue
        try:
            arguments[known[key]] = _read(value, known[key], kinds[known[key]])
        except ValueError as error:
            problems.append(Problem(str(error), key=str(key)))
    if problems:
        raise InputError(problems)
    return _made(name, arguments)


def _made(name: str, arguments: dict[str, Any]) -> Rebalance:
    try:
        return REBALANCES[name](**arguments)
    except ValueError as error:
        key = str(error).split()[0]
        raise InputError([Problem(str(error), key=key)]) from None


def _read(value: object, field: str, kind: Any) -> Any:
    """Return a value of a field's type, or raise `ValueError` with what is expected."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(none_of(value, list(get_args(kind))))
        return value
    reader, expected = parse_number, "a number"
    if kind is int:
        reader, expected = parse_count, "a whole number"
    elif field.endswith("_s"):
        reader, expected = parse_duration, "a duration such as '5 ms'"
    if value is None or isinstance(value, dict | list):
        raise ValueError(f"{expected} is expected; got {shown(value)}")
    number = reader(value)
    if field.endswith("_s") and number > LONGEST_S:
        raise ValueError(f"at most {LONGEST_S:g} s are expected; got {shown(value)}")
    return number


def set_aside(scenario: Sections, system: System) -> float:
    """Return the bytes of each GPU in which experts arrive before they are in use."""
    staged = rebalance_of(scenario).carriage().staged
    return staging_bytes(system) if staged else 0.0
