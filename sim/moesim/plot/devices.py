"""How evenly GPUs are loaded, and who sends how much to whom.

Axes: ``L`` MoE layers, ``G`` GPUs, ``P`` phases (dispatch, combine).
"""

from typing import Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moesim.cost.pass_ import PHASES
from moesim.measure.result import Result
from moesim.plot.style import (
    COLOURS,
    EMPTY,
    FAINT,
    HEAT,
    INK,
    notice,
    panels,
    styled,
)
from moesim.types import Floats, Ints
from moesim.units import BYTES, format_bytes

LOAD, SENT = "Expert load of GPUs", "Bytes between GPUs"
COLOURED: Final = colormaps[HEAT].with_extremes(bad=EMPTY)


@styled
def rank_load(result: Result) -> Figure:
    """Return each GPU's expert tokens by layer, relative to the layer's mean."""
    load = result.rank_load.sum(axis=0).astype(np.float64)
    mean = load.mean(axis=1, keepdims=True)
    if not mean.any():
        return notice(LOAD, "No token reached an expert.")
    relative = np.divide(load, mean, out=np.full_like(load, np.nan), where=mean > 0)
    figure, (axes, side) = panels(load_title(relative), [5, 1])
    image = axes.imshow(
        np.ma.masked_invalid(relative),
        cmap=COLOURED,
        vmin=0,
        vmax=max(2.0, float(np.nanmax(relative))),
        aspect="auto",
        interpolation="nearest",
    )
    label_axes(axes, "GPU", "MoE layer")
    bar = figure.colorbar(
        image,
        ax=[axes, side],
        pad=0.015,
        aspect=30,
        label="expert tokens (× the layer's mean)",
    )
    bar.outline.set_visible(False)
    draw_busiest(side, np.nanmax(relative, axis=1, initial=0))
    return figure


def draw_busiest(axes: Axes, busiest: Floats) -> None:
    """Draw each layer's busiest GPU as a bar, beside the layer's row of a map."""
    axes.barh(np.arange(len(busiest)), busiest, height=0.75, color=COLOURS[0])
    axes.axvline(1, color=INK, lw=1)
    axes.set_xlabel("busiest GPU\n(× mean)")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.set_ylim(len(busiest) - 0.5, -0.5)


def load_title(relative: Floats) -> str:
    """Return the message: the busiest GPU of the worst and of the median layer."""
    layer, gpu = np.unravel_index(int(np.nanargmax(relative)), relative.shape)
    used = relative[~np.isnan(relative).any(axis=1)]
    usual = float(np.median(used.max(axis=1)))
    return (
        f"GPU {gpu} carries {relative[layer, gpu]:.1f}× the mean load of layer {layer}; "
        f"usual is {usual:.1f}×"
    )


@styled
def traffic(result: Result) -> Figure:
    """Return the bytes from each GPU to each, for both phases, on one scale."""
    sent = result.traffic.mean(axis=0)
    if not sent.any():
        return notice(SENT, "No byte went from one GPU to another.")
    node = nodes_of(result, sent.shape[1])
    figure, both = panels(traffic_title(sent, node), [1] * len(PHASES), 4.2)
    unit = "GB" if sent.max() >= 1e9 else "MB"
    scaled = sent / float(BYTES[unit])
    norm = Normalize(0, float(scaled.max()))
    for axes, phase, matrix in zip(both, PHASES, scaled, strict=True):
        axes.set_title(phase)
        draw_matrix(axes, matrix, norm, node)
    runs = ", mean of runs" if result.replications > 1 else ""
    bar = figure.colorbar(
        ScalarMappable(norm, COLOURED),
        ax=list(both),
        pad=0.015,
        aspect=28,
        shrink=0.82,
        label=f"sent in the whole run ({unit}{runs})",
    )
    bar.outline.set_visible(False)
    return figure


def draw_matrix(axes: Axes, matrix: Floats, norm: Normalize, node: Ints) -> None:
    """Draw what each GPU sent to each, with lines between nodes."""
    shown = np.ma.masked_equal(matrix, 0)
    axes.imshow(shown, cmap=COLOURED, norm=norm, interpolation="nearest")
    label_axes(axes, "to GPU", "from GPU")
    for edge in np.flatnonzero(np.diff(node)) + 0.5:
        axes.axhline(edge, color=INK, lw=0.9)
        axes.axvline(edge, color=INK, lw=0.9)


def nodes_of(result: Result, gpus: int) -> Ints:
    """Return ``(G,)``: the node of each GPU."""
    table = result.gpus.drop_duplicates("gpu").sort_values("gpu")
    return table["node"].to_numpy() if len(table) else np.zeros(gpus, np.int64)


def traffic_title(sent: Floats, node: Ints) -> str:
    """Return the message: how much was moved, and how much of it between nodes."""
    total = float(sent.sum())
    if node.max(initial=0) > node.min(initial=0):
        far = float(sent[:, node[:, None] != node].sum())
        return f"{format_bytes(total)} moved, {100 * far / total:.0f} % of it between nodes"
    phase, source, target = np.unravel_index(int(sent.argmax()), sent.shape)
    most = format_bytes(float(sent.max()))
    return (
        f"{format_bytes(total)} moved; most from GPU {source} to GPU {target}: "
        f"{most} in {PHASES[phase]}"
    )


def label_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Label a matrix with whole numbers, without grid lines."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(FAINT)
    steps = [1, 2, 4, 8, 10]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            MaxNLocator(integer=True, nbins=9, steps=steps, min_n_ticks=1)
        )
