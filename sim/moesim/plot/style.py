"""The look of every figure: one size, one font, readable in colour and in grey.

Nothing here touches pyplot: a figure belongs to whoever asked for it, and the reader's
own settings neither change our pictures nor are changed by them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any, Final, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

P = ParamSpec("P")

WIDTH_IN: Final = 8.0
HEIGHT_IN: Final = 4.5
TITLE_CHARACTERS: Final = 76
"""As many as fit on one line of a title."""
INK, MUTED, FAINT, SHADE, EMPTY = "#222222", "#666666", "#d9d9d9", "#f5f6f8", "#eceff3"
COLOURS: Final = ("#0b4f8a", "#e07b28", "#2f9e77", "#8a4fa0", "#b59a00", "#5f6b73")
"""Colours of series; each is told from its neighbours by lightness as well."""
BLUES: Final = ("#0b4f8a", "#4f8fc7", "#a5c8e6")
ORANGES: Final = ("#d1651a", "#f0a860", "#f5cda5")
GREENS: Final = ("#1f7d5c", "#6cbf9f")
"""Shades of one kind of thing, the darkest first."""
LINES: Final[tuple[Any, ...]] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
)
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
HEAT: Final = "YlOrRd"
"""Colour map of heat maps: the hotter the darker, in grey too."""

SETTINGS: Final[Mapping[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.0,
    "figure.dpi": 120.0,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.9,
    "svg.hashsalt": "moesim",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


class Picture(Figure):
    """A figure that shows itself in a notebook without pyplot being loaded."""

    def _repr_png_(self) -> bytes:
        """Return the figure as a PNG."""
        return png(self)


def our_settings() -> AbstractContextManager[None]:
    """Return a context in which matplotlib's defaults and `SETTINGS` hold."""
    default = mpl.rcParamsDefault
    kept: dict[Any, Any] = {
        key: default[key] for key in default if not key.startswith("backend")
    }
    return mpl.rc_context(kept | dict(SETTINGS))


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Return `draw` under our settings, whatever the reader's own are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with our_settings():
            return draw(*args, **kwargs)

    return drawn


def canvas(title: str, height_in: float = HEIGHT_IN) -> tuple[Picture, Axes]:
    """Return a titled figure with one empty pair of axes."""
    figure, (axes,) = panels(title, [1], height_in)
    return figure, axes


def panels(
    title: str, widths: Sequence[float], height_in: float = HEIGHT_IN
) -> tuple[Picture, list[Axes]]:
    """Return a titled figure with axes side by side, as wide as `widths` says."""
    figure = Picture(figsize=(WIDTH_IN, height_in), layout="constrained")
    lines = fill(title, TITLE_CHARACTERS)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    row = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)
    return figure, list(row[0])


def notice(title: str, reason: str) -> Picture:
    """Return a figure that says why there is nothing to see."""
    figure, axes = canvas(title)
    axes.set_axis_off()
    axes.text(0.5, 0.5, reason, ha="center", va="center", color=MUTED, fontsize=12)
    return figure


def png(figure: Figure) -> bytes:
    """Return `figure` as a PNG that carries neither date nor software name."""
    buffer = BytesIO()
    with our_settings():
        canvas_of: Any = FigureCanvasAgg(figure)
        canvas_of.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def save(figures: Mapping[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Draw each figure and write it to ``folder/<name>.png``; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, draw in zip(paths, figures.values(), strict=True):
        path.write_bytes(png(draw()))
    return paths
