"""What may stand in a study file, and what is wrong with one that says something else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moesim.errors import Problem, meant
from moesim.scenario.quantities import shown
from moesim.scenario.tree import Location, Tree

Shapes = Mapping[str, type]
COMPARISON: Shapes = {
    "name": str,
    "scenario": str,
    "set": dict,
    "replications": int,
    "baseline": str,
    "policies": list,
    "variants": dict,
    "metrics": list,
    "grid": dict,
    "points": list,
}
"""What a comparison may say."""
MEASURE: Shapes = {
    "name": str,
    "scenario": str,
    "set": dict,
    "replications": int,
    "metrics": list,
    "grid": dict,
    "points": list,
    "closed_form": bool,
}
"""What a measure may say."""
CACHES: Shapes = {
    "logs": list,
    "residency": list,
    "caches": list,
    "orders": list,
    "controls": list,
    "seed": int,
}
"""What a study of caches may say."""
PARTS: Mapping[str, Shapes] = {"comparisons": COMPARISON, "measures": MEASURE}
"""The lists that a study may be made of."""
WORDS: Mapping[type, str] = {
    str: "a word",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}


def part_of(tree: Tree) -> str:
    """Return which list a study is made of; one without any is one comparison."""
    return "measures" if "measures" in tree.data else "comparisons"


def misshapen(tree: Tree) -> Iterator[Problem]:
    """Yield what is wrong with the shape of a study file."""
    if not isinstance(tree.data, dict):
        yield tree.problem(
            (), "a study is a mapping: question, scenario, policies, ..."
        )
        return
    question = tree.data.get("question")
    if not isinstance(question, str) or not question.strip():
        message = f"a study asks a question; got {shown(question)}"
        yield tree.problem(("question",), message)
    if "caches" in tree.data:
        yield from _caches(tree)
        return
    name = part_of(tree)
    parts = tree.data.get(name, [{}])
    if not isinstance(parts, list) or not parts:
        message = f"a list of {name} is expected; got {shown(parts)}"
        yield tree.problem((name,), message)
        parts = []
    yield from _misfits(tree, (), tree.data, PARTS[name], ("question", name))
    for number, part in enumerate(parts):
        at: Location = (name, number)
        if isinstance(part, dict):
            yield from _misfits(tree, at, part, PARTS[name], ())
        else:
            yield tree.problem(at, f"a mapping is expected; got {shown(part)}")


def _caches(tree: Tree) -> Iterator[Problem]:
    """Yield what is wrong with a study of caches."""
    yield from _misfits(tree, (), tree.data, {"caches": dict}, ("question",))
    part = tree.data["caches"]
    if isinstance(part, dict):
        yield from _misfits(tree, ("caches",), part, CACHES, ())


def _misfits(
    tree: Tree,
    at: Location,
    part: Mapping[str, Any],
    shapes: Shapes,
    also: Sequence[str],
) -> Iterator[Problem]:
    """Yield the keys that there are not, and values of the wrong kind."""
    for key, value in part.items():
        here = (*at, key)
        if key in also:
            continue
        if key not in shapes:
            message = f"unknown key {shown(key)}{meant(key, [*shapes, *also])}"
            yield tree.problem(here, message, tree.key_mark(here))
        elif not fits(value, shapes[key]):
            message = f"{WORDS[shapes[key]]} is expected; got {shown(value)}"
            yield tree.problem(here, message)
        else:
            yield from _inside(tree, here, value)


def _inside(tree: Tree, at: Location, value: Any) -> Iterator[Problem]:
    """Yield what is wrong inside a value whose own kind is right."""
    kinds = {"grid": list, "variants": dict, "points": dict}
    key = at[-1]
    if key == "metrics" and not all(isinstance(item, str) for item in value):
        yield tree.problem(at, "a list of words is expected")
    elif key == "points" and not value:
        yield tree.problem(at, "a list with something in it is expected")
    elif key in kinds:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        kind = kinds[str(key)]
        yield from (
            tree.problem((*at, name), f"{WORDS[kind]} is expected")
            for name, item in items
            if not fits(item, kind) or not item
        )


def fits(value: object, kind: type) -> bool:
    """Return whether a value is of a kind; true is no number."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
