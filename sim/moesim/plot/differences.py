"""How policies differ from the baseline, with the intervals that decide."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from moesim.measure.compare import higher_is_better
from moesim.measure.result import Comparison
from moesim.plot.style import COLOURS, INK, MARKERS, canvas, notice, styled

VERDICTS = {"better": "full", "worse": "full", "no difference": "none"}
"""How a marker is filled: open where the interval contains no difference."""


@styled
def differences(comparison: Comparison) -> Figure:
    """Return every metric's relative paired difference from the baseline."""
    rows = [row for row in comparison.rows if row["relative"] is not None]
    if not rows:
        return notice("Paired differences", "no metric has a value under every policy")
    others = [name for name in comparison.policies if name != comparison.baseline]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    figure, axes = canvas(headline(rows, comparison.baseline), 1.8 + 0.5 * len(metrics))
    for number, policy in enumerate(others):
        shift = 0.62 * ((number + 0.5) / len(others) - 0.5)
        mine = [row for row in rows if row["policy"] == policy]
        draw_policy(axes, mine, metrics, (policy, number, shift))
    axes.axvline(0, color=INK, linewidth=1.0)
    axes.set_yticks(range(len(metrics)), [label_of(metric) for metric in metrics])
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(
        f"difference from {comparison.baseline}, {comparison.replications} paired runs; "
        "bars: 95 % intervals, Holm-corrected; open marker: no difference"
    )
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=min(len(others), 5))
    return figure


def draw_policy(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    style: tuple[str, int, float],
) -> None:
    """Draw one policy's differences; `style` is its name, number and vertical shift."""
    policy, number, shift = style
    colour, marker = COLOURS[number % 6], MARKERS[number % 6]
    for place, row in enumerate(rows):
        base = abs(row["baseline"])
        reach = [
            [(row["difference"] - row["low"]) / base],
            [(row["high"] - row["difference"]) / base],
        ]
        axes.errorbar(
            row["difference"] / base,
            metrics.index(row["metric"]) + shift,
            xerr=reach,
            color=colour,
            marker=marker,
            markersize=6,
            fillstyle=VERDICTS[row["verdict"]],
            capsize=2.5,
            linewidth=1.4,
            label=policy if place == 0 else None,
        )


def headline(rows: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """Return the message: the largest certain improvement, or that there is none."""
    good = [row for row in rows if row["verdict"] == "better"]
    if not good:
        return f"No policy is certainly better than {baseline} in any of these metrics"
    best = max(good, key=lambda row: abs(row["relative"]))
    return (
        f"{best['policy']} improves {label_of(best['metric'])} by "
        f"{abs(best['relative']):.1%} over {baseline}"
    )


def label_of(metric: str) -> str:
    """Return a metric's key as people say it, with the direction that is good.

    >>> label_of("p99_ttft_ms"), label_of("request_throughput")
    ('p99 ttft', 'request throughput (more is better)')
    """
    words = metric.removesuffix("_ms").replace("_", " ")
    return f"{words} (more is better)" if higher_is_better(metric) else words
