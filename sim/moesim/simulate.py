"""Run a scenario, compare policies on the same traffic: the Python interface.

Replication ``i`` of a scenario with seed ``s`` is the run with seed ``s + i``; all
policies of a comparison meet the same seeds, so their differences are paired.
"""

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.errors import InputError
from moesim.measure.columns import Recorder
from moesim.measure.compare import compare_paired
from moesim.measure.files import (
    read_run,
    save_comparison,
    save_run,
    write_comparison,
    write_run,
)
from moesim.measure.metrics import summarise
from moesim.measure.result import Comparison, Result
from moesim.measure.tables import Tables, concatenate
from moesim.measure.tabulate import rank_load, tabulate
from moesim.plot.figures import ComparisonPlots, Plots
from moesim.policy.bundle import Policy, make_policy
from moesim.scenario.build import Parts, build
from moesim.scenario.load import load
from moesim.scenario.schema import Scenario

Progress = Callable[[str, float], None]
"""Told what is being done, and the share of it that is done."""
LIBRARIES = ("moesim", "numpy", "pandas", "scipy", "simpy")


def run(
    scenario: Scenario | str | Path,
    *,
    policy: object = None,
    seed: int | None = None,
    replications: int | None = None,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario and return what came of it.

    Parameters
    ----------
    scenario : Scenario or path
        What to simulate.
    policy : str, mapping, class or object, optional
        Overrides the scenario's policy: a name, ``"module:Class"``, a mapping with
        ``name`` and parameters, or anything with a role's method.
    seed, replications : int, optional
        Override the scenario's.
    out : path, optional
        Folder to write the result to; without it nothing is written.
    progress : callable, optional
        Told now and then what is being done and the share that is done.

    Raises
    ------
    InputError
        The scenario, the policy or the folder cannot be used.
    SimulationError
        The simulation could not finish.
    """
    changes = {"seed": seed, "replications": replications}
    chosen = _with_policy(_changed(_scenario(scenario), changes), policy)
    result = _replicate(chosen, progress or _silent)
    if out is None:
        return result
    return replace(result, where=write_run(result, Path(out)))


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[object],
    *,
    replications: int | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a scenario under several policies on the same traffic and compare them.

    Parameters
    ----------
    scenario : Scenario or path
        What to simulate.
    policies : sequence
        Two or more, each as `run` takes one.
    replications : int, optional
        Runs of each policy; default the scenario's, but at least 8.
    baseline : str, optional
        Name of the policy to compare with; default the first.
    metrics : sequence of str, optional
        Keys of ``result.json`` to compare; default latency and throughput.
    out, progress
        As in `run`.

    Raises
    ------
    InputError
        Fewer than two policies, two of one name, an unknown baseline or metric, or
        anything `run` refuses.
    SimulationError
        A simulation could not finish.
    """
    given = _scenario(scenario)
    count = replications or max(given.replications, LEAST_REPLICATIONS)
    chosen = _changed(given, {"replications": count})
    candidates = [_with_policy(chosen, policy) for policy in policies]
    names = _distinct([candidate.policy.name for candidate in candidates])
    first = _baseline(baseline, names)
    results = {
        name: _replicate(candidate, _part(progress or _silent, number, len(names)))
        for number, (name, candidate) in enumerate(zip(names, candidates, strict=True))
    }
    summaries = {name: list(result.summaries) for name, result in results.items()}
    comparison = Comparison(
        rows=compare_paired(summaries, first, _metrics(metrics, summaries[first][0])),
        policies=names,
        baseline=first,
        replications=count,
        results=results,
        figures=ComparisonPlots,
    )
    if out is None:
        return comparison
    return replace(comparison, where=write_comparison(comparison, Path(out)))


def open_run(path: Path | str) -> Result:
    """Return a saved run.

    Raises
    ------
    InputError
        There is no run at `path`, or it is damaged.
    """
    return read_run(path, Plots)
