"""From a scenario and a seed to the parts of one run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moesim.policy.bundle import Policy
from moesim.routing.replay import Log
from moesim.routing.source import RoutingSource
from moesim.scenario.load import Scenario
from moesim.scenario.pieces import (
    policy_of,
    sequence_lengths,
    serving_of,
    source_of,
    workload_of,
)
from moesim.scenario.system import system_of
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System
from moesim.workload.generate import generate
from moesim.workload.requests import Requests


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything an instance is made of."""

    system: System
    serving: ServingSpec
    source: RoutingSource
    requests: Requests
    policy: Policy


def build(scenario: Scenario, seed: int) -> Parts:
    """Return the parts of the run with this seed.

    Raises
    ------
    InputError
        A file has changed since the scenario was loaded, or lengths of type ``log``
        are asked of routing that replays no log.
    """
    return next(builds(scenario, [seed]))


def builds(scenario: Scenario, seeds: Iterable[int]) -> Iterator[Parts]:
    """Yield the parts of the run with each seed; files are read once for all.

    Raises
    ------
    InputError
        As `build` does.
    """
    workload, policy = workload_of(scenario), policy_of(scenario)
    source: RoutingSource | None = None
    for seed in seeds:
        system = system_of(scenario, seed)
        if not isinstance(source, Log):  # a log replays the same whatever the seed
            source = source_of(scenario, system.model, seed)
        yield Parts(
            system=system,
            serving=serving_of(scenario, system),
            source=source,
            requests=generate(workload, seed, sequence_lengths(source)),
            policy=policy,
        )
