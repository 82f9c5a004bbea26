"""Latency distributions: the share of requests (or gaps) that took no longer than x."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from pandas import DataFrame

from moesim.errors import InputError
from moesim.measure.result import Result
from moesim.plot.style import COLOURS, LINES, MUTED, canvas, notice, styled
from moesim.plot.text import counted, duration
from moesim.types import Bools, Floats, Ints


class Metric(NamedTuple):
    """A latency: the table and column that hold it, its short and its full name."""

    table: str
    column: str
    label: str
    meaning: str


METRICS: Final = {
    "ttft": Metric("requests", "ttft_ms", "TTFT", "time to first token"),
    "tpot": Metric("requests", "tpot_ms", "TPOT", "time per output token"),
    "itl": Metric("gaps", "gap_ms", "ITL", "gap between output tokens"),
    "e2el": Metric("requests", "e2el_ms", "E2EL", "end-to-end latency"),
    "queue": Metric("requests", "queue_ms", "Queue", "wait for admission"),
}
MARKED: Final = (50, 90, 99)
"""The percentiles that are marked and named."""
SAME: Final = " = "
POINTS: Final = 1500
"""Steps of a curve at most: as many as a figure can show."""


@styled
def latency_cdf(result: Result, metrics: Sequence[str]) -> Figure:
    """Return the distributions of `metrics` of one result.

    Raises
    ------
    InputError
        If a metric is not one of `METRICS`.
    """
    chosen = [metric(name) for name in metrics]
    curves = merged({m.label: values(result, m) for m in chosen})
    if not curves:
        labels = ", ".join(m.label for m in chosen)
        return notice(f"{labels}: no data", missing(result, chosen[0]))
    label, curve = next(iter(curves.items()))
    first = next(m for m in chosen if m.label in label.split(SAME))
    half, last = (duration(float(np.percentile(curve, p))) for p in (50, 99))
    title = f"{first.meaning.capitalize()}: half within {half}, 99 % within {last}"
    what = chosen[0].meaning if len(chosen) == 1 else "latency"
    return draw_curves(title, curves, f"{what} ({sample(result, chosen)})")


def merged(curves: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the curves that have points, under one label those that are the same.

    Requests of one token have their first token when they have their last.
    """
    kept: dict[str, Floats] = {}
    for label, curve in curves.items():
        same = [name for name, other in kept.items() if np.array_equal(other, curve)]
        if same:
            kept = {
                f"{name}{SAME}{label}" if name in same else name: other
                for name, other in kept.items()
            }
        elif len(curve):
            kept[label] = curve
    return kept


@styled
def compared_cdf(results: Mapping[str, Result], name: str) -> Figure:
    """Return one metric's distribution under each policy."""
    chosen = metric(name)
    curves = {policy: values(result, chosen) for policy, result in results.items()}
    curves = {policy: curve for policy, curve in curves.items() if len(curve)}
    if not curves:
        first = next(iter(results.values()))
        return notice(f"{chosen.label}: no data", missing(first, chosen))
    tails = {policy: float(np.percentile(c, 99)) for policy, c in curves.items()}
    best = min(tails, key=lambda policy: tails[policy])
    worst = max(tails, key=lambda policy: tails[policy])
    title = (
        f"p99 of {chosen.label}: from {duration(tails[best])} ({best}) "
        f"to {duration(tails[worst])} ({worst})"
    )
    return draw_curves(title, curves, f"{chosen.meaning} (all replications pooled)")


def metric(name: str) -> Metric:
    """Return the metric called `name`, or say which names there are."""
    if name not in METRICS:
        near = get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"metric {name!r} is not one of {', '.join(METRICS)}{hint}")
    return METRICS[name]


def values(result: Result, chosen: Metric) -> Floats:
    """Return a metric of the measured requests in ms, ascending, without what is NaN."""
    finished = measured(result)
    finished = finished[finished["status"] == "finished"]
    table = finished
    if chosen.table == "gaps":
        table = result.gaps[of_requests(result.gaps, finished)]
    column = table[chosen.column].to_numpy(np.float64)
    return np.sort(column[np.isfinite(column)])


def measured(result: Result) -> DataFrame:
    """Return the requests that arrived after the warm-up, which is not measured."""
    warmup_s = np.array([warm_up(record) for record in result.summaries])
    requests = result.requests
    since = requests["arrival_s"] >= warmup_s[requests["replication"]]
    return requests[since | requests["arrival_s"].isna()]


def warm_up(record: Mapping[str, Any]) -> float:
    """Return the seconds at the start of a run that its record leaves out."""
    duration = record.get("duration") or 0.0
    return float(duration - record.get("measured_window_s", duration))


def of_requests(gaps: DataFrame, requests: DataFrame) -> Bools:
    """Return which gaps are between tokens of `requests`."""
    width = int(gaps["request_id"].max()) + 1 if len(gaps) else 1
    known = requests[requests["request_id"] < width]
    mine, wanted = (
        (table["replication"] * width + table["request_id"]).to_numpy()
        for table in (gaps, known)
    )
    return np.isin(mine, wanted)


def missing(result: Result, chosen: Metric) -> str:
    """Return why there is nothing to draw."""
    if chosen.table == "gaps":
        return "No gaps between output tokens were recorded."
    if not (measured(result)["status"] == "finished").any():
        return "No request finished."
    return f"No finished request has a {chosen.meaning}."


def sample(result: Result, chosen: Sequence[Metric]) -> str:
    """Return what the curves are made of."""
    if all(one.table == "gaps" for one in chosen):
        text = counted(len(values(result, chosen[0])), "gap")
    else:
        requests = measured(result)
        finished = int((requests["status"] == "finished").sum())
        text = counted(finished, "finished request")
        text += f" of {len(requests):,}" if finished < len(requests) else ""
    runs = result.replications
    return f"{text}, {runs} replications pooled" if runs > 1 else text


def steps(curve: Floats) -> tuple[Floats, Floats]:
    """Return the corners of sorted values' empirical distribution: exact, but few."""
    rank = np.arange(len(curve))
    if len(curve) > POINTS:
        tail = rank[int(0.98 * len(curve)) :]
        rank = np.unique(np.concatenate([thinned(rank), thinned(tail)]))
    share = (rank + 1) / len(curve)
    return np.append(curve[0], curve[rank]), np.append(0.0, share)


def thinned(rank: Ints) -> Ints:
    """Return at most half of `POINTS` of these ranks, evenly, with both ends."""
    place = np.linspace(0, len(rank) - 1, min(len(rank), POINTS // 2))
    return rank[place.astype(np.int64)]


def draw_curves(title: str, curves: Mapping[str, Floats], xlabel: str) -> Figure:
    """Return a figure of distributions on a logarithmic axis, percentiles marked."""
    figure, axes = canvas(title)
    width = max(len(label) for label in curves)
    for place, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        marks = np.percentile(curve, MARKED)
        axes.step(
            *steps(curve),
            where="post",
            color=colour,
            ls=LINES[place % len(LINES)],
            label=f"{label:{width}}{named(marks)}",
        )
        shares = [p / 100 for p in MARKED]
        axes.plot(marks, shares, "o", color=colour, mec="white", ms=6.5, zorder=3)
    finish_axes(axes, xlabel)
    mono = {"family": "DejaVu Sans Mono", "size": 8.5}
    figure.legend(loc="outside lower left", handlelength=3.6, prop=mono)
    return figure


def named(marks: Floats) -> str:
    """Return percentiles with their names, in columns."""
    pairs = zip(MARKED, marks, strict=True)
    return "".join(f"   p{p} {duration(float(ms)):>7}" for p, ms in pairs)


def finish_axes(axes: Axes, xlabel: str) -> None:
    """Give the axes of a distribution their scales, ticks and guides."""
    axes.set_xscale("log", nonpositive="clip")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high / low < 2000 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: duration(ms)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(xlabel)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_ylabel("share that took no longer")
    for percentile in MARKED:
        axes.axhline(percentile / 100, color=MUTED, lw=0.8, ls=(0, (1, 3)), zorder=1)
        axes.text(
            1.008,
            percentile / 100,
            f"p{percentile}",
            transform=axes.get_yaxis_transform(),
            va="center",
            color=MUTED,
            fontsize=8.5,
        )
