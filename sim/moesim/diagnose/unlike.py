"""In what two runs differ besides what is compared: model, cluster, and traffic."""

from collections.abc import Iterator, Mapping
from typing import Any

from moesim.measure.result import Result

ALIKE = ("model", "cluster", "precision", "routing", "workload", "seed", "warmup")
"""Sections of a scenario that two runs should share to tell what a change did."""
SHOWN = 6


def unlike(before: Result, after: Result) -> list[str]:
    """Return the keys in which two runs differ and should not, with both values.

    >>> list(_changes({"a": {"b": 1}}, {"a": {"b": 2}}, ""))
    ['a.b (1, then 2)']
    """
    first, second = (_sections(result) for result in (before, after))
    found = [
        change
        for name in ALIKE
        for change in _changes(first.get(name), second.get(name), name)
    ]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return found[:SHOWN] + more


def _sections(result: Result) -> Mapping[str, Any]:
    from ruamel.yaml import YAML

    data = YAML(typ="safe", pure=True).load(result.scenario_text)
    return data if isinstance(data, dict) else {}


def _changes(first: Any, second: Any, key: str) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in dict.fromkeys([*first, *second]):
            where = f"{key}.{name}" if key else str(name)
            yield from _changes(first.get(name), second.get(name), where)
    elif first != second:
        yield f"{key} ({_said(first)}, then {_said(second)})"


def _said(value: Any) -> str:
    return "nothing" if value is None else f"{value!s:.40}"
