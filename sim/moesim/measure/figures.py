"""The figures of results; drawn by a later room, so only named here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ResultFigures(Protocol):
    """The figures of one result."""

    def cdf(self, *metrics: str) -> "Figure":
        """Return the latency distribution."""
        ...

    def expert_heatmap(self) -> "Figure":
        """Return each expert's load."""
        ...

    def expert_wait(self) -> "Figure":
        """Return the experts whose jobs wait longest."""
        ...

    def breakdown(self) -> "Figure":
        """Return where the time of a pass goes."""
        ...

    def rank_load(self) -> "Figure":
        """Return each GPU's expert load by layer."""
        ...

    def traffic(self) -> "Figure":
        """Return the bytes sent between each pair of GPUs."""
        ...

    def memory(self) -> "Figure":
        """Return what filled the fullest GPU over time."""
        ...

    def save_all(self, folder: Path) -> Sequence[Path]:
        """Write the figures that go with every run; return their paths."""
        ...


class ComparisonFigures(Protocol):
    """The figures of one comparison."""

    def cdf(self, metric: str = ...) -> "Figure":
        """Return one latency's distribution under each policy."""
        ...

    def differences(self) -> "Figure":
        """Return each policy's paired differences from the baseline."""
        ...

    def breakdown(self) -> "Figure":
        """Return where the time of a pass goes under each policy."""
        ...

    def save_all(self, folder: Path) -> Sequence[Path]:
        """Write the figures that go with every comparison; return their paths."""
        ...
