"""How many experts stay where, as a scenario says it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from moesim.scenario.quantities import shown
from moesim.units import parse_count, parse_number


def _copies(value: object) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, str) and value.rstrip().endswith("%"):
        share = parse_number(value.rstrip()[:-1])
        if not 0 <= share <= 100:
            raise ValueError(f"a share from 0% to 100% is expected; got {shown(value)}")
        return value
    return _whole_or(value, "auto, a whole number or a share such as '40%'")


def _host_copies(value: object) -> int | str:
    found = "all" if value == "all" else _whole_or(value, "all or a whole number")
    if found == 0:
        raise ValueError(f"all or a whole number >= 1 is expected; got {shown(value)}")
    return found


def _pinned(value: object) -> object:
    wanted = "a whole number or a list of {layer: ..., expert: ...}"
    if not isinstance(value, list | tuple):
        return _whole_or(value, wanted)
    for item in value:
        whole = isinstance(item, dict) and set(item) == {"layer", "expert"}
        if not whole or not all(type(n) is int and n >= 0 for n in item.values()):
            raise ValueError(f"{wanted} is expected; got {item!r:.60}")
    return value


def _whole_or(value: object, wanted: str) -> int:
    if value is None or isinstance(value, dict | list | bool):
        raise ValueError(f"{wanted} is expected; got {shown(value)}")
    try:
        return parse_count(value)
    except ValueError:
        raise ValueError(f"{wanted} is expected; got {shown(value)}") from None


Copies = Annotated[int | str, BeforeValidator(_copies)]
HostCopies = Annotated[int | Literal["all"], BeforeValidator(_host_copies)]
Pinned = Annotated[int | list[dict[str, int]], BeforeValidator(_pinned)]
THRESHOLD = 0.85
"""Share of a GPU that experts and buffers fill at most if nothing is said."""
PREFETCHES: dict[str, dict[str, Any]] = {
    "none": {},
    "next_layer": {"hit_rate": 0.8, "lookahead": 1},
    "class": {"lookahead": 1},
    "path": {"lookahead": 1},
}
"""What each way to prefetch takes, and its default."""
