"""The tables of runs, made from what they wrote down when they are asked for.

A million requests are columns of 50 B a row, and 115 B more as a data frame. So a long
table becomes a frame only when somebody asks for its frame; a column or a block of rows
is made without the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from moesim.measure import frames
from moesim.measure.columns import Recorder
from moesim.measure.memory import table_of
from moesim.measure.slices import GapSlice, RequestSlice
from moesim.measure.tables import BLOCK, COLUMNS, Column, empty
from moesim.types import Ints

if TYPE_CHECKING:
    from pandas import DataFrame

LONG: Final[Mapping[str, type[RequestSlice] | type[GapSlice]]] = {
    "requests": RequestSlice,
    "gaps": GapSlice,
}
"""The tables that are made in parts."""


class RecordedTables:
    """The tables of replications: a `TableSet`.

    Parameters
    ----------
    runs : mapping of int to Recorder
        What each replication wrote down, by its number: the first column.
    kv_blocks : int
        Blocks of a rank's KV pool.
    slo_ms : mapping
        Limits in milliseconds of any of ``ttft``, ``tpot``, ``e2el``.
    """

    def __init__(
        self,
        runs: Mapping[int, Recorder],
        kv_blocks: int,
        slo_ms: Mapping[str, float],
    ) -> None:
        self.runs = dict(runs)
        self.kv_blocks = kv_blocks
        self.slo_ms = dict(slo_ms)

    @classmethod
    def joined(cls, parts: Sequence["RecordedTables"]) -> "RecordedTables":
        """Return the tables of all parts, one run after the other."""
        runs = {run: made for part in parts for run, made in part.runs.items()}
        return cls(runs, parts[0].kv_blocks, parts[0].slo_ms)

    @cached_property
    def requests(self) -> "DataFrame":
        """One row per request."""
        return joined("requests", self.blocks("requests"))

    @cached_property
    def gaps(self) -> "DataFrame":
        """One row per gap between output tokens; none of runs with too many."""
        return joined("gaps", self.blocks("gaps"))

    @cached_property
    def passes(self) -> "DataFrame":
        """One row per forward pass."""
        runs = self.runs.items()
        return joined("passes", (frames.passes(run, n) for n, run in runs))

    @cached_property
    def experts(self) -> "DataFrame":
        """One row per (MoE layer, logical expert)."""
        runs = self.runs.items()
        return joined("experts", (frames.experts(run, n) for n, run in runs))

    @cached_property
    def gpus(self) -> "DataFrame":
        """One row per GPU."""
        runs, blocks = self.runs.items(), self.kv_blocks
        return joined("gpus", (frames.gpus(run, n, blocks) for n, run in runs))

    @cached_property
    def links(self) -> "DataFrame":
        """One row per (GPU, port, direction, phase)."""
        runs = self.runs.items()
        return joined("links", (frames.links(run, n) for n, run in runs))

    @cached_property
    def memory(self) -> "DataFrame":
        """One row per (GPU, bin of time), of runs whose memory is watched."""
        runs, blocks = self.runs.items(), self.kv_blocks
        return joined("memory", (table_of(run.memory, n, blocks) for n, run in runs))

    def column(self, table: str, name: str) -> Column:
        """Return one column of a table; the others are not made for it."""
        kind = COLUMNS[table][name].replace("str", "object")
        if table not in LONG:
            return np.asarray(getattr(self, table)[name])
        column = np.empty(sum(self._length(table, run) for run in self.runs), kind)
        end = 0
        for run, part in self._parts(table):
            begin, end = end, end + part.stop - part.start
            column[begin:end] = self._cut(table, run, part, name)
        return column

    def blocks(self, table: str) -> Iterator["DataFrame"]:
        """Yield a table a block of rows at a time, at least one block."""
        if table not in LONG:
            yield getattr(self, table)
            return
        parts = list(self._parts(table))
        for run, part in parts:
            names = [name for name in COLUMNS[table] if name != "replication"]
            columns = {name: self._cut(table, run, part, name) for name in names}
            yield frames.frame(run, columns)
        if not parts:
            yield empty(table)

    def _cut(self, table: str, run: int, part: slice, name: str) -> Column:
        if name == "replication":
            return np.full(part.stop - part.start, run)
        return LONG[table](self.runs[run].requests, part, self.slo_ms).column(name)

    def _parts(self, table: str) -> Iterator[tuple[int, slice]]:
        for run in self.runs:
            length = self._length(table, run)
            for begin in range(0, length, BLOCK):
                yield run, slice(begin, min(begin + BLOCK, length))

    def _length(self, table: str, run: int) -> int:
        rows = self.runs[run].requests
        return len(rows.requests) if table == "requests" else len(rows.gaps)


def tabulate(
    recorder: Recorder, replication: int, slo_ms: Mapping[str, float], kv_blocks: int
) -> RecordedTables:
    """Return the tables of one run, which has this number."""
    return RecordedTables({replication: recorder}, kv_blocks, slo_ms)


def rank_load(recorder: Recorder) -> Ints:
    """Return ``(L, G)``: tokens that the experts of each GPU received."""
    return recorder.slot_tokens.sum(axis=1)


def joined(name: str, frames: Iterable["DataFrame"]) -> "DataFrame":
    """Return the rows of all frames, in their order."""
    from pandas import concat

    # Empty frames would decide the types of the others.
    filled = [frame for frame in frames if len(frame)]
    return concat(filled, ignore_index=True) if filled else empty(name)
