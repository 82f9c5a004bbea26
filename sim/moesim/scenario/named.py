"""Parts that a name and parameters describe: routing, arrivals, lengths, policies.

The registries' dataclasses say which parameters there are; a part that is made has thereby
been checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from moesim.errors import InputError, Problem, meant
from moesim.policy.catalogue import POLICIES
from moesim.scenario.quantities import budget, shown
from moesim.scenario.schema import Table
from moesim.units import parse_number

GIVEN = ("layers", "experts", "top_k", "groups", "top_groups", "seed", "bend")
"""Fields of a routing source that the model and the seed decide."""


def make(
    known: Mapping[str, Callable[..., Any]], tag: str, table: Table, given: Table
) -> Any:
    """Return what a table describes: the maker its `tag` names, called with the rest.

    Parameters
    ----------
    known : mapping of str to dataclass
        Makers by name.
    tag, table : str, dict
        The key that names the maker, and all keys.
    given : dict
        Arguments that no table may give.
    """
    keys_fit(known, tag, table)
    arguments = {key: value for key, value in table.items() if key != tag}
    try:
        return known[table[tag]](**arguments, **given)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError([Problem(str(error), key=tag)]) from None


def keys_fit(known: Mapping[str, Callable[..., Any]], tag: str, table: Table) -> None:
    """Raise `InputError` unless a table names a maker and has the keys it takes."""
    name = table.get(tag)
    if not isinstance(name, str) or name not in known:
        raise InputError([Problem(none_of(name, list(known)), key=tag)])
    parameters = {
        item.name: item
        for item in _fields(known[name])
        if item.init and item.name not in GIVEN
    }
    problems = [
        Problem(
            f"unknown key for {name}: {none_of(key, list(parameters))}", key=str(key)
        )
        for key in table
        if key != tag and key not in parameters
    ]
    missing = [key for key, item in parameters.items() if _required(item, key, table)]
    problems += [Problem(f"{name} needs {key}", key=tag) for key in missing]
    if problems:
        raise InputError(problems)


def _fields(maker: Any) -> tuple[Field[Any], ...]:
    return fields(maker)


def _required(item: Field[Any], key: str, table: Table) -> bool:
    free = item.default is MISSING and item.default_factory is MISSING
    return free and key not in table


def none_of(name: object, known: list[str]) -> str:
    """Return the text of an error about a name that is none of the known ones."""
    if name is None:
        return f"a name is missing: one of {', '.join(known)}"
    names = ", ".join(known) or "any: it takes none"
    return f"{shown(name)} is not one of {names}{meant(name, known)}"


def policy_problems(name: str, table: Table) -> list[Problem]:
    """Return what is wrong with a policy's parameters, by the types of its fields."""
    kinds = get_type_hints(POLICIES[name])
    items = {item.name: item for item in _fields(POLICIES[name])}
    known = {key.removesuffix("_s"): key for key in items}
    problems = []
    for key, value in table.items():
        if key == "name":
            continue
        if key not in known:
            message = f"unknown key for {name}: {none_of(key, list(known))}"
        else:
            field = known[key]
            message = _misfit(value, items[field], kinds[field])
        if message:
            problems.append(Problem(message, key=str(key)))
    return problems


def _misfit(value: object, item: Field[Any], kind: Any) -> str:
    """Return why a value is none for this field of a policy, or nothing.

    Numbers are from 0; a default below 0 has a meaning of its own.
    """
    words = get_args(kind) if get_origin(kind) is Literal else ()
    if words:
        return "" if value in words else none_of(value, list(words))
    try:
        if item.name.endswith("_s"):
            budget(value)
        elif isinstance(value, str) or not _allowed(parse_number(value), item):
            return f"a number from 0 is expected; got {shown(value)}"
    except ValueError as error:
        return str(error)
    return ""


def _allowed(number: float, item: Field[Any]) -> bool:
    return number >= 0 or number == item.default
