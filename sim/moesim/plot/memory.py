"""What fills the fullest GPU over time."""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moesim.measure.result import Result
from moesim.plot.style import BLUES, GREENS, INK, MUTED, ORANGES, canvas, notice, styled
from moesim.types import Floats
from moesim.units import format_binary_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

GIB: Final = 2**30
TITLE: Final = "Memory of the fullest GPU"
SHOWN: Final = 0.6
"""A peak below this share of the limit leaves the limit out of the picture."""
TOTAL: Final = ("weights_bytes", "kv_pool_bytes", "buffers_bytes", "activations_bytes")


class Layer(NamedTuple):
    """A band of the stack: its name, colour and hatch."""

    name: str
    colour: str
    hatch: str = ""


LAYERS: Final = (
    Layer("weights", BLUES[0]),
    Layer("KV blocks in use", GREENS[0], "...."),
    Layer("KV blocks free", "#e3efe9"),
    Layer("all-to-all buffers", ORANGES[0], "////"),
    Layer("activations", ORANGES[2]),
)
"""From the bottom up; the pool is there whole from the start."""


@styled
def memory(result: Result) -> Figure:
    """Return the stack of what filled the fullest GPU, and its limit."""
    rows = fullest(result.memory)
    if rows is None:
        return notice(TITLE, "Nobody watched: the scenario has no section memory.")
    figure, axes = canvas(headline(rows))
    at, bands = steps(rows)
    top = np.zeros(len(at))
    for layer, band in zip(LAYERS, bands, strict=True):
        axes.fill_between(
            at,
            top,
            top + band,
            step="post",
            facecolor=layer.colour,
            hatch=layer.hatch,
            edgecolor="white",
            lw=0,
        )
        top = top + band
    highest = float(top.max())
    limit = float(rows["limit_bytes"].iloc[0]) / GIB
    if highest >= SHOWN * limit:
        highest = max(limit, highest)
        axes.axhline(limit, color=INK, lw=1.4)
        axes.annotate(
            "limit", (0.002, limit), xycoords=("axes fraction", "data"), va="bottom"
        )
    axes.set_xlim(0, float(at[-1]) or 1.0)
    axes.set_ylim(0, 1.08 * highest)
    axes.set_xlabel("simulated time (s)")
    axes.set_ylabel("GiB")
    keys = [
        Patch(fc=layer.colour, hatch=layer.hatch, ec="white", lw=0, label=layer.name)
        for layer in LAYERS
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=len(keys))
    axes.tick_params(axis="x", color=MUTED)
    return figure


def fullest(table: "DataFrame") -> "DataFrame | None":
    """Return the rows of the GPU and run with the largest peak, if there are any."""
    if not len(table):
        return None
    total = table[list(TOTAL)].sum(axis=1)
    worst = table.iloc[int(total.to_numpy().argmax())]
    mine = (table["gpu"] == worst["gpu"]) & (
        table["replication"] == worst["replication"]
    )
    return table[mine]


def steps(rows: "DataFrame") -> tuple[Floats, list[Floats]]:
    """Return the edges of the bins in seconds, and the GiB of each of `LAYERS`."""
    at = rows["at_s"].to_numpy()
    width = at[1] - at[0] if len(at) > 1 else 0.0
    used = rows["kv_used_bytes"]
    found = (
        rows["weights_bytes"],
        used,
        rows["kv_pool_bytes"] - used,
        rows["buffers_bytes"],
        rows["activations_bytes"],
    )
    bands = [band.to_numpy(float) / GIB for band in found]
    edges = np.append(at, at[-1] + width)
    return edges, [np.append(band, band[-1]) for band in bands]


def headline(rows: "DataFrame") -> str:
    """Return the message: how full the GPU was at most, and what with."""
    total = rows[list(TOTAL)].sum(axis=1)
    peak = rows.iloc[int(total.to_numpy().argmax())]
    most, limit = float(total.max()), float(peak["limit_bytes"])
    moving = float(peak["buffers_bytes"] + peak["activations_bytes"])
    pool = float(peak["kv_pool_bytes"]) or 1.0
    used = float(rows["kv_used_bytes"].max()) / pool
    beyond = " (the limit, above the picture)" if most < SHOWN * limit else ""
    return (
        f"GPU {int(peak['gpu'])} is fullest: {format_binary_bytes(most)} of "
        f"{format_binary_bytes(limit)}{beyond}, "
        f"{format_binary_bytes(moving)} of it activations "
        f"and buffers; at most {100 * used:.0f} % of KV blocks are in use"
    )
