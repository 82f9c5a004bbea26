"""From a validator's complaints to problems that name the place and the nearest name."""

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from moesim.errors import InputError, Problem, closest, meant
from moesim.scenario.change import known_keys
from moesim.scenario.quantities import shown
from moesim.scenario.schema import Choice, Sections
from moesim.scenario.tree import Location, Tree

FEW = 14
"""A list of known names is shown when it is this short."""


def problems_of(error: ValidationError, tree: Tree) -> list[Problem]:
    """Return every complaint of the schema as a problem in the file."""
    return [_problem(item, tree) for item in error.errors(include_url=False)]


def located(error: InputError, at: Location, tree: Tree) -> list[Problem]:
    """Return the problems of a section's maker, each at its line of the file."""
    return [_inside(problem, at, tree) for problem in error.problems]


def places_of(error: ValidationError) -> list[Location]:
    """Return where the schema's complaints are."""
    return [_place(item) for item in error.errors(include_url=False)]


def doubtful(error: ValidationError) -> list[Location]:
    """Return what the complaints leave in doubt: of a misspelt key, what was meant."""
    places = []
    for item in error.errors(include_url=False):
        at = _place(item)
        places.append(at)
        if item["type"] == "extra_forbidden":
            near = closest(at[-1], _fields_at(at[:-1]))
            places += [(*at[:-1], name) for name in near]
    return places


def about_key(problem: Problem) -> bool:
    """Return whether a problem is with a key itself, not with its value."""
    return "unknown key" in problem.message


def _inside(problem: Problem, at: Location, tree: Tree) -> Problem:
    """Place a problem whose key is relative to the section at `at`."""
    parts = problem.key.split(".") if problem.key and not problem.where else []
    steps = tuple(int(part) if part.isdigit() else part for part in parts)
    message = problem.message
    if problem.where:
        place = ":".join(str(p) for p in (problem.where, problem.line) if p)
        message = f"{place}: {message}"
    mark = tree.key_mark(at + steps) if about_key(problem) else None
    return tree.problem(at + steps, message, mark)


def _place(item: Any) -> Location:
    return tuple(part for part in item["loc"] if part != "[key]")


def _problem(item: Any, tree: Tree) -> Problem:
    at = _place(item)
    kind, found = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return tree.problem(at, _unknown_key(at), tree.key_mark(at))
    if kind == "missing":
        return tree.problem(at, "is missing", tree.key_mark(at[:-1]))
    mark = tree.key_mark(at) if "[key]" in item["loc"] else None
    return tree.problem(at, _message(kind, item, found), mark)


def _unknown_key(at: Location) -> str:
    known = _fields_at(at[:-1])
    hint = meant(at[-1], known)
    if not hint:
        same = [key for key in known_keys() if key.rpartition(".")[2] == at[-1]]
        hint = f"; did you mean {same[0]!r}?" if same else ""
    names = f"; known keys: {', '.join(known)}" if len(known) <= FEW else ""
    return f"unknown key {shown(at[-1])}{hint}{names}"


def _message(kind: str, item: Any, found: object) -> str:
    if kind == "value_error":
        text = item["ctx"]["error"].args[0]
        if isinstance(text, Choice):
            return f"{text}{meant(found, text.names)}"
        return str(text)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"a mapping of keys is expected; got {shown(found)}"
    text = str(item["msg"])
    return f"{text[0].lower()}{text[1:]}; got {shown(found)}"


def _fields_at(at: Location) -> list[str]:
    """Return the keys that the section at `at` may have."""
    model: type[BaseModel] = Sections
    for part in at:
        annotation = model.model_fields[str(part)].annotation
        kinds = [annotation, *get_args(annotation)]
        found = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not found:
            return []
        model = found[0]
    return list(model.model_fields)
