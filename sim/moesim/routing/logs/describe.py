"""What our own files say of themselves: layers, experts, notes, as JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from moesim.errors import InputError
from moesim.routing.logs import members
from moesim.routing.logs.limits import MOST_EXPERTS, Meter
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.source import Source
from moesim.routing.logs.text import parse_json

DESCRIPTION = "moesim"
"""Array of an ``.npz``, and key in the metadata of a parquet file."""
VERSION = 1
LAYER = re.compile(r"[A-Za-z0-9._-]{1,64}")
LONGEST_NOTE = 400


@dataclass(frozen=True)
class Description:
    """What is known of a log besides its numbers; empty: nothing was said."""

    layers: tuple[str, ...] = ()
    experts: int = 0
    unit: str = "tokens"
    sequences: bool = True
    notes: tuple[str, ...] = ()


def describe(log: RoutingLog) -> bytes:
    """Return the JSON that `parse` understands."""
    origin = f"converted from {log.origin.format}"
    notes = list(dict.fromkeys([*log.notes, origin]))
    content = {
        "version": VERSION,
        "layers": list(log.layers),
        "experts": log.experts,
        "unit": log.unit,
        "sequences": log.lengths is not None,
        "notes": [note[:LONGEST_NOTE] for note in notes],
        "sha256": log.origin.sha256,
    }
    return json.dumps(content, sort_keys=True).encode()


def described(source: Source, names: Sequence[str]) -> Description:
    """Return the description in an ``.npz``, if there is one; its notes are handed on."""
    if DESCRIPTION not in names:
        return Description()
    data = members.whole(source, DESCRIPTION)
    if data.dtype.itemsize != 1:
        raise InputError(f"{DESCRIPTION}.npy is {data.dtype}; bytes are expected")
    about = parse(data.tobytes(), source.meter)
    for note in about.notes:
        source.note(note)
    return about


def parse(text: bytes, meter: Meter) -> Description:
    """Return a description.

    Raises
    ------
    InputError
        It is no JSON object of ours.
    """
    content = parse_json(text, meter)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(f"the description is not of version {VERSION}")
    layers, experts = content.get("layers"), content.get("experts")
    if not _are_names(layers):
        raise InputError("the description has no list of layer names")
    if type(experts) is not int or not 1 <= experts <= MOST_EXPERTS:
        raise InputError(f"the description has {ascii(experts)[:40]} experts")
    unit = content.get("unit")
    if unit not in ("tokens", "replicas"):
        raise InputError(f"the description counts {ascii(unit)[:40]}")
    found = content.get("notes")
    notes = found if isinstance(found, list) else []
    return Description(
        layers=tuple(layers),
        experts=experts,
        unit=unit,
        sequences=content.get("sequences") is not False,
        notes=tuple(_note(note) for note in notes[:100]),
    )


def _are_names(values: Any) -> TypeGuard[list[str]]:
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(v, str) and LAYER.fullmatch(v) for v in values)


def _note(value: Any) -> str:
    """Return a note in which nothing moves a terminal."""
    return ascii(value)[1:-1][:LONGEST_NOTE] if isinstance(value, str) else "?"
