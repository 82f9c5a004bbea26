"""A study file: a question, and the comparisons that are to answer it.

A study file is a mapping. Its ``comparisons`` are mappings; whatever stands beside that
list holds for all of them. Each is run once for each point of its ``grid``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from math import prod
from os.path import normpath
from pathlib import Path
from typing import Any

from moesim.errors import InputError, Problem
from moesim.scenario.load import Scenario, load
from moesim.scenario.quantities import shown, sibling_hint
from moesim.scenario.read import SIZE_LIMIT, read_tree
from moesim.scenario.tree import Location, Tree
from moesim.spec.files import read_text

SHAPES: Mapping[str, type] = {
    "name": str,
    "scenario": str,
    "set": dict,
    "replications": int,
    "baseline": str,
    "policies": list,
    "variants": dict,
    "metrics": list,
    "grid": dict,
}
"""What a comparison may say."""
WORDS: Mapping[type, str] = {
    str: "a word",
    int: "a whole number",
    list: "a list",
    dict: "a mapping",
}
MOST_POINTS = 1000


@dataclass(frozen=True)
class Point:
    """One comparison at one point of its grid.

    Parameters
    ----------
    name : str
        The comparison's.
    at : mapping
        The point: dotted keys and their values.
    scenario : Scenario
        What is simulated there.
    policies, variants, baseline, metrics, replications
        As `moesim.compare` takes them.
    """

    name: str
    at: Mapping[str, Any]
    scenario: Scenario
    policies: Sequence[Any]
    variants: Mapping[str, Mapping[str, Any]]
    baseline: str | None
    metrics: Sequence[str] | None
    replications: int | None


@dataclass(frozen=True)
class Study:
    """A question and all that is simulated to answer it."""

    name: str
    question: str
    points: Sequence[Point]


def read_study(path: Path | str) -> Study:
    """Return the study in a YAML file, every scenario of it checked.

    Raises
    ------
    InputError
        The file cannot be read, or something in it cannot be used.
    """
    place = Path(path)
    try:
        text = read_text(place, SIZE_LIMIT)
    except InputError as error:
        hint = sibling_hint(place)
        found = [replace(p, message=f"{p.message}{hint}") for p in error.problems]
        raise InputError(found) from None
    tree = read_tree(text, str(path))
    problems = [*tree.problems, *_misshapen(tree)]
    if problems:
        raise InputError(problems)
    data = {k: v for k, v in tree.data.items() if k not in ("question", "comparisons")}
    whole = "comparisons" not in tree.data
    parts = [{}] if whole else tree.data["comparisons"]
    points: list[Point] = []
    for number, part in enumerate(parts):
        at: Location = () if whole else ("comparisons", number)
        points += _points(tree, at, data | part, place.parent)
    return Study(place.stem, tree.data["question"], points)


def _misshapen(tree: Tree) -> Iterator[Problem]:
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
    parts = tree.data.get("comparisons", [{}])
    if not isinstance(parts, list) or not parts:
        message = f"a list of comparisons is expected; got {shown(parts)}"
        yield tree.problem(("comparisons",), message)
        parts = []
    yield from _misfits(tree, (), tree.data, ("question", "comparisons"))
    for number, part in enumerate(parts):
        at: Location = ("comparisons", number)
        if isinstance(part, dict):
            yield from _misfits(tree, at, part, ())
        else:
            yield tree.problem(at, f"a mapping is expected; got {shown(part)}")


def _misfits(
    tree: Tree, at: Location, part: Mapping[str, Any], also: Sequence[str]
) -> Iterator[Problem]:
    """Yield the keys that no comparison has, and values of the wrong kind."""
    for key, value in part.items():
        here = (*at, key)
        if key in also:
            continue
        if key not in SHAPES:
            near = get_close_matches(str(key), [*SHAPES, *also], 1, 0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            message = f"unknown key {shown(key)}{hint}"
            yield tree.problem(here, message, tree.key_mark(here))
        elif not _fits(value, SHAPES[key]):
            message = f"{WORDS[SHAPES[key]]} is expected; got {shown(value)}"
            yield tree.problem(here, message)
        elif key == "metrics" and not all(isinstance(item, str) for item in value):
            yield tree.problem(here, "a list of words is expected")
        elif key in ("grid", "variants"):
            kind = list if key == "grid" else dict
            yield from (
                tree.problem((*here, name), f"{WORDS[kind]} is expected")
                for name, item in value.items()
                if not _fits(item, kind) or not item
            )


def _fits(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _points(
    tree: Tree, at: Location, part: Mapping[str, Any], folder: Path
) -> Iterator[Point]:
    """Yield the points of a comparison."""
    if "scenario" not in part:
        raise InputError([tree.problem(at, "a comparison names its scenario")])
    _check_names(tree, at, part)
    grid: Mapping[str, Sequence[Any]] = part.get("grid", {})
    if prod(len(values) for values in grid.values()) > MOST_POINTS:
        message = f"a grid has at most {MOST_POINTS} points"
        raise InputError([tree.problem((*at, "grid"), message)])
    scenario = load(normpath(folder / part["scenario"]))
    for values in product(*grid.values()):
        spot = dict(zip(grid, values, strict=True))
        with_ = _placed(tree, at, scenario, {**part.get("set", {}), **spot})
        variants = part.get("variants", {})
        for label, changes in variants.items():
            _placed(tree, (*at, "variants", label), with_, changes)
        yield Point(
            name=part.get("name", scenario.name),
            at=spot,
            scenario=with_,
            policies=part.get("policies", []),
            variants=variants,
            baseline=part.get("baseline"),
            metrics=part.get("metrics"),
            replications=part.get("replications"),
        )


def _check_names(tree: Tree, at: Location, part: Mapping[str, Any]) -> None:
    """Refuse a policy that is no name, too few to compare, and an unknown baseline."""
    names: list[str] = []
    for policy in part.get("policies", ()):
        name = policy.get("name") if isinstance(policy, dict) else policy
        if not isinstance(name, str) or ":" in name:
            message = f"a policy known by name is expected; got {shown(name)}"
            raise InputError([tree.problem((*at, "policies"), message)])
        names.append(name)
    names += part.get("variants", {})
    if len(names) < 2:
        message = "two policies or variants, or more, are needed to compare"
        raise InputError([tree.problem(at, message)])
    if part.get("baseline", names[0]) not in names:
        message = f"{shown(part['baseline'])} is not one of {', '.join(names)}"
        raise InputError([tree.problem((*at, "baseline"), message)])


def _placed(
    tree: Tree, at: Location, scenario: Scenario, changes: Mapping[str, Any]
) -> Scenario:
    """Return the scenario with changes; what is wrong is told of the study's line."""
    try:
        return scenario.with_(changes) if changes else scenario
    except InputError as error:
        raise InputError(
            [
                tree.problem(at, f"{p.key}: {p.message}" if p.key else p.message)
                for p in error.problems
            ]
        ) from None
