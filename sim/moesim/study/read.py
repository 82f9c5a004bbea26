"""A study file: a question, and what is to answer it.

A study file is a mapping. Its ``comparisons`` (or ``measures``, which compare nothing)
are mappings; whatever stands beside that list holds for all of them. Each is run once
for each point of its ``grid``, with each of its ``points`` if it lists some. A study of
``caches`` of experts simulates nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from os.path import normpath
from pathlib import Path
from typing import Any, TypeVar

from moesim.contest import candidate, checked_metrics, contest, refuse_empty
from moesim.errors import InputError, Problem, file_meant
from moesim.measure.names import METRICS, WORDS
from moesim.scenario.change import SHORTCUTS
from moesim.scenario.load import Scenario, load
from moesim.scenario.quantities import shown
from moesim.scenario.read import SIZE_LIMIT, read_tree
from moesim.scenario.tree import Location, Tree
from moesim.spec.files import read_text
from moesim.study.caches import cache_study
from moesim.study.closed import FORESEEN, refusal
from moesim.study.parts import Measure, Point, Study
from moesim.study.shape import PARTS, misshapen, part_of

MOST_POINTS = 1000
Table = dict[str, Any]


Part = TypeVar("Part", Point, Measure)


def read_study(path: Path | str) -> Study:
    """Return the study in a YAML file, every scenario of it checked.

    Raises
    ------
    InputError
        The file cannot be read, or something in it cannot be used.
    """
    place = Path(path)
    tree = read_tree(_text(place), str(path))
    problems = [*tree.problems, *misshapen(tree)]
    if problems:
        raise InputError(problems)
    name, question = place.stem, tree.data["question"]
    if "caches" in tree.data:
        return Study(name, question, caches=cache_study(tree, place.parent))
    read = _Reading(tree, place.parent)
    if part_of(tree) == "measures":
        measures = read.all(read.measures)
        return Study(name, question, measures=measures)
    return Study(name, question, points=read.all(read.points))


def is_study(path: Path) -> bool:
    """Return whether a file asks a question, or lists what only a study has."""
    try:
        data = read_tree(read_text(path, SIZE_LIMIT), str(path)).data
    except InputError:
        return False
    return isinstance(data, dict) and not {"question", "caches", *PARTS}.isdisjoint(
        data
    )


def _text(place: Path) -> str:
    try:
        return read_text(place, SIZE_LIMIT)
    except InputError as error:
        hint = file_meant(place)
        found = [replace(p, message=f"{p.message}{hint}") for p in error.problems]
        raise InputError(found) from None


@dataclass(frozen=True)
class _Reading:
    """Makes the points of one study file, which lies in a folder."""

    tree: Tree
    folder: Path

    def all(self, make: Callable[[Location, Table], Iterator[Part]]) -> list[Part]:
        """Return the points of all parts, each of which `make` yields."""
        kind = part_of(self.tree)
        data = {k: v for k, v in self.tree.data.items() if k not in ("question", kind)}
        whole = kind not in self.tree.data
        made: list[Part] = []
        for number, part in enumerate([{}] if whole else self.tree.data[kind]):
            at: Location = () if whole else (kind, number)
            for one in make(at, data | part):
                if any((one.name, one.at) == (same.name, same.at) for same in made):
                    where = f" at {dict(one.at)}" if one.at else ""
                    message = f"{shown(one.name)}{where} comes twice"
                    said: list[str] = [k for k in ("grid", "points") if k in part]
                    place = (*at, *(said or ["name"])[:1])
                    raise InputError([self.tree.problem(place, message)])
                made.append(one)
        return made

    def points(self, at: Location, part: Mapping[str, Any]) -> Iterator[Point]:
        """Yield the points of a comparison."""
        self._check_scenario(at, part)
        first = _check_names(self.tree, at, part)
        variants = part.get("variants", {})
        for spot, with_ in self._placed(at, part):
            for label, changes in variants.items():
                _placed(self.tree, (*at, "variants", label), with_, changes)
            point = Point(
                name=part.get("name", with_.name),
                at=spot,
                scenario=with_,
                policies=part.get("policies", []),
                variants=variants,
                baseline=part.get("baseline", first),
                metrics=part.get("metrics"),
                replications=part.get("replications"),
            )
            with self._told(at):
                contest(with_, point.policies, variants, point.baseline, point.metrics)
            yield point

    def measures(self, at: Location, part: Mapping[str, Any]) -> Iterator[Measure]:
        """Yield the points of a measure."""
        self._check_scenario(at, part)
        for spot, with_ in self._placed(at, part):
            foreseen = part.get("closed_form", False)
            if foreseen:
                self._check_closed(at, with_)
            with self._told(at):
                metrics = _measured(with_, part.get("metrics"), foreseen=foreseen)
            yield Measure(
                name=part.get("name", with_.name),
                at=spot,
                scenario=with_,
                metrics=metrics,
                replications=part.get("replications"),
                closed_form=foreseen,
            )

    @contextmanager
    def _told(self, at: Location) -> Iterator[None]:
        """Tell of the study's line what is wrong with an argument of a comparison."""
        try:
            yield
        except InputError as error:
            raise InputError([self._moved(at, p) for p in error.problems]) from None

    def _moved(self, at: Location, problem: Problem) -> Problem:
        """Return a problem at what it is about: of the part, or of all of them."""
        key = problem.key.partition(".")[0]
        about = "policies" if key == "policy" else key
        for place in ((*at, about), (about,)):
            if place in self.tree.values:
                return self.tree.problem(place, problem.message)
        message = f"{problem.key}: {problem.message}" if key else problem.message
        return self.tree.problem(at, message)

    def _check_keys(
        self, at: Location, grid: Iterable[str], listed: Sequence[Table]
    ) -> None:
        """Refuse a key of which both a grid and its points are to decide."""
        there = {SHORTCUTS.get(key, key) for point in listed for key in point}
        for key in grid:
            if SHORTCUTS.get(key, key) in there:
                message = f"{shown(key)} is in points too: one of them decides"
                places = ((*at, "grid", key), ("grid", key))
                place = next(place for place in places if place in self.tree.values)
                raise InputError([self.tree.problem(place, message)])

    def _check_scenario(self, at: Location, part: Mapping[str, Any]) -> None:
        if "scenario" not in part:
            raise InputError([self.tree.problem(at, "a part names its scenario")])

    def _check_closed(self, at: Location, scenario: Scenario) -> None:
        """Refuse a scenario of which no closed form is known."""
        reason = refusal(scenario)
        if reason:
            message = f"there is no closed form: {reason}"
            raise InputError([self.tree.problem((*at, "closed_form"), message)])

    def _placed(
        self, at: Location, part: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Scenario]]:
        """Yield every point of a part, and its scenario there."""
        grid: Mapping[str, Sequence[Any]] = part.get("grid", {})
        listed: Sequence[Table] = part.get("points", [{}])
        if len(listed) * prod(len(values) for values in grid.values()) > MOST_POINTS:
            message = f"a grid has at most {MOST_POINTS} points"
            raise InputError([self.tree.problem((*at, "grid"), message)])
        self._check_keys(at, grid, listed)
        scenario = load(normpath(self.folder / part["scenario"]))
        for point in listed:
            for values in product(*grid.values()):
                spot = {**point, **dict(zip(grid, values, strict=True))}
                changes = {**part.get("set", {}), **spot}
                yield spot, _placed(self.tree, at, scenario, changes)


def _measured(
    scenario: Scenario, asked: Sequence[str] | None, *, foreseen: bool
) -> Sequence[str] | None:
    """Return the metrics of a measure; refuse what there is not, or not here."""
    if asked is None:
        return None
    also = FORESEEN if foreseen else ()
    known = dict.fromkeys((*METRICS, *WORDS, *also))
    keys = checked_metrics(asked, list(known))
    refuse_empty(candidate(scenario, None), [key for key in keys if key not in also])
    return keys


def _check_names(tree: Tree, at: Location, part: Mapping[str, Any]) -> str:
    """Refuse a policy that is no name, too few to compare, and an unknown baseline.

    Returns
    -------
    str
        The first name.
    """
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
    return names[0]


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
