"""What a run and a comparison give back: tables, numbers with intervals, figures.

Axes: ``R`` replications, ``P`` phases (dispatch, combine), ``G`` GPUs, ``L`` MoE
layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from math import nan
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moesim.measure.figures import ComparisonFigures, ResultFigures
from moesim.measure.intervals import student_interval
from moesim.measure.residency import Arrays
from moesim.measure.show import plain, result_html, result_line, table_html
from moesim.measure.tables import Tables, TableSet
from moesim.types import Floats, Ints

if TYPE_CHECKING:
    from pandas import DataFrame


NOT_AVERAGED: Final = frozenset({"run_number", "seed", "replication"})
"""Numbers of a record that name the replication instead of measuring it."""


@dataclass(frozen=True, eq=False)
class Result:
    """One scenario under one policy, as many times as it was repeated.

    Parameters
    ----------
    tables : TableSet
        What was recorded, as data frames; also at hand as `requests`, `experts`, ....
    summaries : sequence of dict
        One record of metrics per replication, in vLLM's key names.
    manifest : dict
        How the run came about: scenario name, date, versions, seed, host, wall time.
    scenario_text : str
        The scenario with every default filled in, as YAML.
    traffic : (R, P, G, G) array of float
        Bytes sent from GPU to GPU, hop by hop, in each phase.
    rank_load : (R, L, G) array of int
        Tokens that experts on each GPU computed.
    where : Path or None
        The folder that holds the run, when it was saved.
    figures : callable or None
        Makes the object behind `plot` from this result.
    residency : mapping of str to array
        Hits and loads of experts by layer and GPU (`moesim.measure.residency`); empty
        where all are always in device memory.
    """

    tables: TableSet
    summaries: Sequence[Mapping[str, Any]]
    manifest: Mapping[str, Any]
    scenario_text: str
    traffic: Floats
    rank_load: Ints
    where: Path | None = None
    figures: "Callable[[Result], ResultFigures] | None" = None
    residency: Arrays = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the finished tables, not what they are made from."""
        made = {item.name: getattr(self.tables, item.name) for item in fields(Tables)}
        return {**vars(self), "tables": Tables(**made)}

    @property
    def requests(self) -> "DataFrame":
        """One row per request: when it arrived, started, ended, and its latencies."""
        return self.tables.requests

    @property
    def gaps(self) -> "DataFrame":
        """One row per pair of consecutive output tokens of a request; may be empty."""
        return self.tables.gaps

    @property
    def passes(self) -> "DataFrame":
        """One row per forward pass: its tokens and where its time went."""
        return self.tables.passes

    @property
    def experts(self) -> "DataFrame":
        """One row per layer and expert: tokens, jobs, and how long jobs waited."""
        return self.tables.experts

    @property
    def gpus(self) -> "DataFrame":
        """One row per GPU: what it was busy with, and its KV cache."""
        return self.tables.gpus

    @property
    def links(self) -> "DataFrame":
        """One row per port, direction and phase: bytes and busy time."""
        return self.tables.links

    @property
    def memory(self) -> "DataFrame":
        """One row per GPU and bin of time: what filled it; empty unless watched."""
        return self.tables.memory

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.manifest.get("scenario", "run"))

    @property
    def replications(self) -> int:
        """How often the scenario was run, ``R``."""
        return len(self.summaries)

    @property
    def summary(self) -> dict[str, Any]:
        """Means over replications of the numbers; the first value of all else."""
        first = self.summaries[0]
        return {key: self._mean(key) for key in first if key not in NOT_AVERAGED}

    @property
    def ci95(self) -> dict[str, tuple[float, float]]:
        """95 % Student-t interval of each number's mean; empty for one replication."""
        if self.replications < 2:
            return {}
        keys = [key for key in self.summary if self._is_number(key)]
        return {key: student_interval(self._values(key)) for key in keys}

    @property
    def plot(self) -> ResultFigures:
        """The figures of this result, as methods.

        Raises
        ------
        RuntimeError
            If the result was made without figures.
        """
        if self.figures is None:
            raise RuntimeError("no figures here: use moesim.plot.figures.Plots(result)")
        return self.figures(self)

    def _values(self, key: str) -> list[float]:
        found = (record.get(key) for record in self.summaries)
        return [nan if value is None else float(value) for value in found]

    def _is_number(self, key: str) -> bool:
        value = next((r[key] for r in self.summaries if r.get(key) is not None), None)
        return isinstance(value, Real) and not isinstance(value, bool)

    def _mean(self, key: str) -> object:
        first = next((r[key] for r in self.summaries if r.get(key) is not None), None)
        same = all(record.get(key) == first for record in self.summaries)
        if same or not self._is_number(key):
            return first
        return sum(self._values(key)) / self.replications

    def __repr__(self) -> str:
        """Return one line: the scenario, its size, and its headlines."""
        return result_line(self.name, self.replications, self.summary)

    def _repr_html_(self) -> str:
        """Return the latencies and rates as small HTML tables."""
        times = f"{self.replications} replication{'s' * (self.replications > 1)}"
        numbers = result_html(self.summary, self.ci95)
        return f"<b>{escape(self.name)}</b> · {times}{numbers}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One scenario under several policies that met the same traffic.

    Parameters
    ----------
    rows : sequence of dict
        One record per metric and policy: means and the paired difference from the
        baseline with its interval.
    policies : sequence of str
        Names of the policies, the baseline among them.
    baseline : str
        The policy that the others are measured against.
    replications : int
        Runs of each policy, ``R``; run ``r`` of every policy met the same traffic.
    results : dict of Result
        The runs of each policy.
    where : Path or None
        The folder that holds the comparison, when it was saved.
    figures : callable or None
        Makes the object behind `plot` from this comparison.
    empty : sequence of str
        Metrics that were asked for but had no value in some run of every pair.
    """

    rows: Sequence[Mapping[str, Any]]
    policies: Sequence[str]
    baseline: str
    replications: int
    results: Mapping[str, Result]
    where: Path | None = None
    figures: "Callable[[Comparison], ComparisonFigures] | None" = None
    empty: Sequence[str] = ()

    @property
    def table(self) -> "DataFrame":
        """The rows as a data frame."""
        from pandas import DataFrame

        return DataFrame([dict(row) for row in self.rows])

    @property
    def plot(self) -> ComparisonFigures:
        """The figures of this comparison, as methods.

        Raises
        ------
        RuntimeError
            If the comparison was made without figures.
        """
        if self.figures is None:
            raise RuntimeError(
                "no figures here: use moesim.plot.figures.ComparisonPlots(comparison)"
            )
        return self.figures(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain data: the rows, and each policy's summary."""
        return {
            "baseline": self.baseline,
            "empty": list(self.empty),
            "policies": list(self.policies),
            "replications": self.replications,
            "rows": [dict(row) for row in self.rows],
            "summaries": {
                name: {**result.summary, "ci95": result.ci95}
                for name, result in self.results.items()
            },
        }

    def __repr__(self) -> str:
        """Return one line: who was compared, and against whom."""
        names = ", ".join(self.policies)
        return (
            f"Comparison({names}; baseline={self.baseline!r}, "
            f"replications={self.replications})"
        )

    def _repr_html_(self) -> str:
        """Return the rows as an HTML table."""
        head = list(self.rows[0]) if self.rows else []
        return table_html(
            head, [[plain(row.get(key)) for key in head] for row in self.rows]
        )
