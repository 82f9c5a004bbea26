"""The look of every figure: one size, one font, readable in colour and in grey.

Nothing here touches pyplot: a figure belongs to whoever asked for it, and the reader's
own settings neither change our pictures nor are changed by them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, Final, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

P = ParamSpec("P")

WIDTH_IN: Final = 8.0
HEIGHT_IN: Final = 4.5
INK, MUTED, FAINT, EMPTY = "#222222", "#666666", "#d9d9d9", "#eceff3"
COLOURS: Final = ("#0b4f8a", "#e07b28", "#2f9e77", "#8a4fa0", "#b59a00", "#5f6b73")
"""Colours of series; each is told from its neighbours by lightness as well."""
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
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
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
    """Return a figure with one empty, titled pair of axes."""
    figure = Picture(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


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
