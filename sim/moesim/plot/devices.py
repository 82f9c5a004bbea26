"""How evenly GPUs are loaded, and who sends how much to whom."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moesim.cost.pass_ import PHASES
from moesim.measure.result import Result
from moesim.plot.style import HEAT, canvas, notice, styled
from moesim.types import Floats
from moesim.units import format_bytes


@styled
def rank_load(result: Result) -> Figure:
    """Return each GPU's expert tokens by layer, relative to the layer's mean."""
    load = result.rank_load.sum(axis=0).astype(float)
    mean = load.mean(axis=1, keepdims=True)
    if not mean.any():
        return notice("Expert load of each GPU", "no token has met an expert")
    relative = np.divide(load, mean, out=np.ones_like(load), where=mean > 0)
    layer, gpu = np.unravel_index(relative.argmax(), relative.shape)
    worst = relative[layer, gpu]
    figure, axes = canvas(
        f"GPU {gpu} carries {worst:.2f} times the mean load in MoE layer {layer}"
    )
    image = axes.imshow(relative, cmap=HEAT, vmin=0, aspect="auto")
    label_axes(axes, "GPU", "MoE layer")
    figure.colorbar(image, label="expert tokens relative to the layer's mean")
    return figure


@styled
def traffic(result: Result) -> Figure:
    """Return the bytes from each GPU to each, for both phases, on one scale."""
    sent = result.traffic.mean(axis=0)
    if not sent.any():
        return notice("Bytes between GPUs", "nothing was sent")
    figure, first = canvas(title_of(sent), 4.3)
    first.remove()
    pair = figure.subplots(1, len(PHASES))
    unit, scale = ("GB", 1e9) if sent.max() >= 1e9 else ("MB", 1e6)
    figure.suptitle(title_of(sent), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    for axes, phase, matrix in zip(pair, PHASES, sent, strict=True):
        image = axes.imshow(matrix / scale, cmap=HEAT, vmin=0, vmax=sent.max() / scale)
        axes.set_title(phase, fontsize=10, fontweight="normal")
        label_axes(axes, "to GPU", "from GPU")
    figure.colorbar(image, ax=list(pair), label=f"sent over the whole run ({unit})")
    return figure


def title_of(sent: Floats) -> str:
    """Return the message: how much was moved, and the share of the busiest pair."""
    phase, source, target = np.unravel_index(sent.argmax(), sent.shape)
    share = sent[phase, source, target] / sent[phase].sum()
    return (
        f"{format_bytes(float(sent.sum()))} moved; the busiest pair, GPU {source} to "
        f"{target}, has {share:.1%} of {PHASES[phase]}"
    )


def label_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Label a matrix of GPUs with whole numbers, without grid lines."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=9, min_n_ticks=1))
