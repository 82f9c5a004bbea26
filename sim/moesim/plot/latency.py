"""Latency distributions: the share of requests (or gaps) that took no longer than x."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from moesim.errors import InputError, meant
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


class Curve(NamedTuple):
    """What is drawn of a distribution: there may be millions of values behind it."""

    x: Floats
    share: Floats
    marks: Floats
    size: int

    def same(self, other: "Curve") -> bool:
        """Return whether two curves are the same, as far as a figure can show."""
        return self.size == other.size and np.array_equal(self.x, other.x)


@styled
def latency_cdf(result: Result, metrics: Sequence[str]) -> Figure:
    """Return the distributions of `metrics` of one result.

    Raises
    ------
    InputError
        If a metric is not one of `METRICS`.
    """
    chosen = [metric(name) for name in metrics]
    curves = merged({m.label: curve_of(values(result, m)) for m in chosen})
    if not curves:
        labels = ", ".join(m.label for m in chosen)
        return notice(f"{labels}: no data", missing(result, chosen[0]))
    label, curve = next(iter(curves.items()))
    first = next(m for m in chosen if m.label in label.split(SAME))
    half, last = (duration(float(curve.marks[MARKED.index(p)])) for p in (50, 99))
    title = f"{first.meaning.capitalize()}: half within {half}, 99 % within {last}"
    what = chosen[0].meaning if len(chosen) == 1 else "latency"
    return draw_curves(title, curves, f"{what} ({sample(result, chosen)})")


def curve_of(curve: Floats) -> Curve:
    """Return what is drawn of ascending values."""
    if not len(curve):
        return Curve(curve, curve, curve, 0)
    x, share = steps(curve)  # before percentiles, which may reorder what they take
    marks = np.percentile(curve, MARKED, overwrite_input=True)
    return Curve(x, share, marks, len(curve))


def merged(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Return the curves that have points, under one label those that are the same.

    Requests of one token have their first token when they have their last.
    """
    kept: dict[str, Curve] = {}
    for label, curve in curves.items():
        same = [name for name, other in kept.items() if curve.same(other)]
        if same:
            kept = {
                f"{name}{SAME}{label}" if name in same else name: other
                for name, other in kept.items()
            }
        elif curve.size:
            kept[label] = curve
    return kept


@styled
def compared_cdf(results: Mapping[str, Result], name: str) -> Figure:
    """Return one metric's distribution under each policy."""
    chosen = metric(name)
    curves = {
        name: curve_of(values(result, chosen)) for name, result in results.items()
    }
    curves = {policy: curve for policy, curve in curves.items() if curve.size}
    if not curves:
        first = next(iter(results.values()))
        return notice(f"{chosen.label}: no data", missing(first, chosen))
    tails = {policy: float(curve.marks[-1]) for policy, curve in curves.items()}
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
        names = f"{', '.join(METRICS)}{meant(name, METRICS)}"
        raise InputError(f"metric {name!r} is not one of {names}")
    return METRICS[name]


def values(result: Result, chosen: Metric) -> Floats:
    """Return a metric of the measured requests in ms, ascending, without what is NaN."""
    wanted = measured(result) & finished(result)
    if chosen.table == "gaps":
        wanted = of_requests(result, wanted)
    column = result.tables.column(chosen.table, chosen.column).astype(float, copy=False)
    column = column[wanted & np.isfinite(column)]
    column.sort()
    return column


def measured(result: Result) -> Bools:
    """Return which requests arrived after the warm-up, which is not measured."""
    warmup_s = np.array([warm_up(record) for record in result.summaries])
    if not warmup_s.any():
        return np.ones(len(result.tables.column("requests", "slo_ok")), bool)
    arrival_s = result.tables.column("requests", "arrival_s").astype(float, copy=False)
    since = warmup_s[result.tables.column("requests", "replication")]
    return np.isnan(arrival_s) | (arrival_s >= since)


def finished(result: Result) -> Bools:
    """Return which requests finished."""
    status: Bools = result.tables.column("requests", "status") == "finished"
    return status


def warm_up(record: Mapping[str, Any]) -> float:
    """Return the seconds at the start of a run that its record leaves out."""
    duration = record.get("duration") or 0.0
    return float(duration - record.get("measured_window_s", duration))


def of_requests(result: Result, requests: Bools) -> Bools:
    """Return which gaps are between tokens of `requests`."""
    owner, number = (
        result.tables.column(table, "request_id") for table in ("gaps", "requests")
    )
    mine, run = (
        result.tables.column(table, "replication") for table in ("gaps", "requests")
    )
    width = int(owner.max(initial=0)) + 1
    known = requests & (number < width)
    return np.isin(mine * width + owner, (run * width + number)[known])


def missing(result: Result, chosen: Metric) -> str:
    """Return why there is nothing to draw."""
    if chosen.table == "gaps":
        return "No gaps between output tokens were recorded."
    if not (measured(result) & finished(result)).any():
        return "No request finished."
    return f"No finished request has a {chosen.meaning}."


def sample(result: Result, chosen: Sequence[Metric]) -> str:
    """Return what the curves are made of."""
    if all(one.table == "gaps" for one in chosen):
        text = counted(len(values(result, chosen[0])), "gap")
    else:
        since = measured(result)
        done, total = int((since & finished(result)).sum()), int(since.sum())
        text = counted(done, "finished request")
        text += f" of {total:,}" if done < total else ""
    runs = result.replications
    return f"{text}, {runs} replications pooled" if runs > 1 else text


def steps(curve: Floats) -> tuple[Floats, Floats]:
    """Return the corners of sorted values' empirical distribution: exact, but few."""
    size = len(curve)
    rank = np.arange(min(size, POINTS))
    if size > POINTS:
        tail = thinned(int(0.98 * size), size)
        rank = np.unique(np.concatenate([thinned(0, size), tail]))
    share = (rank + 1) / size
    return np.append(curve[0], curve[rank]), np.append(0.0, share)


def thinned(first: int, end: int) -> Ints:
    """Return at most half of `POINTS` of the ranks up to `end`, evenly, both ends in."""
    place = np.linspace(0, end - first - 1, min(end - first, POINTS // 2))
    return first + place.astype(np.int64)


def draw_curves(title: str, curves: Mapping[str, Curve], xlabel: str) -> Figure:
    """Return a figure of distributions on a logarithmic axis, percentiles marked."""
    figure, axes = canvas(title)
    width = max(len(label) for label in curves)
    for place, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        axes.step(
            curve.x,
            curve.share,
            where="post",
            color=colour,
            ls=LINES[place % len(LINES)],
            label=f"{label:{width}}{named(curve.marks)}",
        )
        shares = [p / 100 for p in MARKED]
        axes.plot(curve.marks, shares, "o", color=colour, mec="white", ms=6.5, zorder=3)
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
