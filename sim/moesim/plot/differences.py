"""How policies differ from the baseline, with the intervals that decide."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from moesim.measure.compare import higher_is_better, lower_is_better
from moesim.measure.result import Comparison
from moesim.plot.style import (
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    SHADE,
    canvas,
    notice,
    styled,
)

TITLE: Final = "Paired differences"
OPEN: Final = "open: no sure difference"
LEGEND_CHARACTERS: Final = 130
"""As many as fit on one line of a legend."""
ABBREVIATIONS: Final = ("ttft", "tpot", "itl", "e2el", "kv", "gpu", "slo")
"""Words of a metric's key that people write in capitals."""


class Look(NamedTuple):
    """How one policy is drawn: its colour and marker, and its place within a row."""

    policy: str
    colour: str
    marker: str
    shift: float


@styled
def differences(comparison: Comparison) -> Figure:
    """Return each policy's paired difference from the baseline, metric by metric."""
    rows = [row for row in comparison.rows if row["relative"] is not None]
    if not rows:
        return notice(TITLE, "No metric has a number to compare with.")
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    others = [name for name in comparison.policies if name != comparison.baseline]
    step = 0.16 * len(others) + 0.3
    figure, axes = canvas(
        headline(rows, comparison.baseline), 1.7 + step * len(metrics)
    )
    for look in looks(comparison.policies, comparison.baseline):
        mine = [row for row in rows if row["policy"] == look.policy]
        draw_policy(axes, mine, metrics, look)
    finish_axes(axes, metrics)
    axes.set_xlabel(
        f"difference from {comparison.baseline} "
        f"(mean of {comparison.replications} pairs, 95 % interval, Holm-corrected)"
    )
    axes.plot([], [], "o", mfc="white", mec=MUTED, label=OPEN)
    columns = LEGEND_CHARACTERS // (max(len(name) for name in (OPEN, *others)) + 8)
    figure.legend(loc="outside lower left", ncols=max(columns, 1))
    return figure


def looks(policies: Sequence[str], baseline: str) -> list[Look]:
    """Return how each policy but the baseline is drawn, from a row's top to its bottom.

    A policy has the colour that it has among all curves of the comparison.
    """
    others = [name for name in policies if name != baseline]
    return [
        Look(
            policy,
            COLOURS[policies.index(policy) % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            0.7 * ((place + 0.5) / len(others) - 0.5),
        )
        for place, policy in enumerate(others)
    ]


def draw_policy(
    axes: Axes, rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], look: Look
) -> None:
    """Draw one policy's differences; open where the interval contains 0."""
    for row in rows:
        base = abs(row["baseline"])
        middle, height = row["difference"] / base, metrics.index(row["metric"])
        open_ = row["verdict"] == "no difference"
        axes.plot(
            [row["low"] / base, row["high"] / base],
            [height + look.shift] * 2,
            color=look.colour,
            lw=1.6,
            marker="|",
            ms=7,
            mew=1.4,
        )
        axes.plot(
            middle,
            height + look.shift,
            look.marker,
            ms=6.5,
            mew=1.4,
            mec=look.colour,
            mfc="white" if open_ else look.colour,
        )
    axes.plot([], [], look.marker + "-", color=look.colour, lw=1.6, label=look.policy)


def finish_axes(axes: Axes, metrics: Sequence[str]) -> None:
    """Give the differences their zero line, one band a metric, and per cent."""
    axes.axvline(0, color=INK, lw=1.0, zorder=1.5)
    for row in range(0, len(metrics), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=SHADE, zorder=0)
    axes.set_yticks(range(len(metrics)), [label_of(metric) for metric in metrics])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.margins(x=0.06)
    axes.grid(visible=False, axis="y")


def headline(rows: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """Return the message: the largest sure improvement, and what it costs for sure.

    Where nothing is surely better, the largest sure loss is named.
    """
    good = [row for row in rows if row["verdict"] == "better"]
    bad = [row for row in rows if row["verdict"] == "worse"]
    if not good:
        message = f"No policy is surely better than {baseline} in any of these metrics"
        return f"{message}{_losses(bad, '')}".replace("%", " %")
    best = max(good, key=_size)
    own = [row for row in bad if row["policy"] == best["policy"]]
    message = f"{best['policy']} {_change(best)} over {baseline}"
    return f"{message}{_losses(own, best['policy'])}".replace("%", " %")


def _size(row: Mapping[str, Any]) -> float:
    return float(abs(row["relative"]))


def _losses(bad: Sequence[Mapping[str, Any]], policy: str) -> str:
    """Return the largest sure loss and how many more there are, to end a message."""
    if not bad:
        return ""
    worst = max(bad, key=_size)
    who = ", but" if policy else f"; {worst['policy']}"
    others = len([row for row in bad if row["policy"] == worst["policy"]]) - 1
    more = f" (and is worse in {others} more)" if others else ""
    return f"{who} surely {_change(worst)}{more}"


def _change(row: Mapping[str, Any]) -> str:
    base = abs(row["baseline"])
    reach = max(row["high"] - row["difference"], row["difference"] - row["low"])
    return (
        f"{'raises' if row['difference'] > 0 else 'lowers'} {name_of(row['metric'])} by "
        f"{_size(row):.1%} ± {reach / base:.1%}"
    )


def name_of(metric: str) -> str:
    """Return a metric's key as people say it.

    Examples
    --------
    >>> name_of("p99_ttft_ms"), name_of("request_throughput")
    ('p99 TTFT', 'request throughput')
    """
    words = metric.removesuffix("_ms").split("_")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)


def label_of(metric: str) -> str:
    r"""Return a metric's name, and which direction of it is good, if either is.

    Examples
    --------
    >>> label_of("p99_ttft_ms"), label_of("gpu_busy_frac")
    ('p99 TTFT\n(less is better)', 'GPU busy frac')
    """
    name = name_of(metric)
    if higher_is_better(metric):
        return f"{name}\n(more is better)"
    return f"{name}\n(less is better)" if lower_is_better(metric) else name
