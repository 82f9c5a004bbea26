"""Where the time of a forward pass goes."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moesim.measure.result import Result
from moesim.plot.style import COLOURS, canvas, notice, styled
from moesim.plot.text import duration
from moesim.types import Floats


class Part(NamedTuple):
    """A part of a pass: its column, its name, and what kind of time it is."""

    column: str
    name: str
    kind: str


PARTS: Final = (
    Part("attention_s", "attention", "computing"),
    Part("queue_s", "queueing", "waiting"),
    Part("experts_s", "experts", "computing"),
    Part("lm_head_s", "LM head", "computing"),
    Part("dispatch_s", "dispatch", "moving tokens"),
    Part("combine_s", "combine", "moving tokens"),
    Part("straggler_s", "straggler", "waiting"),
)
KINDS: Final = {
    "computing": (COLOURS[0], ""),
    "moving tokens": (COLOURS[2], ".."),
    "waiting": (COLOURS[1], "////"),
}
"""Colour and hatch of each kind of time."""


@styled
def breakdown(result: Result) -> Figure:
    """Return the shares of a mean pass as bars, longest kind of time named in the title."""
    return compared_breakdown({result.name: result})


@styled
def compared_breakdown(results: Mapping[str, Result]) -> Figure:
    """Return one stacked bar per result: milliseconds of each part of a mean pass."""
    spent = {name: mean_parts(result) for name, result in results.items()}
    if not any(parts.sum() > 0 for parts in spent.values()):
        return notice("Where a pass spends its time", "no pass has finished")
    first = next(iter(spent.values()))
    figure, axes = canvas(headline(first), 1.9 + 0.62 * len(spent))
    for row, parts in enumerate(spent.values()):
        draw_bar(axes, row, parts)
    axes.set_yticks(range(len(spent)), list(spent))
    axes.set_ylim(len(spent) - 0.45, -0.55)
    axes.set_xlabel("time of a pass, mean over passes and GPUs (ms)")
    axes.grid(visible=False, axis="y")
    keys = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=kind)
        for kind, (colour, hatch) in KINDS.items()
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    return figure


def mean_parts(result: Result) -> Floats:
    """Return milliseconds of each of `PARTS` in a mean pass."""
    columns = [part.column for part in PARTS]
    if not len(result.passes):
        return np.zeros(len(columns))
    return result.passes[columns].mean().to_numpy() * 1e3


def headline(parts: Floats) -> str:
    """Return the message: the kind of time that takes most of a pass."""
    kinds = {
        kind: sum(
            ms for part, ms in zip(PARTS, parts, strict=True) if part.kind == kind
        )
        for kind in KINDS
    }
    most = max(kinds, key=lambda kind: kinds[kind])
    share = kinds[most] / max(float(parts.sum()), 1e-300)
    return f"A pass takes {duration(float(parts.sum()))}, {share:.0%} of it {most}"


def draw_bar(axes: Axes, row: int, parts: Floats) -> None:
    """Draw one stacked bar, naming every part that has room for its name."""
    left, total = 0.0, float(parts.sum())
    for part, ms in zip(PARTS, parts, strict=True):
        colour, hatch = KINDS[part.kind]
        axes.barh(
            row, ms, 0.62, left, color=colour, hatch=hatch, edgecolor="white", alpha=0.9
        )
        if ms > 0.075 * total:
            text = f"{part.name}\n{ms / total:.0%}"
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
            middle = left + ms / 2
            axes.text(
                middle, row, text, ha="center", va="center", fontsize=7.5, bbox=box
            )
        left += ms
