"""Loads of experts as arrays: what EPLB balances, SGLang and vLLM count.

``.npy``, ``.npz`` or nested lists of JSON, ``[L, E]`` or ``[S, L, E]``, whole numbers or
not. Names in an archive or object: ``counts`` (ours), ``logical_count`` (SGLang's
``--init-expert-location``), ``expert_load``, ``load``, ``weight`` (EPLB).
Source: ``eplb.py`` of deepseek-ai/EPLB.

Axes: ``S`` steps, ``L`` layers, ``E`` experts, ``P`` slots.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs import members
from moesim.routing.logs.counts import Counted, counts_log
from moesim.routing.logs.describe import Description, described
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.nested import depth_of, numbers_of
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.slots import placement_log
from moesim.routing.logs.source import Source, open_binary
from moesim.routing.logs.text import json_records

NAME = "eplb-load"
SUMMARY = (
    "expert loads [layers, experts] or [steps, layers, experts] (.npy, .npz, JSON)"
)
FOLDERS = False
KEYS = ("counts", "logical_count", "expert_load", "load", "weight")
PREFIX = "counts_"
"""Of arrays of several kinds of text in one file, of which one is named."""
PLACEMENT = "phy2log"


def recognise(peek: Peek) -> bool:
    """Tell whether there are loads by name, or an array of fitting shape without one."""
    if peek.container == "npy":
        header = peek.arrays.get("")
        return header is not None and (
            len(header.shape) == 2
            or (len(header.shape) == 3 and header.dtype.kind == "f")
        )
    if peek.container == "npz":
        stems = [name.removesuffix(".npy") for name in peek.names]
        return any(name in KEYS or name.startswith(PREFIX) for name in stems)
    if peek.container != "json":
        return False
    return _is_nested(peek.record) or any(peek.record_has(key) for key in KEYS)


def read(source: Source) -> RoutingLog:
    """Return the counts; the replicas, where the file is a placement of ours."""
    with open_binary(source.files[0]) as file:
        binary = file.read(1) in (b"P", b"\x93")
    if not binary:
        return counts_log(source, NAME, Counted(_stepped(_from_json(source))))
    names = members.names_in(source.files[0], source)
    about = described(source, names)
    if about.unit == "replicas":
        phy2log = members.whole(source, PLACEMENT)
        if phy2log.dtype.kind not in "iu":
            raise InputError(
                f"{PLACEMENT} is {phy2log.dtype}; whole numbers are expected"
            )
        return placement_log(source, NAME, phy2log, about.layers)
    name = _choice(names, source.hints.array)
    layers = _layers(source, names, about)
    counts = _stepped(members.whole(source, name))
    return counts_log(source, NAME, Counted(counts, layers))


def _is_nested(record: Any) -> bool:
    return 2 <= depth_of(record) <= 3


def _from_json(source: Source) -> NDArray[Any]:
    records = list(json_records(source.files[0], source.meter))
    if len(records) > 1:
        raise InputError(f"holds {len(records)} JSON values; one is expected")
    value = records[0].value
    if isinstance(value, dict):
        found = [key for key in KEYS if key in value]
        if len(found) != 1:
            raise InputError(f"expected one of {', '.join(KEYS)}; got {found}")
        value = value[found[0]]
    axes = depth_of(value)
    if axes not in (2, 3):
        raise InputError(
            f"loads are nested {axes} deep; [layers, experts] are expected"
        )
    return numbers_of(value, axes, "the load")


def _stepped(counts: NDArray[Any]) -> NDArray[Any]:
    """Return ``(S, L, E)``: a single step where there is no axis of steps."""
    return counts[None] if counts.ndim == 2 else counts


def _choice(names: Sequence[str], asked: str) -> str:
    if asked and names != [""]:
        return asked
    found = [n for n in names if n in (*KEYS, "") or n.startswith(PREFIX)]
    if len(found) != 1:
        listed = ascii(", ".join(found or names)[:160])[1:-1]
        hint = f"array={found[0]}" if found else "array=..."
        raise InputError(f"holds {listed}; name the one that is meant: {hint}")
    return found[0]


def _layers(
    source: Source, names: Sequence[str], about: Description
) -> tuple[str, ...]:
    """Return names of layers: our description's, or those of an array ``layers``."""
    if about.layers or "layers" not in names:
        return about.layers
    found = members.whole(source, "layers")
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.size > 1 << 12:
        raise InputError(f"layers is {found.dtype} of shape {list(found.shape)}")
    if len(np.unique(found)) < len(found):
        raise InputError("layers names one layer twice")
    return tuple(map(str, found.tolist()))
