"""Latency distributions: the share of requests (or gaps) that took no longer than x."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from moesim.errors import InputError
from moesim.measure.result import Result
from moesim.plot.style import COLOURS, LINES, MUTED, canvas, notice, styled
from moesim.plot.text import counted, duration
from moesim.types import Floats


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
    curves = {m.label: values(result, m) for m in chosen}
    curves = {label: curve for label, curve in curves.items() if len(curve)}
    what = ", ".join(m.label for m in chosen)
    if not curves:
        return notice(f"{what}: no data", missing(result, chosen[0]))
    names = {m.label: m.meaning for m in chosen}
    label, curve = next(iter(curves.items()))
    half, last = (duration(float(np.percentile(curve, p))) for p in (50, 99))
    title = f"{names[label].capitalize()}: half within {half}, 99 % within {last}"
    return draw_curves(title, curves, caption(result))


@styled
def compared_cdf(results: Mapping[str, Result], name: str, baseline: str) -> Figure:
    """Return one metric's distribution under each policy."""
    chosen = metric(name)
    curves = {policy: values(result, chosen) for policy, result in results.items()}
    curves = {policy: curve for policy, curve in curves.items() if len(curve)}
    first = results[baseline]
    if not curves:
        return notice(f"{chosen.label}: no data", missing(first, chosen))
    tails = {policy: float(np.percentile(c, 99)) for policy, c in curves.items()}
    best = min(tails, key=lambda policy: tails[policy])
    title = f"p99 {chosen.meaning} is lowest under {best}: {duration(tails[best])}"
    if best != baseline and baseline in tails:
        title += f" ({baseline}: {duration(tails[baseline])})"
    return draw_curves(title, curves, f"{chosen.label}, all replications pooled")


def metric(name: str) -> Metric:
    """Return the metric called `name`, or say which names there are."""
    if name not in METRICS:
        near = get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"metric {name!r} is not one of {', '.join(METRICS)}{hint}")
    return METRICS[name]


def values(result: Result, chosen: Metric) -> Floats:
    """Return a metric in ms, ascending: of finished requests, or of all gaps."""
    table = getattr(result, chosen.table)
    if chosen.table == "requests":
        table = table[table["status"] == "finished"]
    column = table[chosen.column].to_numpy(np.float64)
    return np.sort(column[np.isfinite(column)])


def missing(result: Result, chosen: Metric) -> str:
    """Return why there is nothing to draw."""
    if chosen.table == "gaps":
        return "No gaps between output tokens were recorded."
    if not (result.requests["status"] == "finished").any():
        return "No request finished."
    return f"No finished request has a {chosen.meaning}."


def caption(result: Result) -> str:
    """Return how many requests the curves are made of."""
    total = len(result.requests)
    finished = int((result.requests["status"] == "finished").sum())
    text = counted(finished, "finished request")
    if finished < total:
        text += f" of {total:,}"
    if result.replications > 1:
        text += f", {result.replications} replications pooled"
    return f"latency ({text})"


def steps(curve: Floats) -> tuple[Floats, Floats]:
    """Return points of the empirical distribution of sorted values: exact, but few."""
    share = np.arange(1, len(curve) + 1) / len(curve)
    if len(curve) <= POINTS:
        return curve, share
    body = np.linspace(0, len(curve) - 1, POINTS - 200).astype(np.int64)
    tail = np.linspace(int(0.98 * len(curve)), len(curve) - 1, 200).astype(np.int64)
    kept = np.unique(np.concatenate([body, tail]))
    return curve[kept], share[kept]


def draw_curves(title: str, curves: Mapping[str, Floats], xlabel: str) -> Figure:
    """Return a figure of distributions on a logarithmic axis, percentiles marked."""
    figure, axes = canvas(title)
    for place, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        line = LINES[place % len(LINES)]
        marks = np.percentile(curve, MARKED)
        named = "  ".join(
            f"p{p} {duration(float(v))}" for p, v in zip(MARKED, marks, strict=True)
        )
        axes.step(
            *steps(curve),
            where="post",
            color=colour,
            ls=line,
            label=f"{label}   {named}",
        )
        shares = [p / 100 for p in MARKED]
        axes.plot(marks, shares, "o", color=colour, mec="white", ms=6.5, zorder=3)
    finish_axes(axes, xlabel)
    figure.legend(loc="outside lower left", ncols=1, handlelength=3.2)
    return figure


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
