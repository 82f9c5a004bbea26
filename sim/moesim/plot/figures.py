"""What ``result.plot`` and ``comparison.plot`` hold: every figure as a method."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from moesim.measure.result import Comparison, Result
from moesim.plot import devices, experts, latency, memory, passes
from moesim.plot.differences import differences
from moesim.plot.style import save

USUAL = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Plots:
    """The figures of one result."""

    result: Result

    def cdf(self, *metrics: str) -> Figure:
        """Return the latency distribution of ``ttft``, ``tpot``, ``itl`` or ``e2el``."""
        return latency.latency_cdf(self.result, metrics or USUAL)

    def expert_heatmap(self) -> Figure:
        """Return each expert's tokens by layer, relative to uniform routing."""
        return experts.expert_heatmap(self.result)

    def expert_wait(self) -> Figure:
        """Return the experts whose jobs wait longest."""
        return experts.expert_wait(self.result)

    def breakdown(self) -> Figure:
        """Return where the time of a pass goes."""
        return passes.breakdown(self.result)

    def rank_load(self) -> Figure:
        """Return each GPU's expert load by layer."""
        return devices.rank_load(self.result)

    def traffic(self) -> Figure:
        """Return the bytes sent between each pair of GPUs."""
        return devices.traffic(self.result)

    def memory(self) -> Figure:
        """Return what filled the fullest GPU over time, if memory was watched."""
        return memory.memory(self.result)

    def save_all(self, folder: Path) -> Sequence[Path]:
        """Write the figures that go with every run; return their paths."""
        shipped = {
            "latency_cdf": self.cdf,
            "expert_heatmap": self.expert_heatmap,
            "expert_wait": self.expert_wait,
            "pass_breakdown": self.breakdown,
        }
        if len(self.result.memory):
            shipped["memory"] = self.memory
        return save(shipped, folder)


@dataclass(frozen=True, slots=True)
class ComparisonPlots:
    """The figures of one comparison."""

    comparison: Comparison

    def cdf(self, metric: str = "ttft") -> Figure:
        """Return one latency's distribution under each policy."""
        return latency.compared_cdf(self.comparison.results, metric)

    def differences(self) -> Figure:
        """Return each policy's paired differences from the baseline."""
        return differences(self.comparison)

    def breakdown(self) -> Figure:
        """Return where the time of a pass goes under each policy."""
        return passes.compared_breakdown(self.comparison.results)

    def save_all(self, folder: Path) -> Sequence[Path]:
        """Write the figures that go with every comparison; return their paths."""
        shipped = {
            "cdf_ttft": self.cdf,
            "cdf_e2el": lambda: self.cdf("e2el"),
            "differences": self.differences,
            "pass_breakdown": self.breakdown,
        }
        return save(shipped, folder)
