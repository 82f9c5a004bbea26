"""Figures of a diagnosed log, from the record of `moesim.diagnose`.

Axes: ``L`` MoE layers, ``E`` experts of a layer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from moesim.plot.experts import draw_shares, label_cells
from moesim.plot.style import (
    COLOURS,
    HEAT,
    LINES,
    MARKERS,
    MUTED,
    canvas,
    notice,
    panels,
    png,
    styled,
)
from moesim.types import Floats

Record = Mapping[str, Any]
BAND = "#d9d9d9"


def pictures(record: Record, totals: Floats) -> dict[str, bytes]:
    """Return every figure as a PNG, by name.

    Parameters
    ----------
    totals : (L, E) array
        Tokens of each expert.
    """
    figures = {
        "heat_map": heat_map(record, totals),
        "lorenz": lorenz(record, totals),
        "rank_load": rank_load(record),
        "drift": drift(record),
        "across_layers": across_layers(record),
    }
    if record["traffic"] is not None:
        figures["traffic"] = traffic(record)
    return {name: png(figure) for name, figure in figures.items()}


@styled
def heat_map(record: Record, totals: Floats) -> Figure:
    """Return each expert's tokens, relative to an equal share, layer by layer."""
    mean = totals.mean(axis=1, keepdims=True)
    share = np.divide(totals, mean, out=np.full(totals.shape, np.nan), where=mean > 0)
    layer, expert = np.unravel_index(int(np.nanargmax(share)), share.shape)
    name = record["log"]["layers"][int(layer)]
    title = (
        f"Hottest: layer {name}, expert {expert} gets {share[layer, expert]:.1f}× "
        "an equal share of tokens"
    )
    figure, axes = canvas(title, min(max(2.6 + 0.1 * len(share), 3.6), 7.0))
    draw_shares(axes, share)
    label_cells(axes, share)
    axes.set_ylabel("MoE layer, in the log's order")
    return figure


@styled
def lorenz(record: Record, totals: Floats) -> Figure:
    """Return what share of tokens the least popular experts get: a line a layer."""
    over = record["imbalance"]["overall"]
    top = record["imbalance"]["top10_experts"]
    share = over["top10_share_median"]
    figure, axes = canvas(
        f"The {top} most popular experts of a layer get {share:.0%} of its tokens (median)"
    )
    used = totals[totals.sum(axis=1) > 0]
    ordered = np.sort(used, axis=1)
    part = np.cumsum(ordered, axis=1) / ordered.sum(axis=1, keepdims=True)
    part = np.concatenate([np.zeros((len(part), 1)), part], axis=1)
    across = np.linspace(0, 1, part.shape[1])
    for line in part:
        axes.plot(across, line, color=COLOURS[0], lw=0.7, alpha=0.25)
    axes.plot(across, np.median(part, axis=0), color=COLOURS[0], label="median layer")
    axes.plot([0, 1], [0, 1], color=MUTED, ls=LINES[1], lw=1.2, label="perfectly even")
    axes.set_xlabel("share of experts, the least popular first")
    axes.set_ylabel("share of tokens")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    return figure


@styled
def rank_load(record: Record) -> Figure:
    """Return max over mean of the ranks of each layer, sorted, a line an EP size."""
    size = max(record["ranks"], key=int)
    item = record["ranks"][size]
    figure, axes = canvas(
        f"At EP{size} a layer waits for a GPU with {item['max_over_mean_median']:.2f}× "
        "the mean load (median)"
    )
    for at, (name, found) in enumerate(record["ranks"].items()):
        ratio = np.sort(np.array(found["max_over_mean"], float))[::-1]
        axes.plot(
            np.arange(1, len(ratio) + 1),
            ratio,
            color=COLOURS[at % len(COLOURS)],
            marker=MARKERS[at % len(MARKERS)],
            ms=4,
            label=f"EP{name}",
        )
    axes.axhline(1, color=MUTED, lw=1, ls=LINES[1])
    axes.set_xlabel("MoE layers, the most uneven first")
    axes.set_ylabel("busiest GPU over mean")
    axes.set_ylim(bottom=0.9)
    axes.legend()
    return figure


@styled
def drift(record: Record) -> Figure:
    """Return how far each window of the log lies from the one before."""
    found = record["time"]["drift"]
    if found is None:
        return notice("Drift: no data", "Too few steps to tell.")
    moved = found["distance"] > found["by_chance_p95"]
    word = "more than chance" if moved else "no more than chance"
    figure, (left, right) = panels(
        f"From first to second half {found['distance']:.1%} of tokens go elsewhere: {word}",
        [3, 1],
    )
    steps = found["neighbours"]
    left.plot(np.arange(1, len(steps) + 1), steps, color=COLOURS[0], marker="o", ms=3)
    left.set_xlabel("part of the log, against the one before")
    left.set_ylabel("share of tokens that go elsewhere")
    left.set_ylim(bottom=0)
    right.axhspan(0, found["by_chance_p95"], color=BAND, label="by chance, 95 %")
    right.bar([0], [found["distance"]], width=0.5, color=COLOURS[1])
    right.set_xticks([0], ["halves"])
    right.set_xlim(-0.6, 0.6)
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return figure


@styled
def across_layers(record: Record) -> Figure:
    """Return information by distance, and loads of ranks summed over layers."""
    found = record["across_layers"]
    size = max(found["complementarity"], key=int)
    item = found["complementarity"][size]
    figure, (left, right) = panels(
        f"Layers' hot ranks are {item['verdict']} (EP{size})", [1.3, 1]
    )
    gaps = found.get("information") or []
    if gaps:
        across = [entry["gap"] for entry in gaps]
        for at, (key, label) in enumerate(
            (("bits", "first choices, as seen"), ("shuffled", "by chance"))
        ):
            left.plot(
                across,
                [entry[key] for entry in gaps],
                color=COLOURS[at],
                marker=MARKERS[at],
                ls=LINES[at],
                label=label,
            )
        left.set_xlabel("layers apart")
        left.set_ylabel("bits known of the first choice")
        left.set_ylim(bottom=0)
        left.legend()
    else:
        left.set_axis_off()
        left.text(0.5, 0.5, "counts only", ha="center", color=MUTED)
    for at, one in enumerate(found["complementarity"].values()):
        low, high = one["independent_p1"], one["independent_p99"]
        right.plot([at, at], [low, high], color=BAND, lw=9, solid_capstyle="butt")
        right.plot([at], [one["by_layer_median"]], MARKERS[1], color=COLOURS[1])
        right.plot([at], [one["summed"]], MARKERS[0], color=COLOURS[0])
    names = [f"EP{name}" for name in found["complementarity"]]
    right.set_xticks(range(len(names)), names)
    right.set_xlim(-0.6, len(names) - 0.4)
    right.set_ylabel("busiest GPU over mean")
    right.set_xlabel(
        "square: a layer; dot: all layers summed;\ngrey: independent, 98 %"
    )
    return figure


@styled
def traffic(record: Record) -> Figure:
    """Return copies of tokens from each GPU to each, at the largest EP size."""
    size = max(record["traffic"], key=int)
    found = record["traffic"][size]
    pairs = np.array(found["gpu_to_gpu"], float) / max(1, found["tokens"])
    figure, axes = canvas(
        f"EP{size}: GPU {found['hottest_gpu']} receives "
        f"{found['received_max_over_mean']:.2f}× the mean"
    )
    image = axes.pcolormesh(pairs, cmap=HEAT, vmin=0)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_aspect("equal")
    axes.set_xlabel("to GPU")
    axes.set_ylabel("from GPU")
    figure.colorbar(
        image, ax=axes, label="copies for each token of the log, all layers"
    )
    return figure
