"""A run against the figures of an earlier one."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from moesim.plot.style import COLOURS, INK, canvas, notice, styled


@styled
def against_baseline(
    name: str, now: Mapping[str, float], baseline: Mapping[str, float]
) -> Figure:
    """Return each metric's change from the baseline, in per cent of the baseline.

    Parameters
    ----------
    name : str
        The scenario.
    now, baseline : mapping of str to float
        Metrics of this run and of the one it is held against; those in both are shown.
    """
    shared = [key for key in baseline if key in now and baseline[key]]
    if not shared:
        return notice(f"{name}: no baseline", "no metric is in both")
    change = [now[key] / baseline[key] - 1 for key in shared]
    worst = max(range(len(shared)), key=lambda row: abs(change[row]))
    same = not any(change)
    title = (
        f"{name}: identical to the baseline in {len(shared)} metrics"
        if same
        else f"{name}: {shared[worst]} changed by {change[worst]:+.2%}"
    )
    figure, axes = canvas(title, 1.4 + 0.3 * len(shared))
    axes.barh(range(len(shared)), change, 0.6, color=COLOURS[0], edgecolor=INK)
    axes.axvline(0, color=INK, linewidth=1.0)
    labels = [f"{key}  ({baseline[key]:.4g})" for key in shared]
    axes.set_yticks(range(len(shared)), labels)
    axes.set_ylim(len(shared) - 0.5, -0.5)
    reach = max(0.01, 1.1 * max(abs(value) for value in change))
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("change from the baseline (its value in brackets)")
    axes.grid(visible=False, axis="y")
    return figure
