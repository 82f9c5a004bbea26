"""Run a scenario, compare policies on the same traffic: the Python interface.

All policies of a comparison meet the same seeds, so their differences are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

from moesim.errors import InputError, Problem
from moesim.measure.compare import DEFAULT_METRICS, compare_paired
from moesim.measure.files import read_run, write_comparison, write_run
from moesim.measure.folder import check_target
from moesim.measure.result import Comparison, Result
from moesim.policy.bundle import make_policy
from moesim.replicate import Candidate, Progress, replicate, silent
from moesim.scenario.change import SHORTCUTS
from moesim.scenario.load import Scenario, load
from moesim.scenario.pieces import policy_of, setting_of
from moesim.workers import replicate_all

LEAST_REPLICATIONS = 8
"""A comparison without a word about replications makes this many."""
TRAFFIC = ("model", "name", "replications", "routing", "seed", "warmup", "workload")
"""Sections that decide what arrives, how it routes, and what is measured of it."""


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
    result = replicate(_candidate(given, policy), progress or silent, _figures)
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
        the traffic: what arrives, how it routes, and the seeds. With the policies they
        are two or more.
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
        Fewer than two policies and variants, two of one name, an unknown baseline or
        metric, a variant that changes the traffic, or anything `run` refuses.
    SimulationError
        A simulation could not finish.
    """
    given = _scenario(scenario)
    if isinstance(policies, str) or isinstance(metrics, str):
        raise _refused("policies and metrics are lists, such as ['fifo', 'oldest']")
    _check_out(out)
    if replications is not None and replications < 2:
        raise _refused("an interval needs two replications or more")
    count = replications or max(given.replications, LEAST_REPLICATIONS)
    chosen = _changed(given, replications=count)
    candidates = [_candidate(chosen, policy) for policy in policies]
    candidates += [_variant(chosen, *item) for item in (variants or {}).items()]
    names = _distinct([candidate.name for candidate in candidates])
    first = _baseline(baseline or names[0], names)
    made = replicate_all(candidates, progress or silent, _figures)
    results = dict(zip(names, made, strict=True))
    summaries = {name: list(result.summaries) for name, result in results.items()}
    keys = _metrics(metrics, summaries[first][0])
    comparison = Comparison(
        rows=compare_paired(summaries, first, keys),
        policies=names,
        baseline=first,
        replications=count,
        results=results,
        figures=_comparison_figures,
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
    return read_run(path, _figures)


def _check_out(out: Path | str | None) -> None:
    """Refuse a folder that results must not replace, before anything is simulated."""
    if out is not None:
        check_target(Path(out))


def _scenario(given: Scenario | str | Path) -> Scenario:
    return given if isinstance(given, Scenario) else load(given)


def _changed(scenario: Scenario, **changes: Any) -> Scenario:
    asked = {
        key: int(value) if isinstance(value, Integral) else value
        for key, value in changes.items()
        if value is not None
    }
    return scenario.with_(asked) if asked else scenario


def _candidate(scenario: Scenario, policy: object) -> Candidate:
    """Return the scenario under a policy, which it names itself where a file could."""
    named = isinstance(policy, str) and ":" not in policy
    if named or isinstance(policy, Mapping):
        scenario = scenario.with_({"policy": policy})
        policy = None
    if policy is None:
        return Candidate(scenario, policy_of(scenario))
    return Candidate(scenario, make_policy(policy, setting_of(scenario)))


def _variant(scenario: Scenario, label: str, changes: Mapping[str, Any]) -> Candidate:
    """Return the scenario with other settings, on the same traffic."""
    for key in changes:
        part = str(key).partition(".")[0]
        if part in TRAFFIC or part in SHORTCUTS:
            said = f"variant {label!r} changes {key}: it would meet other traffic; "
            raise _refused(said + "change it for all, with with_() or --set")
    changed = scenario.with_(changes)
    return Candidate(changed, policy_of(changed), label)


def _distinct(names: list[str]) -> list[str]:
    if len(names) < 2:
        raise _refused(f"two policies or more are needed to compare; got {len(names)}")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise _refused(f"policies to compare need different names; {twice[0]!r} twice")
    return names


def _baseline(name: str, names: list[str]) -> str:
    if name not in names:
        raise _refused(f"baseline {name!r} is not one of {', '.join(names)}")
    return name


def _metrics(asked: Sequence[str] | None, record: Mapping[str, Any]) -> list[str]:
    if asked is None:
        goodput = ["request_goodput"] if record["slo"] else []
        one_token = record["mean_tpot_ms"] is None
        shown = [m for m in DEFAULT_METRICS if not (one_token and "_e2el_" in m)]
        return [*shown, *goodput]
    numbers = [k for k, v in record.items() if isinstance(v, int | float)]
    keys = [key if key in numbers else f"{key}_ms" for key in asked]
    unknown = [old for old, key in zip(asked, keys, strict=True) if key not in numbers]
    if unknown:
        close = get_close_matches(unknown[0], numbers, 3, 0.5) or sorted(numbers)
        raise _refused(f"no metric {unknown[0]!r}; did you mean {', '.join(close)}?")
    return keys


def _refused(message: str) -> InputError:
    return InputError([Problem(message)])


def _figures(result: Result) -> Any:
    from moesim.plot.figures import Plots

    return Plots(result)


def _comparison_figures(comparison: Comparison) -> Any:
    from moesim.plot.figures import ComparisonPlots

    return ComparisonPlots(comparison)
