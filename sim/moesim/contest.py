"""Who is compared with whom, and in what: all of it checked before anything is simulated.

Problems carry the argument of `moesim.compare` that they are about as their key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moesim.errors import InputError, Problem, closest, meant
from moesim.measure.compare import DEFAULT_METRICS
from moesim.measure.names import METRICS, metric_of, needs_of
from moesim.policy.bundle import make_policy
from moesim.policy.rebalance import Still
from moesim.replicate import Candidate
from moesim.scenario.change import SHORTCUTS
from moesim.scenario.load import Scenario
from moesim.scenario.pieces import policy_of, setting_of
from moesim.scenario.quantities import shown
from moesim.spec.files import type_shown

TRAFFIC = ("model", "name", "replications", "routing", "seed", "warmup", "workload")
"""Sections that decide what arrives, how it routes, and what is measured of it."""
AS_GIVEN = "as it stands"
"""What the scenario without any variant is called among variants."""


@dataclass(frozen=True)
class Contest:
    """Candidates of different names, and what they are compared in.

    Parameters
    ----------
    candidates : sequence of Candidate
        Two or more.
    baseline : str
        The name of the one that the others are measured against.
    metrics : sequence of str or None
        Keys of records; None: what is shown when nobody asks.
    """

    candidates: Sequence[Candidate]
    baseline: str
    metrics: Sequence[str] | None

    @property
    def names(self) -> list[str]:
        """What the candidates are called."""
        return [candidate.name for candidate in self.candidates]

    def shown(self, record: Mapping[str, Any]) -> list[str]:
        """Return the metrics to compare, given a record of the baseline."""
        if self.metrics is not None:
            return list(self.metrics)
        goodput = ["request_goodput"] if record["slo"] else []
        one_token = record["mean_tpot_ms"] is None
        kept = [m for m in DEFAULT_METRICS if not (one_token and "_e2el_" in m)]
        return [*kept, *goodput]


def contest(
    scenario: Scenario,
    policies: Sequence[object],
    variants: Mapping[str, Mapping[str, Any]],
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
) -> Contest:
    """Return who is to be compared with whom, and in what.

    Parameters
    ----------
    scenario, policies, variants, baseline, metrics
        As `moesim.compare` takes them.

    Raises
    ------
    InputError
        As `moesim.compare`, for all that needs no run.
    """
    candidates = [candidate(scenario, policy) for policy in policies]
    if variants and not policies and baseline not in variants:
        candidates = [Candidate(scenario, policy_of(scenario), AS_GIVEN)]
    candidates += [_variant(scenario, *item) for item in variants.items()]
    names = _distinct([one.name for one in candidates])
    first = baseline or names[0]
    if first not in names:
        message = f"{shown(first)} is not one of {', '.join(names)}"
        raise _refused(f"{message}{meant(first, names)}", "baseline")
    keys = None if metrics is None else checked_metrics(metrics)
    if keys == []:
        raise _refused("one metric or more is needed to compare", "metrics")
    refuse_empty(candidates[names.index(first)], keys or ())
    return Contest(candidates, first, keys)


def candidate(scenario: Scenario, policy: object) -> Candidate:
    """Return the scenario under a policy, which it names itself where a file could.

    Raises
    ------
    InputError
        There is no such policy, or the scenario never asks it anything.
    """
    named = isinstance(policy, str) and ":" not in policy
    if named or isinstance(policy, Mapping):
        scenario = scenario.with_({"policy": policy})
        policy = None
    if policy is None:
        return Candidate(scenario, policy_of(scenario))
    made = make_policy(policy, setting_of(scenario))
    if made.only_selects and "lockstep" not in (
        scenario.serving.coupling,
        made.coupling,
    ):
        message = (
            f"policy {made.name!r} only chooses who joins a stage, and there are no "
            "stages: set serving.coupling: lockstep"
        )
        raise _refused(message)
    return Candidate(scenario, made)


def checked_metrics(asked: Sequence[str], known: Sequence[str] = METRICS) -> list[str]:
    """Return the keys of records that names mean.

    Raises
    ------
    InputError
        There is no such metric, or one is given twice.
    """
    keys: list[str] = []
    for name in asked:
        key = metric_of(name, known)
        if key is None:
            near = ", ".join(closest(name, known, 3, 0.5))
            hint = f"did you mean {near}?" if near else "see the keys of result.json"
            raise _refused(f"no metric {shown(name)}; {hint}", "metrics")
        if key in keys:
            raise _refused(f"{key} is given twice", "metrics")
        keys.append(key)
    return keys


def refuse_empty(one: Candidate, metrics: Sequence[str]) -> None:
    """Raise `InputError` if one of these metrics has no value for a candidate."""
    for key in metrics:
        lacking = _lacks(one, key)
        if lacking:
            message = f"{key} has no value here: it needs {lacking}"
            raise _refused(message, "metrics")


def _lacks(one: Candidate, metric: str) -> str:
    """Return what a candidate lacks so that a metric has a value; nothing if unknown."""
    scenario, need = one.scenario, needs_of(metric)
    workload, kernel = scenario.workload, scenario.kernels.shared_experts
    lockstep = "lockstep" in (scenario.serving.coupling, one.policy.coupling)
    missing = {
        "outputs": workload.output_len == {"type": "constant", "value": 1},
        "limits": not scenario.slo.in_ms(),
        "arrivals": "request_rate" not in workload.arrivals,
        "serving.coupling": not lockstep,
        "kernels.shared_experts": kernel not in ("fused", "waterfill"),
        "experts that move": isinstance(one.policy.rebalance, Still),
        "a section residency": scenario.residency is None,
        "a section memory": scenario.memory is None,
    }
    return need if any(no and need.startswith(k) for k, no in missing.items()) else ""


def _variant(scenario: Scenario, label: str, changes: Mapping[str, Any]) -> Candidate:
    """Return the scenario with other settings, on the same traffic."""
    if not isinstance(changes, Mapping):
        message = f"keys and values are expected; got {type_shown(changes)}"
        raise _refused(message, f"variants.{label}")
    for key in changes:
        part = str(key).partition(".")[0]
        if part in TRAFFIC or part in SHORTCUTS:
            said = f"variant {label!r} changes {key}: it would meet other traffic; "
            message = said + "change it for all, with with_() or --set"
            raise _refused(message, f"variants.{label}")
    changed = scenario.with_(changes)
    return Candidate(changed, policy_of(changed), label)


def _distinct(names: list[str]) -> list[str]:
    if len(names) < 2:
        said = "two policies or more, or a variant, are needed to compare"
        raise _refused(f"{said}; got {len(names)}")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        message = f"policies to compare need different names; {twice[0]!r} twice"
        raise _refused(message, "policies")
    return names


def _refused(message: str, key: str = "") -> InputError:
    return InputError([Problem(message, key=key)])
