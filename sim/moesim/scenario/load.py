"""Scenarios: read from a file, changed, written out again; every mistake at once."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from ruamel.yaml import YAML

from moesim.errors import InputError, Problem, file_meant
from moesim.policy.catalogue import POLICIES
from moesim.policy.place.catalogue import PILOT_TOKENS
from moesim.policy.rebalance import REBALANCES
from moesim.routing.catalogue import SOURCES
from moesim.scenario.change import changed
from moesim.scenario.checks import problems_in
from moesim.scenario.memory import filled
from moesim.scenario.named import GIVEN
from moesim.scenario.quantities import budget, seconds_text
from moesim.scenario.read import SIZE_LIMIT, read_tree
from moesim.scenario.report import doubtful, places_of, problems_of
from moesim.scenario.schema import Sections, Table
from moesim.scenario.shorthand import written_out
from moesim.scenario.system import measures_a_pilot
from moesim.scenario.tree import Location, Tree
from moesim.spec.files import path_of, read_text, type_shown
from moesim.workload.arrivals import ARRIVALS
from moesim.workload.lengths import LENGTHS

FILLERS: Mapping[Location, Any] = {
    ("model",): "mixtral-8x7b",
    ("routing",): {"name": "uniform"},
    ("workload",): {"input_len": {"type": "constant", "value": 1}},
    ("workload", "input_len"): {"type": "constant", "value": 1},
    ("workload", "phases", "share"): 0.5,
}
"""Stand in for required values that are missing or wrong, so the rest can be checked."""
TRACES: Mapping[str, Table] = {
    "arrivals": {"format": "auto", "speedup": 1.0},
    "input_len": {"format": "auto"},
    "output_len": {"format": "auto"},
}
"""Defaults of what is read from a trace."""


class Scenario(Sections):
    """One experiment: everything that is simulated, checked and complete."""

    def with_(
        self, changes: Mapping[str, Any] | None = None, /, **more: Any
    ) -> "Scenario":
        """Return the scenario with some values changed, checked as a file is.

        Parameters
        ----------
        changes : mapping, optional
            Dotted keys and their values, ``{"workload.num_prompts": 10}``. A mapping
            changes the keys it has; None brings back the default. Naming another
            routing, policy or law drops the old one's parameters, naming the one that
            is there keeps them.
        more
            Top-level keys, or shortcuts: ``request_rate``, ``num_prompts``,
            ``max_concurrency``, ``input_len``, ``output_len``.

        Raises
        ------
        InputError
            A key or a value cannot be used.
        """
        if changes is not None and not isinstance(changes, Mapping):
            message = f"dotted keys and values are expected; got {type_shown(changes)}"
            raise InputError([Problem(message)])
        data = changed(self.resolved(), {**(changes or {}), **more})
        return parse(Tree(written_out(data, Path.cwd(), self.name)))

    def resolved(self) -> Table:
        """Return the scenario as plain data with every default filled in."""
        return self.model_dump(exclude_none=True)

    def text(self) -> str:
        """Return the scenario as YAML; loading it gives an equal scenario."""
        return as_yaml(self.resolved())

    def digest(self) -> str:
        """Return the SHA-256 of `text`, in hexadecimal."""
        return sha256(self.text().encode()).hexdigest()

    @classmethod
    def checked(cls, data: Table) -> Self:
        """Return the scenario of complete data."""
        return cls.model_validate(data)


def load(path: Path | str) -> Scenario:
    """Return the scenario in a YAML file.

    Raises
    ------
    InputError
        The file cannot be read, or is wrong: every mistake, with its line.
    """
    place = path_of(path, "the path of a scenario file")
    try:
        text = read_text(place, SIZE_LIMIT)
    except InputError as error:
        hint = file_meant(place)
        found = [replace(p, message=f"{p.message}{hint}") for p in error.problems]
        raise InputError(found) from None
    return load_text(text, str(path), place.parent.absolute(), place.stem)


def load_text(
    text: str, where: str = "", base: Path | None = None, name: str = "scenario"
) -> Scenario:
    """Return the scenario in YAML text.

    Parameters
    ----------
    text, where : str
        The text, and what messages call it.
    base : Path
        Folder that relative paths start from; default the working directory.
    name : str
        The scenario's name if it gives none.
    """
    if not isinstance(text, str):
        message = f"a scenario as YAML text is expected; got {type_shown(text)}"
        raise InputError([Problem(message)])
    tree = read_tree(text, where)
    data = written_out(tree.data, base or Path.cwd(), name)
    return parse(
        Tree(data, tree.where, tree.lines, tree.keys, tree.values, tree.problems)
    )


def parse(tree: Tree) -> Scenario:
    """Return the scenario of raw data with its short forms written out.

    Raises
    ------
    InputError
        Every mistake at once.
    """
    if not isinstance(tree.data, dict):
        message = "a scenario is a mapping of keys such as model, routing, workload"
        raise InputError([*tree.problems, tree.problem((), message)])
    sections, found, damaged = _sections(tree)
    problems = [*tree.problems, *found]
    if sections:
        problems += problems_in(sections, tree, damaged)
    if problems or sections is None:
        raise InputError(_in_order(problems))
    return Scenario.checked(_filled(sections))


def _sections(tree: Tree) -> tuple[Sections | None, list[Problem], list[Location]]:
    """Return the sections, what is wrong with them, and where.

    Wrong values are left out or replaced, so that the others can still be checked.
    """
    try:
        return Sections.model_validate(tree.data), [], []
    except ValidationError as error:
        problems, wrong = problems_of(error, tree), places_of(error)
        doubt = doubtful(error)
    try:
        return Sections.model_validate(_repaired(tree.data, wrong)), problems, doubt
    except ValidationError:
        return None, problems, doubt


def _repaired(data: Table, damaged: list[Location]) -> Table:
    result: Table = deepcopy(data)
    for at in damaged:
        table: Any = result
        for step in at[:-1]:
            table = table.get(step) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.pop(at[-1], None)
            if at in FILLERS:
                table[at[-1]] = FILLERS[at]
    return result


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _filled(sections: Sections) -> Table:
    """Return the data with the defaults of its named parts filled in."""
    data = sections.model_dump(exclude_none=True)
    workload = data["workload"]
    data["routing"] = _with_defaults(data["routing"], "name", SOURCES)
    data["policy"] = _with_defaults(data["policy"], "name", POLICIES)
    if measures_a_pilot(sections):
        data["placement"] = {"tokens": PILOT_TOKENS} | data["placement"]
    if sections.memory is not None:
        data["memory"] = filled(sections.memory)
    if sections.placement.rebalance is not None:
        loop = _with_defaults(data["placement"]["rebalance"], "name", REBALANCES)
        data["placement"]["rebalance"] = loop
    for key, known in (
        ("arrivals", ARRIVALS),
        ("input_len", LENGTHS),
        ("output_len", LENGTHS),
    ):
        table = workload[key]
        if table["type"] == "trace":
            workload[key] = TRACES[key] | table
        else:
            workload[key] = _with_defaults(table, "type", known)
    return data


def _with_defaults(table: Table, tag: str, known: Mapping[str, Any]) -> Table:
    filled = {tag: table[tag]}
    for item in fields(known[table[tag]]):
        key = item.name.removesuffix("_s")
        if not item.init or item.name in GIVEN:
            continue
        value: Any = None if item.default is MISSING else item.default
        if item.name == key:
            value = table.get(key, value)
        else:
            value = seconds_text(budget(table[key]) if key in table else value)
        if value is not None:
            filled[key] = list(value) if isinstance(value, tuple) else value
    return filled


def as_yaml(data: Table) -> str:
    """Return plain data as YAML, keys in their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()
