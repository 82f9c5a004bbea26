"""Megatron-core's router trace (``--moe-routing-trace-path``): JSON lines, a file a rank.

A line: ``step``, ``stage``, ``block`` (decoder or mtp), ``layer``, ``rank``,
``num_tokens``, ``topk``, ``top_indices`` [tokens, k], ``mtp_idx`` for mtp. The lines of a
micro-batch follow each other, layer after layer; a layer that comes again begins the
next micro-batch.
Source: ``megatron/core/transformer/moe/router_trace.py``.

Axes: ``t`` tokens of a micro-batch, ``L`` layers, ``k`` experts of a token.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.nested import array_of
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.ranks import distinct
from moesim.routing.logs.source import Source, refusal
from moesim.routing.logs.text import Record, json_records
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

NAME = "megatron-trace"
SUMMARY = "Megatron-core router trace (JSON lines, a file a rank)"
FOLDERS = True
KEYS = ("step", "layer", "top_indices")
Group = dict[str, Ints]
"""Ids ``(t, k)`` of one micro-batch, by layer."""


def recognise(peek: Peek) -> bool:
    """Tell whether the first line has a step, a layer and indices."""
    return peek.record_has(*KEYS)


def read(source: Source) -> RoutingLog:
    """Return the tokens of all ranks, one after the other."""
    sink = TokenSink(source)
    for path in distinct(source, lambda path: _digest(source, path)):
        for line, group in _groups(source, path):
            layers = tuple(group)
            sink.layers = sink.layers or layers
            if set(layers) != set(sink.layers):
                message = f"a micro-batch ends with layers {_listed(layers)}"
                expected = f"the first had {_listed(sink.layers)}"
                raise refusal(f"{message}; {expected}", path, line)
            if len({ids.shape for ids in group.values()}) > 1:
                raise refusal("layers of a micro-batch differ in tokens", path, line)
            sink.add(np.stack([group[name] for name in sink.layers], axis=1))
    source.note(
        "tokens of a micro-batch are in Megatron's order; sequences are unknown"
    )
    return sink.finish(NAME)


def _groups(source: Source, path: Path) -> Iterator[tuple[int, Group]]:
    """Yield every micro-batch of a rank, with the line at which it ends."""
    group: Group = {}
    step: object = None
    line = 0
    for record in json_records(path, source.meter):
        name, ids = _layer(record, path)
        if group and (name in group or record.value.get("step") != step):
            yield line, group
            group = {}
        step, line = record.value.get("step"), record.line
        group[name] = ids
        source.meter.hold(2 * sum(i.nbytes for i in group.values()), "a micro-batch")
    if group:
        yield line, group


def _layer(record: Record, path: Path) -> tuple[str, Ints]:
    """Return the name of the layer and its ids."""
    line, value = record
    try:
        if not isinstance(value, dict):
            raise InputError("a JSON object is expected")
        ids = array_of(value.get("top_indices"), 2, "top_indices")
        for key, size in (("num_tokens", ids.shape[0]), ("topk", ids.shape[1])):
            if key in value and value[key] != size and ids.size:
                told = ascii(value[key])[:40]
                raise InputError(f"{key} is {told}; top_indices has {size}")
        return _name(value), ids
    except InputError as error:
        raise refusal(error.problems[0].message, path, line) from None


def _name(value: dict[str, Any]) -> str:
    layer, block = value.get("layer"), value.get("block", "decoder")
    if type(layer) is not int or not 0 <= layer < 1 << 16:
        raise InputError(f"layer is {ascii(layer)[:40]}; a whole number is expected")
    if block == "decoder":
        return str(layer)
    if block != "mtp":
        raise InputError(f"block is {ascii(block)[:40]}; decoder or mtp is expected")
    index = value.get("mtp_idx", 0)
    if type(index) is not int or not 0 <= index < 1 << 16:
        raise InputError(f"mtp_idx is {ascii(index)[:40]}; a whole number is expected")
    return f"mtp{index}.{layer}"


def _digest(source: Source, path: Path) -> bytes:
    """Return what tells whether two ranks recorded the same tokens."""
    total = hashlib.sha256()
    for record in json_records(path, source.meter):
        name, ids = _layer(record, path)
        total.update(name.encode() + ids.tobytes())
    return total.digest()


def _listed(layers: tuple[str, ...]) -> str:
    return ", ".join(layers[:6]) + (", ..." if len(layers) > 6 else "")
