"""Columns of a stretch of requests or gaps, each made when it is asked for.

Axis: ``n`` rows of the stretch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moesim.measure.columns import FINISHED, STATUSES, RequestColumns
from moesim.types import Bools, Floats, Ints

PS_PER_S = 1e12
PS_PER_MS = 1e9
Column = NDArray[Any]


class RequestSlice:
    """Some consecutive requests of a run, in seconds, milliseconds and words."""

    def __init__(
        self, rows: RequestColumns, part: slice, slo_ms: Mapping[str, float]
    ) -> None:
        self.rows = rows
        self.part = part
        self.slo_ms = slo_ms
        self.arrival: Ints = rows.arrival[part]
        self.status: NDArray[np.int8] = rows.status[part]
        self.finished: Bools = self.status == FINISHED

    def column(self, name: str) -> Column:
        """Return one column of the table ``requests``."""
        return REQUESTS[name](self)

    def number(self) -> Ints:
        """Return ``(n,)`` numbers of the requests."""
        return np.arange(self.part.start, self.part.start + len(self.arrival))

    def klass(self) -> Column:
        """Return ``(n,)`` names of classes."""
        names = np.array(self.rows.requests.class_names, dtype=object)
        return names[self.rows.requests.klass[self.part]]

    def ended(self) -> Ints:
        """Return ``(n,)`` instants of the end."""
        return np.where(self.status, self.rows.last[self.part], -1)

    def ttft_ms(self) -> Floats:
        """Return ``(n,)`` times to the first token; NaN unless finished."""
        first = happened(self.rows.first[self.part])
        return np.where(self.finished, (first - self.arrival) / PS_PER_MS, np.nan)

    def tpot_ms(self) -> Floats:
        """Return ``(n,)`` times per later token; NaN for requests of one token."""
        made = self.rows.generated[self.part].astype(np.int64)
        took = happened(self.ended()) - happened(self.rows.first[self.part])
        several = self.finished & (made > 1)
        return np.where(several, took / np.maximum(made - 1, 1) / PS_PER_MS, np.nan)

    def e2el_ms(self) -> Floats:
        """Return ``(n,)`` times from arrival to end; NaN unless finished."""
        took = happened(self.ended()) - self.arrival
        return np.where(self.finished, took / PS_PER_MS, np.nan)

    def queue_ms(self) -> Floats:
        """Return ``(n,)`` times from arrival to admission."""
        return (happened(self.rows.admitted[self.part]) - self.arrival) / PS_PER_MS

    def slo_ok(self) -> Bools:
        """Return which finished within every limit; one token has a TPOT of 0."""
        good = self.finished.copy()
        for metric, limit in self.slo_ms.items():
            good &= np.nan_to_num(self.column(f"{metric}_ms"), nan=0.0) <= limit
        return good


def happened(times: Ints) -> Floats:
    """Return times as numbers; NaN for what has not happened."""
    return np.where(times >= 0, times, np.nan)


REQUESTS: Final[Mapping[str, Callable[[RequestSlice], Column]]] = {
    "request_id": RequestSlice.number,
    "class": RequestSlice.klass,
    "rank": lambda s: s.rows.rank[s.part].astype(np.int64),
    "status": lambda s: np.array(STATUSES, dtype=object)[s.status],
    "arrival_s": lambda s: happened(s.arrival) / PS_PER_S,
    "admitted_s": lambda s: happened(s.rows.admitted[s.part]) / PS_PER_S,
    "first_token_s": lambda s: happened(s.rows.first[s.part]) / PS_PER_S,
    "finish_s": lambda s: happened(s.ended()) / PS_PER_S,
    "input_tokens": lambda s: s.rows.requests.input_tokens[s.part].astype(np.int64),
    "output_tokens": lambda s: s.rows.generated[s.part].astype(np.int64),
    "queue_ms": RequestSlice.queue_ms,
    "ttft_ms": RequestSlice.ttft_ms,
    "tpot_ms": RequestSlice.tpot_ms,
    "e2el_ms": RequestSlice.e2el_ms,
    "preemptions": lambda s: s.rows.preemptions[s.part].astype(np.int64),
    "slo_ok": RequestSlice.slo_ok,
}
"""How each column of the table ``requests`` is made, but for the replication."""


class GapSlice:
    """Some consecutive gaps of a run that kept them all."""

    def __init__(
        self, rows: RequestColumns, part: slice, _: Mapping[str, float]
    ) -> None:
        self.owner, self.gap = rows.gaps.part(part)

    def column(self, name: str) -> Column:
        """Return one column of the table ``gaps``."""
        return self.owner if name == "request_id" else self.gap / PS_PER_MS
