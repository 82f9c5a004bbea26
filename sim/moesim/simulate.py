"""Run a scenario, compare policies on the same traffic: the Python interface.

All policies of a comparison meet the same seeds, so their differences are paired.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from moesim.contest import Contest, candidate, contest
from moesim.errors import InputError, Problem
from moesim.measure.compare import compare_paired
from moesim.measure.files import read_run, write_comparison, write_run
from moesim.measure.folder import check_target
from moesim.measure.result import Comparison, Result
from moesim.replicate import Progress, replicate, silent
from moesim.scenario.load import Scenario, load
from moesim.spec.files import path_of
from moesim.workers import replicate_all

LEAST_REPLICATIONS = 8
"""A comparison without a word about replications makes this many."""


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
    _check_out(out)
    given = _changed(_scenario(scenario), seed=seed, replications=replications)
    result = replicate(candidate(given, policy), progress or silent, _figures)
    if out is None:
        return result
    return replace(result, where=write_run(result, Path(out)))


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[object] = (),
    *,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
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
        Each as `run` takes one.
    variants : mapping of str to mapping, optional
        Other settings of the same scenario by the names to call them, each dotted keys
        and values: ``{"two copies": {"placement.redundant_experts": 8}}``. They keep
        the traffic: what arrives, how it routes, and the seeds. Without policies the
        scenario as it stands is compared too, and the baseline, unless `baseline` names
        a variant.
    replications : int, optional
        Runs of each policy; default the scenario's, but at least 8.
    baseline : str, optional
        Name of the policy or variant to compare with; default the first.
    metrics : sequence of str, optional
        Keys of ``result.json`` to compare; default latency, throughput and goodput.
    out, progress
        As in `run`.

    Raises
    ------
    InputError
        Fewer than two to compare, two of one name, an unknown baseline, a metric that
        is unknown or has no value here, a variant that changes the traffic, or anything
        `run` refuses.
    SimulationError
        A simulation could not finish.
    """
    given = _scenario(scenario)
    for listed in (policies, [] if metrics is None else metrics):
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise _refused("policies and metrics are lists, such as ['fifo', 'oldest']")
    if not isinstance({} if variants is None else variants, Mapping):
        raise _refused("variants are a mapping of names to keys and values")
    _check_out(out)
    if replications is not None and replications < 2:
        raise _refused("an interval needs two replications or more")
    count = replications or max(given.replications, LEAST_REPLICATIONS)
    chosen = _changed(given, replications=count)
    asked = contest(chosen, policies, variants or {}, baseline, metrics)
    made = replicate_all(asked.candidates, progress or silent, _figures)
    comparison = _comparison(asked, count, made)
    if out is None:
        return comparison
    return replace(comparison, where=write_comparison(comparison, Path(out)))


def _comparison(asked: Contest, count: int, made: Sequence[Result]) -> Comparison:
    """Return what came of a contest.

    Raises
    ------
    InputError
        No metric that was asked for has a value in every run of a pair.
    """
    results = dict(zip(asked.names, made, strict=True))
    summaries = {name: list(result.summaries) for name, result in results.items()}
    keys = asked.shown(summaries[asked.baseline][0])
    rows = compare_paired(summaries, asked.baseline, keys)
    there = {row["metric"] for row in rows}
    empty = [key for key in asked.metrics or () if key not in there]
    if not rows:
        said = f"nothing to compare: {', '.join(keys)} have no value here"
        raise _refused("; ".join([said, *_deaths(results)]))
    return Comparison(
        rows=rows,
        policies=asked.names,
        baseline=asked.baseline,
        replications=count,
        results=results,
        figures=_comparison_figures,
        empty=empty,
    )


def _deaths(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield which of those compared ran out of memory, each with its first sum."""
    for name, result in results.items():
        words = [record["oom"] for record in result.summaries if record.get("oom")]
        if words:
            runs = f"{len(words)} of {len(result.summaries)} runs"
            yield f"{name} ran out of memory in {runs}: {words[0]}"


def open_run(path: Path | str) -> Result:
    """Return a saved run.

    Raises
    ------
    InputError
        There is no run at `path`, or it is damaged.
    """
    return read_run(path_of(path, "the path of a saved run"), _figures)


def _check_out(out: Path | str | None) -> None:
    """Refuse a folder that results must not replace, before anything is simulated."""
    if out is not None:
        check_target(path_of(out, "the path of a folder"))


def _scenario(given: Scenario | str | Path) -> Scenario:
    wanted = "a Scenario (moesim.load, moesim.load_text) or the path of its file"
    return given if isinstance(given, Scenario) else load(path_of(given, wanted))


def _changed(scenario: Scenario, **changes: Any) -> Scenario:
    asked = {
        key: int(value) if isinstance(value, Integral) else value
        for key, value in changes.items()
        if value is not None
    }
    return scenario.with_(asked) if asked else scenario


def _refused(message: str) -> InputError:
    return InputError([Problem(message)])


def _figures(result: Result) -> Any:
    from moesim.plot.figures import Plots

    return Plots(result)


def _comparison_figures(comparison: Comparison) -> Any:
    from moesim.plot.figures import ComparisonPlots

    return ComparisonPlots(comparison)
