"""Experts: which are popular, and at which ones jobs wait.

Axes: ``L`` MoE layers, ``E`` experts of a layer.
"""

from math import ceil, floor, log2
from typing import Final

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from moesim.measure.result import Result
from moesim.plot.style import (
    COLOURS,
    EMPTY,
    HEAT,
    INK,
    MUTED,
    ORANGES,
    canvas,
    notice,
    styled,
)
from moesim.plot.text import counted, duration
from moesim.types import Floats

COLDEST: Final = 1 / 4
"""Shares below this all have the lightest colour."""
SHOWN: Final = 20
"""Experts in the figure of waits."""
QUANTILES: Final = ("wait_p50_us", "wait_p90_us", "wait_p99_us")


@styled
def expert_heatmap(result: Result) -> Figure:
    """Return each expert's tokens, relative to an equal share, layer by layer.

    Of several replications the first is shown: each has hot experts of its own, and
    their mean would look tamer than any.
    """
    if not result.experts["tokens"].any():
        return notice("Expert load: no data", "No token reached an expert.")
    experts = result.experts
    first = experts["replication"] == experts["replication"].min()
    share = relative_load(experts[first])
    layer, expert = np.unravel_index(int(np.nanargmax(share)), share.shape)
    hottest = float(share[layer, expert])
    one = " (replication 0)" if result.replications > 1 else ""
    title = (
        f"Hottest: layer {layer}, expert {expert} gets {hottest:.1f}× "
        f"an equal share of tokens{one}"
    )
    height = min(max(2.6 + 0.1 * len(share), 3.6), 7.0)
    figure, axes = canvas(title, height)
    bar = draw_shares(axes, share)
    bar.outline.set_visible(False)
    label_cells(axes, share)
    mark_hottest(axes, (int(layer), int(expert)), share.shape)
    return figure


def draw_shares(axes: Axes, share: Floats) -> Colorbar:
    """Draw each expert's share of tokens as colour; return the bar that explains it.

    Parameters
    ----------
    share : (L, E) array of float
        Tokens relative to an equal share; NaN where a layer has none.
    """
    norm = LogNorm(*colour_limits(share))
    # As an image it would take 40 MB to be drawn.
    image = axes.pcolormesh(
        *(np.arange(count + 1) - 0.5 for count in reversed(share.shape)),
        np.ma.masked_invalid(np.where(share > 0, share, np.nan)),
        cmap=colormaps[HEAT].with_extremes(bad=EMPTY),
        norm=norm,
    )
    axes.invert_yaxis()
    bar = axes.figure.colorbar(
        image,
        ax=axes,
        pad=0.02,
        label="× an equal share of tokens (log scale)",
        extend="min" if share[share > 0].min() < (norm.vmin or 0) else "neither",
        ticks=doublings(norm),
        format=FuncFormatter(lambda value, _: times(value)),
    )
    bar.ax.minorticks_off()
    return bar


def relative_load(experts: pd.DataFrame) -> Floats:
    """Return ``(L, E)``: tokens over the layer's mean; NaN in a layer without any."""
    tokens = experts.groupby(["layer", "expert"])["tokens"].sum().unstack(fill_value=0)
    load = tokens.to_numpy(np.float64)
    mean = load.mean(axis=1, keepdims=True)
    return np.divide(load, mean, out=np.full_like(load, np.nan), where=mean > 0)


def colour_limits(share: Floats) -> tuple[float, float]:
    """Return the shares with the lightest and the darkest colour: around 1, at least 2."""
    seen = share[share > 0]
    low = max(2.0 ** floor(log2(float(seen.min()))), COLDEST)
    return min(low, 0.5), max(float(seen.max()), 2.0)


def doublings(norm: LogNorm) -> Floats:
    """Return the powers of two within the limits of a scale."""
    low, high = norm.vmin or 1.0, norm.vmax or 1.0
    powers = np.arange(ceil(log2(low)), floor(log2(high)) + 1, dtype=np.float64)
    return np.exp2(powers)


def times(value: float) -> str:
    """Return a factor as a multiple or a fraction: ``4×``, ``1/4×``."""
    return f"{value:g}×" if value >= 1 else f"1/{1 / value:g}×"


def label_cells(axes: Axes, share: Floats) -> None:
    """Name the axes of a heat map and how empty cells look."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            MaxNLocator(nbins=9, integer=True, steps=[1, 2, 4, 8, 10], min_n_ticks=1)
        )
    layer, expert = np.nonzero(share == 0)
    axes.plot(expert, layer, "x", color=MUTED, ms=3.5, mew=0.8, zorder=2)
    note = (
        f"  (×: without tokens, {len(layer):,} of {share.size:,})" if len(layer) else ""
    )
    axes.set_xlabel(f"expert{note}")
    axes.set_ylabel("MoE layer")


def mark_hottest(axes: Axes, cell: tuple[int, int], shape: tuple[int, ...]) -> None:
    """Ring a cell and name it, on the side where there is room."""
    layer, expert = cell
    right, below = expert < shape[1] / 2, layer < shape[0] / 2
    axes.annotate(
        f"layer {layer}, expert {expert}",
        (expert, layer),
        xytext=(34 if right else -34, -24 if below else 24),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8.5,
        bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": INK, "lw": 0.8},
        arrowprops={"arrowstyle": "-", "color": INK, "lw": 1.0, "shrinkB": 5},
    )
    for colour, width in (("white", 3.2), (INK, 1.3)):
        axes.plot(expert, layer, "o", ms=9, mfc="none", mec=colour, mew=width)


@styled
def expert_wait(result: Result) -> Figure:
    """Return the experts whose jobs wait longest, by the 99th percentile."""
    waits = waits_of(result.experts)
    title = "Queue wait by expert"
    if waits.empty:
        return notice(f"{title}: no data", "No expert had a job.")
    worst = waits.nlargest(SHOWN, "wait_p99_us", keep="first")
    if not worst["wait_p99_us"].iloc[0] > 0:
        return notice(title, "At every expert fewer than 1 % of jobs waited.")
    layer, expert = worst.index[0]
    longest = duration(float(worst["wait_p99_us"].iloc[0]) / 1e3)
    figure, axes = canvas(
        f"Jobs wait longest for expert {expert} of layer {layer}: p99 {longest}",
        height_in=1.5 + 0.19 * len(worst),
    )
    draw_waits(axes, worst)
    middle = float(waits["wait_p99_us"].median()) / 1e3
    line = axes.axvline(middle, color=INK, lw=1.0, ls=(0, (4, 3)), zorder=1.5)
    line.set_label("p99 of the median expert")
    runs = result.replications
    repeated = f", mean of {runs} runs" if runs > 1 else ""
    shown = f"the {len(worst)} longest of {counted(len(waits), 'expert')}{repeated}"
    axes.set_xlabel(f"wait in the expert's queue ({shown})")
    handles, names = axes.get_legend_handles_labels()
    keys = dict(sorted(zip(names, handles, strict=True)))
    figure.legend(keys.values(), keys, loc="outside lower left", ncols=len(keys))
    return figure


def waits_of(experts: pd.DataFrame) -> pd.DataFrame:
    """Return jobs and mean wait quantiles by (layer, expert), over runs with jobs."""
    used = experts[experts["jobs"] > 0]
    columns = {"jobs": "sum", **dict.fromkeys(QUANTILES, "mean")}
    return used.groupby(["layer", "expert"]).agg(columns)


def draw_waits(axes: Axes, worst: pd.DataFrame) -> None:
    """Draw a bar to each expert's p99 with its p90 and p50, longest on top."""
    rows = np.arange(len(worst))
    p50, p90, p99 = (worst[name].to_numpy() / 1e3 for name in QUANTILES)
    axes.barh(rows, p99, height=0.72, color=ORANGES[2], label="p99")
    axes.plot(p90, rows, "D", ms=4.5, color=COLOURS[0], label="p90")
    axes.plot(p50, rows, "o", ms=4.5, mfc="white", mec=COLOURS[0], label="p50")
    for row, (end, jobs) in enumerate(zip(p99, worst["jobs"], strict=True)):
        text = f"{duration(float(end))} · {counted(int(jobs), 'job')}"
        axes.annotate(
            text,
            (end, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=MUTED,
            bbox={"fc": "white", "ec": "none", "pad": 0.6},
        )
    axes.set_yticks(rows, [f"layer {la} · expert {ex}" for la, ex in worst.index])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, float(p99.max()) * 1.22)
    axes.set_ylim(len(worst) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: duration(ms)))
    axes.margins(y=0)
