"""From a scenario and a seed to the parts of one run."""

from dataclasses import dataclass

from moesim.policy.bundle import Policy
from moesim.routing.source import RoutingSource
from moesim.scenario.load import Scenario
from moesim.scenario.pieces import (
    policy_of,
    sequence_lengths,
    serving_of,
    source_of,
    system_of,
    workload_of,
)
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
    system = system_of(scenario)
    source = source_of(scenario, system.model, seed)
    requests = generate(workload_of(scenario), seed, sequence_lengths(source))
    return Parts(
        system=system,
        serving=serving_of(scenario, system),
        source=source,
        requests=requests,
        policy=policy_of(scenario),
    )
