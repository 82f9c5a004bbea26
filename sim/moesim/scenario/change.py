"""Changes to a scenario's data by dotted keys: ``--set`` and `Scenario.with_`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from moesim.errors import InputError, Problem, meant
from moesim.policy.bundle import policy_parameters
from moesim.policy.catalogue import POLICIES
from moesim.policy.place.catalogue import NAMES
from moesim.policy.rebalance import REBALANCES
from moesim.routing.catalogue import SOURCES
from moesim.scenario.memory import drop_idle
from moesim.scenario.named import GIVEN
from moesim.scenario.quantities import shown
from moesim.scenario.read import read_tree
from moesim.scenario.schema import Sections, Table
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
TAGS = {
    "routing": "name",
    "policy": "name",
    "placement.rebalance": "name",
    "residency.prefetch": "name",
    "workload.arrivals": "type",
    "workload.input_len": "type",
    "workload.output_len": "type",
}
"""Parts whose keys depend on one of them: another name begins the part anew."""
OPEN = ("cluster.speed", "workload.classes")
"""Parts whose keys a user makes up."""


def changed(data: Table, changes: Mapping[str, Any]) -> Table:
    """Return a scenario's data with changes, deep enough that `data` stays as it was.

    Parameters
    ----------
    data : dict
        Complete data, short forms written out.
    changes : mapping
        Dotted keys or shortcuts, and values, also NumPy's. A mapping changes the keys
        it has; None brings back the default. Naming another routing, policy or law drops
        the old one's parameters; naming the one that is there keeps them.

    Raises
    ------
    InputError
        All keys that a scenario does not have, each with the nearest.
    """
    known = known_keys()
    leaves = list(_leaves(_copy(changes)))
    problems = [_unknown(key, known) for key, _ in leaves if not _is_known(key, known)]
    if problems:
        raise InputError(problems)
    result: Table = _copy(data)
    # What names a part comes first: it may drop what the others then set.
    for key, value in sorted(leaves, key=lambda leaf: not _is_tag(leaf[0])):
        _put(result, key, value)
    drop_idle(result.get("memory"), [key for key, _ in leaves])
    return result


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and value of a ``--set key=value`` argument.

    Raises
    ------
    InputError
        There is no ``=``, no key before it, or the value is not plain YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        example = "key=value is expected, such as workload.num_prompts=100"
        raise InputError([Problem(f"{example}; got {shown(text)}", "--set")])
    tree = read_tree(value.strip(), f"--set {shown(key.strip())[1:-1]}")
    if tree.problems:
        raise InputError(tree.problems)
    return key.strip(), tree.data


def parse_variant(text: str) -> tuple[str, Table]:
    """Return the name and changes of a ``--variant "name: key=value; key=value"``.

    Raises
    ------
    InputError
        There is no name before a colon, or a change is none for `parse_setting`.
    """
    name, colon, changes = text.partition(":")
    settings = [part for part in changes.split(";") if part.strip()]
    if not colon or not name.strip() or not settings:
        example = (
            "name: key=value is expected, such as 'patient: policy.wait_budget=1s'"
        )
        raise InputError([Problem(f"{example}; got {shown(text)}", "--variant")])
    return name.strip(), dict(parse_setting(setting) for setting in settings)


def parse_variants(texts: Sequence[str]) -> dict[str, Table]:
    """Return the changes of every ``--variant``, by name.

    Raises
    ------
    InputError
        A name comes twice, or anything `parse_variant` refuses.
    """
    variants: dict[str, Table] = {}
    for name, changes in map(parse_variant, texts):
        if name in variants:
            raise InputError([Problem(f"{shown(name)} is given twice", "--variant")])
        variants[name] = changes
    return variants


def known_keys() -> list[str]:
    """Return every dotted key that a scenario may have, in the order of the schema."""
    found = dict.fromkeys(_section_keys(Sections, ""))
    for part, tag in TAGS.items():
        found |= dict.fromkeys((f"{part}.{tag}", *_part_keys(part)))
    return list(found)


def _section_keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, item in section.model_fields.items():
        yield f"{prefix}{name}"
        kinds = [item.annotation, *get_args(item.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _section_keys(kind, f"{prefix}{name}.")


def _part_keys(part: str) -> Iterator[str]:
    makers: dict[str, Mapping[str, Callable[..., Any]]] = {
        "routing": SOURCES,
        "workload.arrivals": ARRIVALS,
        "workload.input_len": LENGTHS,
        "workload.output_len": LENGTHS,
    }
    if part == "policy":
        names = [key for name in POLICIES for key in policy_parameters(name)]
    elif part == "residency.prefetch":
        names = ["hit_rate", "lookahead"]
    elif part == "placement.rebalance":
        loops = REBALANCES.values()
        names = [f.name.removesuffix("_s") for loop in loops for f in fields(loop)]
    else:
        every: list[Any] = list(makers[part].values())
        names = [f.name for maker in every for f in fields(maker) if f.init]
    if part.startswith("workload"):
        names = [*(name for name in names if name != "trace"), "path", "format"]
    yield from (f"{part}.{name}" for name in names if name not in GIVEN)


def _leaves(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a mapping that names its kind stays whole."""
    for name, value in changes.items():
        key = SHORTCUTS.get(f"{prefix}{name}", f"{prefix}{name}")
        if isinstance(value, str) and key in TAGS and not value[:1].isdecimal():
            yield f"{key}.{TAGS[key]}", value
        elif not _is_inside(key, value):
            yield key, value
        else:
            yield from _leaves(value, f"{key}.")


def _is_inside(key: str, value: Any) -> bool:
    """Return whether a change is made of changes to keys further inside."""
    if not isinstance(value, Mapping) or not value:
        return False
    return key not in OPEN and TAGS.get(key) not in value


def _is_known(key: str, known: list[str]) -> bool:
    return key in known or key.rpartition(".")[0] in OPEN


def _is_tag(key: str) -> bool:
    part, _, last = key.rpartition(".")
    return key in TAGS or TAGS.get(part) == last


def _unknown(key: str, known: list[str]) -> Problem:
    last = key.rpartition(".")[2]
    tails = [name for name in known if name.rpartition(".")[2] == last]
    hint = meant(key, tails[:1] or known, 0.0 if tails else 0.6)
    return Problem(f"unknown key {shown(key)}{hint}", key=shown(key)[1:-1])


def _put(data: Table, key: str, value: Any) -> None:
    part, _, last = key.rpartition(".")
    table = data
    for step in part.split(".") if part else ():
        table = table.setdefault(step, {})
    name: Any = int(last) if part == "cluster.speed" and last.isdecimal() else last
    if value is None:
        table.pop(name, None)
        return
    if value == {} and key not in OPEN and isinstance(table.get(name), dict):
        return
    if TAGS.get(part) == last and table.get(last) != value:
        table.clear()
    table[name] = value
    if part == "placement":
        _drop_idle(table, last)
    if key == "residency.hbm_experts" and value != "auto":
        table.pop("threshold", None)


def _drop_idle(placement: Table, changed_key: str) -> None:
    """Drop what a placement no longer goes by after one of its keys has changed."""
    if changed_key == "name" and str(placement["name"]) in NAMES:
        taken = (
            "name",
            "redundant_experts",
            "rebalance",
            *NAMES[str(placement["name"])],
        )
        for key in [key for key in placement if key not in taken]:
            del placement[key]
    if changed_key == "path":
        placement.pop("tokens", None)


def _copy(value: Any) -> Any:
    """Return a copy of plain data; NumPy's scalars and arrays become plain too."""
    if isinstance(value, np.generic | np.ndarray):
        return _copy(value.tolist())
    if isinstance(value, Mapping):
        return {_copy(key): _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value
