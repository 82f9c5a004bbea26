"""TensorRT-LLM's placement YAML: which expert each slot holds, by decoder layer.

Keys: ``num_slots``, ``initial_global_assignments`` {layer: [expert of each slot]},
``layer_updates_per_iter``. Built from the parser's events without recursion; anchors,
aliases and tags are refused.
Source: ``examples/wide_ep/ep_load_balancer/README.md`` of NVIDIA/TensorRT-LLM.
"""

import re
from collections.abc import Iterator
from typing import Any

from moesim.errors import InputError, Problem
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.nested import array_of
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.slots import placement_log
from moesim.routing.logs.source import Source
from moesim.routing.logs.text import parse_json
from moesim.spec.files import read_text

NAME = "trtllm-placement"
SUMMARY = "TensorRT-LLM expert placement (YAML)"
FOLDERS = False
ASSIGNMENTS, SLOTS = "initial_global_assignments", "num_slots"
KNOWN = (ASSIGNMENTS, SLOTS, "layer_updates_per_iter")
WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")
TRIPS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)
"""What ruamel.yaml's scanner raises on odd escapes, besides its own errors."""


def recognise(peek: Peek) -> bool:
    """Tell whether it is YAML with these keys, or the same as JSON."""
    return peek.container == "yaml" or peek.record_has(ASSIGNMENTS)


def read(source: Source) -> RoutingLog:
    """Return the replicas of each expert, and the map itself."""
    text = read_text(source.files[0], source.meter.document_bytes)
    content = _document(text, source)
    for key in content:
        if key not in KNOWN:
            raise InputError(
                f"unknown key {ascii(key)[:60]}; {', '.join(KNOWN)} are known"
            )
    assignments, slots = content.get(ASSIGNMENTS), content.get(SLOTS)
    if not isinstance(assignments, dict) or not assignments:
        raise InputError(f"expected {ASSIGNMENTS}: a list of experts for each layer")
    if type(slots) is not int:
        raise InputError(f"expected {SLOTS}, a whole number; got {ascii(slots)[:40]}")
    layers = sorted(_layer(key) for key in assignments)
    by_layer = {_layer(key): value for key, value in assignments.items()}
    if len(by_layer) < len(assignments):
        raise InputError("a layer is given twice")
    placed = array_of([by_layer[layer] for layer in layers], 2, ASSIGNMENTS)
    if placed.shape[1] != slots:
        raise InputError(f"{SLOTS} is {slots}; layers have {placed.shape[1]}")
    return placement_log(source, NAME, placed, tuple(map(str, layers)))


def _layer(key: object) -> int:
    if not WHOLE.fullmatch(str(key)):
        raise InputError(f"a layer is a whole number; got {ascii(key)[:60]}")
    return int(str(key))


def _document(text: str, source: Source) -> dict[Any, Any]:
    if text.lstrip().startswith('{"'):
        content = parse_json(text.encode(), source.meter)
    else:
        content = _yaml(text, source)
    if not isinstance(content, dict):
        raise InputError(f"holds no mapping with {ASSIGNMENTS}")
    return content


def _yaml(text: str, source: Source) -> Any:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _composed(text, source)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = Problem(f"no YAML: {error.problem or error.context}", "", *place)
        raise InputError([problem]) from None
    except (YAMLError, ValueError, RecursionError, *TRIPS) as error:
        raise InputError(f"no YAML: {error!s:.100}") from None


def _composed(text: str, source: Source) -> Any:
    """Return the plain data of one document: mappings, lists, whole numbers and text."""
    stack: list[tuple[Any, list[Any]]] = [([], [])]
    documents = 0
    for event in _events(text, source):
        kind = type(event).__name__
        documents += kind == "DocumentStartEvent"
        if documents > 1:
            raise InputError("holds two documents; one is expected")
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            stack.append(({} if kind == "MappingStartEvent" else [], []))
            if len(stack) > source.meter.limits.depth:
                raise InputError(
                    f"nested deeper than {source.meter.limits.depth} levels"
                )
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            done, _ = stack.pop()
            _put(stack, done)
        elif kind == "ScalarEvent":
            _put(stack, _scalar(event))
    return stack[0][0][0] if stack[0][0] else None


def _events(text: str, source: Source) -> Iterator[Any]:
    from ruamel.yaml import YAML

    for number, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
        if number % 1024 == 0:
            source.meter.tick()
        if type(event).__name__ == "AliasEvent" or getattr(event, "anchor", None):
            raise InputError("anchors and aliases are not read; write values out")
        if getattr(event, "tag", None):
            raise InputError(f"the tag {ascii(str(event.tag))[:60]} is not read")
        yield event


def _put(stack: list[tuple[Any, list[Any]]], value: Any) -> None:
    """Add a value to the innermost list or mapping; keys wait for their value."""
    target, key = stack[-1]
    if isinstance(target, list):
        target.append(value)
    elif not key:
        if isinstance(value, list | dict):
            raise InputError("a key must be a plain word or number")
        if value in target:
            raise InputError(f"the key {ascii(value)[:60]} stands twice")
        key.append(value)
    else:
        target[key.pop()] = value


def _scalar(event: Any) -> int | str:
    plain = not event.style and WHOLE.fullmatch(event.value)
    return int(event.value) if plain else str(event.value)
