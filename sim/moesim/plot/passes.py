"""Where the time of a forward pass goes."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moesim.measure.result import Result
from moesim.plot.style import BLUES, GREENS, INK, MUTED, ORANGES, canvas, notice, styled
from moesim.plot.text import duration
from moesim.types import Floats


class Part(NamedTuple):
    """A part of a pass: its column, name, kind of time, colour and hatch."""

    column: str
    name: str
    kind: str
    colour: str
    hatch: str = ""


PARTS: Final = (
    Part("attention_s", "attention", "computing", BLUES[0]),
    Part("dispatch_s", "dispatch", "moving tokens", GREENS[0], "...."),
    Part("queue_s", "waiting in queues", "waiting", ORANGES[0], "////"),
    Part("experts_s", "experts", "computing", BLUES[1]),
    Part("combine_s", "combine", "moving tokens", GREENS[1], "...."),
    Part("straggler_s", "waiting for stragglers", "waiting", ORANGES[1], "\\\\\\\\"),
    Part("lm_head_s", "LM head", "computing", BLUES[2]),
)
"""In the order in which a layer meets them; columns sum to the pass."""
KINDS: Final = tuple(dict.fromkeys(part.kind for part in PARTS))
TITLE: Final = "Time of a pass"
NAMED: Final = 0.06
"""Parts of at least this share have it written inside a stacked bar."""


@styled
def breakdown(result: Result) -> Figure:
    """Return a mean pass, a step for each part: where the time goes, in ms and %."""
    parts = mean_parts(result)
    total = float(parts.sum())
    if not total:
        return notice(TITLE, "No pass has finished.")
    figure, axes = canvas(headline(parts), 3.6)
    starts = parts.cumsum() - parts
    for row, (part, start, ms) in enumerate(zip(PARTS, starts, parts, strict=True)):
        draw(axes, row, part, (float(start), float(ms)))
        axes.annotate(
            f"{duration(float(ms))} · {percent(float(ms) / total)}",
            (start + ms, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    rows = np.arange(len(PARTS) - 1)
    axes.vlines(starts[1:], rows + 0.36, rows + 0.64, color=MUTED, lw=0.8)
    axes.set_yticks(range(len(PARTS)), [part.name for part in PARTS])
    axes.set_xlim(0, total * 1.17)
    finish_axes(axes, len(PARTS))
    return figure


@styled
def compared_breakdown(results: Mapping[str, Result]) -> Figure:
    """Return a stacked bar for each result: milliseconds of each part of a mean pass."""
    spent = {name: mean_parts(result) for name, result in results.items()}
    longest = max(float(parts.sum()) for parts in spent.values())
    if not longest:
        return notice(TITLE, "No pass has finished.")
    figure, axes = canvas(compared_headline(spent), 1.9 + 0.45 * len(spent))
    for row, parts in enumerate(spent.values()):
        draw_stack(axes, row, parts)
    axes.set_yticks(range(len(spent)), list(spent))
    axes.set_xlim(0, longest * 1.1)
    finish_axes(axes, len(spent))
    keys = [
        Patch(fc=part.colour, hatch=part.hatch, ec="white", lw=0, label=part.name)
        for part in PARTS
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=4)
    return figure


def mean_parts(result: Result) -> Floats:
    """Return milliseconds of each of `PARTS` in a mean pass; 0 without passes."""
    columns = [part.column for part in PARTS]
    if not len(result.passes):
        return np.zeros(len(columns))
    return result.passes[columns].mean().to_numpy(np.float64) * 1e3


def by_kind(parts: Floats) -> dict[str, float]:
    """Return milliseconds of each kind of time."""
    pairs = list(zip(PARTS, parts, strict=True))
    return {k: sum(float(ms) for part, ms in pairs if part.kind == k) for k in KINDS}


def headline(parts: Floats) -> str:
    """Return the message: what kinds of time a pass is made of, the largest first."""
    total = float(parts.sum())
    kinds = sorted(by_kind(parts).items(), key=lambda item: -item[1])
    shares = ", ".join(f"{percent(ms / total)} {kind}" for kind, ms in kinds)
    return f"A pass takes {duration(total)}: {shares}"


def compared_headline(spent: Mapping[str, Floats]) -> str:
    """Return the message: under which policies a pass is shortest and longest."""
    totals = {name: float(parts.sum()) for name, parts in spent.items()}
    least = min(totals, key=lambda name: totals[name])
    most = max(totals, key=lambda name: totals[name])
    if totals[least] == totals[most]:
        return f"A pass takes {duration(totals[least])} under every policy"
    return (
        f"A pass takes {duration(totals[least])} under {least}, "
        f"{duration(totals[most])} under {most} (a short pass is no short request)"
    )


def draw_stack(axes: Axes, row: int, parts: Floats) -> None:
    """Draw one stacked bar with the shares of its larger parts and its total."""
    total = float(parts.sum())
    starts = parts.cumsum() - parts
    for part, start, ms in zip(PARTS, starts, parts, strict=True):
        draw(axes, row, part, (float(start), float(ms)))
        if ms >= NAMED * total:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9}
            share = percent(float(ms) / total)
            at = (start + ms / 2, row)
            axes.text(*at, share, ha="center", va="center", fontsize=8, bbox=box)
    axes.annotate(
        duration(total),
        (total, row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
    )


def draw(axes: Axes, row: int, part: Part, span: tuple[float, float]) -> None:
    """Draw one part, from where it starts for as long as it takes."""
    start, ms = span
    axes.barh(
        row,
        ms,
        height=0.72,
        left=start,
        color=part.colour,
        hatch=part.hatch,
        edgecolor="white",
        linewidth=0,
        label=part.name,
    )


def finish_axes(axes: Axes, rows: int) -> None:
    """Give bars of passes their axes, the first on top."""
    axes.set_ylim(rows - 0.45, -0.55)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlabel("time of a pass (ms), mean over passes and GPUs")
    axes.grid(visible=False, axis="y")


def percent(share: float) -> str:
    """Return a share in whole per cent, small ones with a digit more.

    Examples
    --------
    >>> percent(0.274), percent(0.0044)
    ('27 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"
