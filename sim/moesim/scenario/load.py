"""Scenarios: read from a file, changed, written out again; every mistake at once."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from hashlib import sha256
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from ruamel.yaml import YAML

from moesim.errors import InputError, Problem
from moesim.policy.order import ORDERS
from moesim.routing.catalogue import SOURCES
from moesim.scenario.pieces import CHECKS, CROSS_CHECKS, GIVEN
from moesim.scenario.quantities import seconds_text
from moesim.scenario.read import SIZE_LIMIT, plain, read_tree
from moesim.scenario.report import located, problems_of
from moesim.scenario.schema import Sections, Table
from moesim.scenario.shorthand import written_out
from moesim.scenario.tree import Tree
from moesim.spec.files import read_text
from moesim.units import parse_duration
from moesim.workload.arrivals import ARRIVALS
from moesim.workload.lengths import LENGTHS

SHORTCUTS = {
    "request_rate": "workload.arrivals.request_rate",
    "num_prompts": "workload.num_prompts",
    "max_concurrency": "workload.max_concurrency",
    "input_len": "workload.input_len",
    "output_len": "workload.output_len",
}
"""Names that users of serving benchmarks type, and where they stand in a scenario."""
TAGS = ("name", "type")


class Scenario(Sections):
    """One experiment: everything that is simulated, checked and complete."""

    def with_(
        self, changes: Mapping[str, Any] | None = None, /, **more: Any
    ) -> "Scenario":
        """Return the scenario with some values changed, checked as a file is.

        Parameters
        ----------
        changes : mapping, optional
            Dotted keys and their values, ``{"workload.num_prompts": 10}``.
        more
            Top-level keys, or shortcuts: ``request_rate``, ``num_prompts``,
            ``max_concurrency``, ``input_len``, ``output_len``.

        Raises
        ------
        InputError
            A key or a value cannot be used.
        """
        data = self.resolved()
        for key, value in {**(changes or {}), **more}.items():
            _change(data, SHORTCUTS.get(key, key), value)
        return parse(Tree(written_out(data, Path.cwd(), self.name)))

    def resolved(self) -> Table:
        """Return the scenario as plain data with every default filled in."""
        return self.model_dump(exclude_none=True)

    def text(self) -> str:
        """Return the scenario as YAML; loading it gives an equal scenario."""
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        out = StringIO()
        yaml.dump(self.resolved(), out)
        return out.getvalue()

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
    place = Path(path)
    text = read_text(place, SIZE_LIMIT)
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
    tree = read_tree(text, where)
    data = written_out(tree.data, base or Path.cwd(), name)
    return parse(
        Tree(data, tree.where, tree.lines, tree.keys, tree.values, tree.problems)
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and value of a ``--set key=value`` argument.

    Raises
    ------
    InputError
        There is no ``=``, or no key before it.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        message = f"expected key=value, such as workload.num_prompts=100; got {text!r}"
        raise InputError([Problem(message, where="--set")])
    if value[:1] in "[{" and value:
        return key.strip(), read_tree(value, "--set").data
    return key.strip(), plain(value.strip())


def parse(tree: Tree) -> Scenario:
    """Return the scenario of raw data with its short forms written out.

    Raises
    ------
    InputError
        Every mistake at once.
    """
    problems = list(tree.problems)
    if not isinstance(tree.data, dict):
        message = "a scenario is a mapping of keys such as model, routing, workload"
        raise InputError([*problems, tree.problem((), message)])
    try:
        sections = Sections.model_validate(tree.data)
    except ValidationError as error:
        problems += problems_of(error, tree)
        raise InputError(_in_order(problems)) from None
    for checks in (CHECKS, CROSS_CHECKS):
        problems += _check(sections, checks, tree)
        if problems:
            raise InputError(_in_order(problems))
    return Scenario.checked(_filled(sections))


def _check(sections: Sections, checks: Any, tree: Tree) -> list[Problem]:
    problems = []
    for at, make in checks:
        try:
            make(sections)
        except InputError as error:
            problems += located(error, at, tree)
        except ValueError as error:
            problems.append(tree.problem(at, str(error)))
    return problems


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _filled(sections: Sections) -> Table:
    """Return the data with the defaults of its named parts filled in."""
    data = sections.model_dump(exclude_none=True)
    workload = data["workload"]
    data["routing"] = _with_defaults(data["routing"], "name", SOURCES)
    data["policy"] = _with_defaults(data["policy"], "name", ORDERS)
    workload["arrivals"] = _with_defaults(workload["arrivals"], "type", ARRIVALS)
    for key in ("input_len", "output_len"):
        workload[key] = _with_defaults(workload[key], "type", LENGTHS)
    return data


def _with_defaults(table: Table, tag: str, known: Mapping[str, Any]) -> Table:
    if table[tag] == "trace":
        return table
    filled = {tag: table[tag]}
    for item in fields(known[table[tag]]):
        key = item.name.removesuffix("_s")
        if not item.init or item.name in GIVEN:
            continue
        value: Any = None if item.default is MISSING else item.default
        if item.name == key:
            value = table.get(key, value)
        else:
            value = seconds_text(_seconds(table[key]) if key in table else value)
        if value is not None:
            filled[key] = list(value) if isinstance(value, tuple) else value
    return filled


def _seconds(value: Any) -> float:
    return inf if value in ("inf", inf) else parse_duration(value)


def _change(data: Table, dotted: str, value: Any) -> None:
    """Put a value at a dotted key; a mapping without a tag changes only its keys."""
    *path, last = dotted.split(".")
    table = data
    for step in path:
        inner = table.setdefault(step, {})
        if not isinstance(inner, dict):
            message = f"{step} has no keys of its own: it is {inner!r}"
            raise InputError([Problem(message, key=dotted)])
        table = inner
    old = table.get(last)
    partial = isinstance(value, Mapping) and not any(tag in value for tag in TAGS)
    if partial and isinstance(old, dict):
        for key, part in value.items():
            _change(old, str(key), part)
    else:
        table[last] = dict(value) if isinstance(value, Mapping) else value
