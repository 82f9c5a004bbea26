"""Latencies and peaks of requests, from columns that may be a million rows long.

Axis: ``N`` requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moesim.measure.gaps import RELATIVE_ERROR, Gaps
from moesim.measure.tables import BLOCK, TableSet
from moesim.types import Bools, Floats

if TYPE_CHECKING:
    from pandas import DataFrame

LATENCIES: Final = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}
PERCENTILES: Final = (50, 90, 95, 99)
PS_PER_S, PS_PER_MS = 1e12, 1e9
Number = float | int | None


@dataclass(frozen=True, slots=True)
class Watched:
    """The requests of a run, a column at a time: ``(N,)``, as there may be millions.

    Parameters
    ----------
    tables : TableSet
        Where the columns come from.
    finished, measured, late : (N,) arrays of bool
        Which finished; which arrived after the warm-up; which ended after it.
    """

    tables: TableSet
    finished: Bools
    measured: Bools
    late: Bools

    @classmethod
    def since(cls, tables: TableSet, warmup_s: float) -> "Watched":
        """Return the requests with what a warm-up makes of them."""
        return cls(
            tables=tables,
            finished=tables.column("requests", "status") == "finished",
            measured=tables.column("requests", "arrival_s") >= warmup_s,
            late=tables.column("requests", "finish_s") >= warmup_s,
        )

    def column(self, name: str) -> Any:
        """Return a column of all requests."""
        return self.tables.column("requests", name)

    def total(self, name: str, which: Bools) -> int:
        """Return the sum of a column over some requests."""
        return int(self.column(name)[which].sum())


def distribution(values: Floats, name: str) -> dict[str, Number]:
    """Return mean, median, std and percentiles of milliseconds; None for no values."""
    values = values[np.isfinite(values)]
    if not len(values):
        return dict.fromkeys(_keys(name))
    spread = [values.mean(), values.std()]
    half = np.median(values, overwrite_input=True)
    found = np.percentile(values, PERCENTILES, overwrite_input=True)
    return _named(name, (spread[0], half, spread[1], *found))


def _keys(name: str) -> list[str]:
    keys = ("mean", "median", "std", *(f"p{share}" for share in PERCENTILES))
    return [f"{key}_{name}_ms" for key in keys]


def _named(name: str, values: Sequence[float]) -> dict[str, Number]:
    pairs = zip(_keys(name), values, strict=True)
    return {key: float(value) for key, value in pairs}


def latencies(watched: Watched) -> dict[str, Number]:
    """Return the distributions of all latencies but ITL, of measured requests."""
    record: dict[str, Number] = {}
    for name, column in LATENCIES.items():
        record |= distribution(watched.column(column)[watched.measured], name)
    tpot = watched.column("tpot_ms")[watched.measured]
    slow = tpot[np.isfinite(tpot)]
    record["median_intvty"] = float(np.median(1e3 / slow)) if len(slow) else None
    queue = watched.column("queue_ms")[watched.measured]
    return record | distribution(queue, "queue") | {"max_queue_ms": largest(queue)}


def itl(watched: Watched) -> dict[str, Number]:
    """Return the distribution of all gaps of measured requests that finished."""
    owner = watched.tables.column("gaps", "request_id")
    wanted = watched.column("request_id")[watched.finished & watched.measured]
    mine = np.zeros(int(max(owner.max(initial=0), wanted.max(initial=0))) + 1, bool)
    mine[wanted] = True
    gap_ms = watched.tables.column("gaps", "gap_ms")[mine[owner]]
    return {**distribution(gap_ms, "itl"), "itl_percentile_error_frac": 0.0}


def itl_binned(gaps: Gaps, warmup_s: float) -> dict[str, Number]:
    """Return the same of gaps too many to keep: percentiles from their histogram."""
    if gaps.since != round(warmup_s * PS_PER_S):
        message = "the histogram of gaps was not told of the warm-up"
        raise AssertionError(message)
    error = {"itl_percentile_error_frac": RELATIVE_ERROR}
    if not gaps.count:
        return {**dict.fromkeys(_keys("itl")), **error}
    half, *found = gaps.quantiles(np.array([50, *PERCENTILES]) / 100) / PS_PER_MS
    mean, std = gaps.total / gaps.count / PS_PER_MS, gaps.deviation / PS_PER_MS
    return {**_named("itl", (mean, half, std, *found)), **error}


def largest(values: Floats) -> Number:
    """Return the largest value that is a number; None if none is."""
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None


def peaks(watched: Watched, gaps: Gaps | None, span_s: float) -> dict[str, Number]:
    """Return the most requests inside at once, and the most tokens made in a second.

    A request that leaves at the instant another comes makes room for it.
    """
    arrival = watched.column("arrival_s")
    inside = (watched.column("status") != "rejected") & np.isfinite(arrival)
    come = np.sort(arrival[inside])
    leave = watched.column("finish_s")[inside]
    leave[np.isnan(leave)] = span_s
    leave.sort()
    most = 0
    for begin in range(0, len(come), BLOCK):
        part = come[begin : begin + BLOCK]
        place = np.arange(begin + 1, begin + 1 + len(part))
        left = np.searchsorted(leave, part, side="right")
        most = max(most, int((place - left).max()))
    busiest = gaps.busiest_second if gaps is not None else _busiest(watched, inside)
    return {"max_concurrent_requests": most, "max_output_tokens_per_s": busiest}


def _busiest(watched: Watched, inside: Bools) -> int:
    requests = watched.tables.requests[inside]
    times = token_times(
        requests[requests["first_token_s"].notna()], watched.tables.gaps
    )
    return int(np.bincount(times.astype(np.int64)).max(initial=0)) if len(times) else 0


def token_times(requests: "DataFrame", gaps: "DataFrame") -> Floats:
    """Return the seconds at which the tokens of these requests were made, any order."""
    first = requests.set_index("request_id")["first_token_s"]
    mine = gaps[gaps["request_id"].isin(first.index)]
    since = mine.groupby("request_id", sort=False)["gap_ms"].cumsum().to_numpy() / 1e3
    later = first.loc[mine["request_id"]].to_numpy() + since
    return np.concatenate([first.to_numpy(), later])
