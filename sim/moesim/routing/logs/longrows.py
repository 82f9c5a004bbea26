"""Rows that name token, layer and experts, in any order, into tokens of whole sequences.

Nothing is kept per row in Python: columns are spooled, then scattered over an array that
lies in memory or, beyond the limit, in an unnamed file.

Axes: ``n`` rows, ``w`` experts in a row, ``T`` tokens, ``L`` layers, ``k`` experts of a
token.
"""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.limits import MOST_CHOICES, MOST_EXPERTS, MOST_LAYERS
from moesim.routing.logs.source import Source
from moesim.routing.logs.store import Rows, Spool, Unnamed
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

BLOCK_ROWS = 1 << 16


class LongRows:
    """Collects rows; `into` gives them to a sink, sequence by sequence.

    Parameters
    ----------
    source : Source
        Whose limits apply.
    width : int
        Experts of a token that one row names; 1: each row is one choice of several.
    """

    def __init__(self, source: Source, width: int) -> None:
        self._source = source
        self.width = width
        share = source.meter.limits.memory_bytes // 8
        self._share = share
        self._columns = [Spool((), share) for _ in range(3)]
        self._ids = Spool((width,), share)
        self._layers: set[int] = set()
        self._spans: dict[int, tuple[int, int]] = {}

    def add(self, sequence: Ints, token: Ints, layer: Ints, ids: NDArray[Any]) -> None:
        """Add rows: ``(n,)`` sequence, token in it, layer; ``(n, w)`` ids.

        Raises
        ------
        InputError
            A number is negative or too large to be what it should.
        """
        self._source.meter.tick()
        for values, most, what in (
            (layer, 1 << 16, "layers"),
            (ids, MOST_EXPERTS, "experts"),
            (token, 1 << 40, "tokens"),
        ):
            if values.size and (values.min() < 0 or values.max() >= most):
                bad = values.min() if values.min() < 0 else values.max()
                raise InputError(f"{what} are 0 to {most - 1}; got {bad}")
        self._layers.update(np.unique(layer).tolist())
        if len(self._layers) > MOST_LAYERS:
            raise InputError(f"names more than {MOST_LAYERS} layers")
        self._extend_spans(sequence, token)
        for column, values in zip(self._columns, (sequence, token, layer), strict=True):
            column.append(values)
        self._ids.append(ids)

    def into(self, sink: TokenSink) -> None:
        """Give every token to `sink`, sequences in the order of their first row.

        Raises
        ------
        InputError
            A token lacks a layer or has it twice, or has another number of experts.
        """
        rows = self._ids.rows
        if not rows:
            raise InputError("holds no rows; at least one is expected")
        layers = np.array(sorted(self._layers), np.int64)
        lengths = np.array([last - first + 1 for first, last in self._spans.values()])
        total = int(lengths.sum(dtype=np.float64))
        cells = total * len(layers)
        if cells > rows or rows % cells:
            raise InputError(
                f"{rows} rows for {total} tokens in {len(layers)} layers: some token "
                "lacks a layer, or has it twice"
            )
        per_cell = rows // cells
        if (per_cell > 1 and self.width > 1) or per_cell * self.width > MOST_CHOICES:
            raise InputError(f"every token stands {per_cell} times in every layer")
        canvas = _Canvas((cells, per_cell), self.width, self._ids.dtype, self._share)
        self._scatter(canvas, layers, lengths)
        sink.layers = tuple(map(str, layers.tolist()))
        shape = (total, len(layers), per_cell * self.width)
        _hand_over(canvas.ids.reshape(shape), lengths, sink)

    def _extend_spans(self, sequence: Ints, token: Ints) -> None:
        """Follow the first and the last token of each sequence."""
        order = np.argsort(sequence, kind="stable")
        names, starts = np.unique(sequence[order], return_index=True)
        lows = np.minimum.reduceat(token[order], starts)
        highs = np.maximum.reduceat(token[order], starts)
        first_seen = np.argsort(order[starts], kind="stable")
        for at in first_seen.tolist():
            name, low, high = int(names[at]), int(lows[at]), int(highs[at])
            old = self._spans.get(name, (low, high))
            self._spans[name] = (min(old[0], low), max(old[1], high))
        self._source.meter.hold(200 * len(self._spans), "the list of sequences")

    def _scatter(self, canvas: "_Canvas", layers: Ints, lengths: Ints) -> None:
        names = np.fromiter(self._spans, np.int64, len(self._spans))
        firsts = np.array([first for first, _ in self._spans.values()], np.int64)
        base = np.cumsum(lengths) - lengths - firsts
        order = np.argsort(names, kind="stable")
        columns: list[Rows] = [spool.finish() for spool in self._columns]
        ids = self._ids.finish()
        for start in range(0, len(ids), BLOCK_ROWS):
            self._source.meter.tick()
            stop = start + BLOCK_ROWS
            sequence, token, layer = (
                column.take(start, stop).astype(np.int64) for column in columns
            )
            at = order[np.searchsorted(names, sequence, sorter=order)]
            cell = (base[at] + token) * len(layers) + np.searchsorted(layers, layer)
            full = canvas.put(cell, ids.take(start, stop))
            if full >= 0:
                where = f"token {token[full]}, layer {layer[full]}"
                raise InputError(f"{where} has more rows than others")


class _Canvas:
    """Cells ``(n, rows of a cell, w)`` that are filled in any order."""

    def __init__(
        self, shape: tuple[int, int], width: int, dtype: Any, memory_bytes: int
    ) -> None:
        self.ids = _zeros((*shape, width), dtype, memory_bytes)
        self._filled = _zeros((shape[0],), np.dtype(np.uint16), memory_bytes)

    def put(self, cell: Ints, ids: NDArray[Any]) -> int:
        """Fill cells; return the row for which there is no room, or -1."""
        order = np.argsort(cell, kind="stable")
        ordered = cell[order]
        fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        starts = np.flatnonzero(fresh)
        turn = np.arange(len(ordered)) - starts[np.cumsum(fresh) - 1]
        slot = self._filled[ordered].astype(np.int64) + turn
        over = np.flatnonzero(slot >= self.ids.shape[1])
        if len(over):
            return int(order[over[0]])
        self.ids[ordered, slot] = ids[order]
        last = np.concatenate([starts[1:], [len(ordered)]]) - 1
        self._filled[ordered[last]] = slot[last] + 1
        return -1


def _zeros(shape: tuple[int, ...], dtype: Any, memory_bytes: int) -> NDArray[Any]:
    """Return zeros, in memory or in a map of an unnamed file that vanishes with it."""
    if prod(shape) * np.dtype(dtype).itemsize <= memory_bytes:
        return np.zeros(shape, dtype)
    return Unnamed().map(np.dtype(dtype), shape)


def _hand_over(ids: NDArray[Any], lengths: Ints, sink: TokenSink) -> None:
    """Give tokens to the sink in blocks, and the lengths with the last of each."""
    ends = np.cumsum(lengths)
    for start in range(0, len(ids), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(ids))
        here = lengths[(ends > start) & (ends <= stop)]
        sink.add(np.asarray(ids[start:stop]), here.tolist())
