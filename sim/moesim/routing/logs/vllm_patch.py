"""JSON lines of routes, as patches of vLLM write them: one token in one layer a line.

``{"type": "meta", "top_k": .., ...}`` first, then ``{"type": "route", "req_id",
"token_idx", "layer", "topk_ids", "topk_weights"}``. Where ``token_idx`` begins again for
a request and layer, a new sequence begins. Such logs begin with the engine's profiling
pass, which `TokenSink` knows by its tokens, all alike.

Axes: ``n`` lines, ``k`` experts of a token.
"""

from typing import Any

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.longrows import LongRows
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source, refusal
from moesim.routing.logs.text import json_records
from moesim.routing.logs.tokens import TokenSink

NAME = "vllm-patch"
SUMMARY = "routes of vLLM patches (JSON lines, type: meta and type: route)"
FOLDERS = False
BLOCK_LINES = 1 << 14
LARGEST = 1 << 40
Row = tuple[int, int, int, list[int]]
"""Sequence, token, layer and ids."""


def recognise(peek: Peek) -> bool:
    """Tell whether the first line is a meta or a route line."""
    return peek.record_has("type") and peek.record["type"] in ("meta", "route")


def read(source: Source) -> RoutingLog:
    """Return the tokens, sequence by sequence, in the order of their first lines."""
    path = source.files[0]
    runs = _Runs(source)
    rows: LongRows | None = None
    waiting: list[Row] = []
    for line, value in json_records(path, source.meter):
        if isinstance(value, dict) and value.get("type") == "meta":
            continue
        try:
            waiting.append(runs.row(value))
            rows = rows or LongRows(source, len(waiting[0][3]))
            if len(waiting[-1][3]) != rows.width:
                what = f"topk_ids has {len(waiting[-1][3])} experts"
                raise InputError(f"{what}; {rows.width} are expected")
        except InputError as error:
            raise refusal(error.problems[0].message, path, line) from None
        if len(waiting) == BLOCK_LINES:
            _flush(rows, waiting)
    if rows is None:
        raise InputError("holds no line of type route")
    _flush(rows, waiting)
    sink = TokenSink(source)
    rows.into(sink)
    if runs.restarts:
        source.note(f"token_idx begins again {runs.restarts} times: new sequences")
    return sink.finish(NAME)


class _Runs:
    """Numbers the sequences: a request, and how often its tokens began again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._last: dict[tuple[Any, int], tuple[int, int]] = {}
        self._numbers: dict[tuple[Any, int], int] = {}

    @property
    def restarts(self) -> int:
        """How many sequences are no first ones of their request."""
        return sum(turn > 0 for _, turn in self._numbers)

    def row(self, value: Any) -> Row:
        """Return a line as numbers.

        Raises
        ------
        InputError
            It is no route, or something in it is no whole number.
        """
        if not isinstance(value, dict) or value.get("type") != "route":
            raise InputError("an object of type route is expected")
        token, layer = (_whole(value, key) for key in ("token_idx", "layer"))
        ids = value.get("topk_ids")
        if not isinstance(ids, list) or not ids:
            raise InputError("topk_ids is no list of experts")
        for item in ids:
            if type(item) is not int or not 0 <= item < LARGEST:
                found = ascii(item)[:40] if type(item) is not int else str(item)[:20]
                raise InputError(f"topk_ids holds {found}; ids are 0 or more")
        return self._sequence(value.get("req_id"), token, layer), token, layer, ids

    def _sequence(self, request: Any, token: int, layer: int) -> int:
        if not isinstance(request, str | int | None):
            raise InputError("req_id is neither text nor a whole number")
        last, turn = self._last.get((request, layer), (-1, 0))
        if token <= last:
            turn += 1
        self._last[request, layer] = token, turn
        size = len(self._numbers)
        if size % 1024 == 0:
            self._source.meter.hold(1000 * size, "the list of requests")
        return self._numbers.setdefault((request, turn), size)


def _whole(value: dict[str, Any], key: str) -> int:
    found = value.get(key)
    if type(found) is not int or not 0 <= found < LARGEST:
        shown = ascii(found)[:40] if type(found) is not int else str(found)[:20]
        raise InputError(f"{key} is {shown}; a whole number is expected")
    return found


def _flush(rows: LongRows, waiting: list[Row]) -> None:
    """Hand over the lines that wait."""
    if not waiting:
        return
    sequence, token, layer, ids = zip(*waiting, strict=True)
    waiting.clear()
    places = [np.array(values, np.int64) for values in (sequence, token, layer)]
    rows.add(places[0], places[1], places[2], np.array(ids, np.int64))
