"""What a study is made of: comparisons or measures at their points, or caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moesim.scenario.load import Scenario
from moesim.study.caches import CacheStudy


@dataclass(frozen=True)
class Point:
    """One comparison at one point of its grid.

    Parameters
    ----------
    name : str
        The comparison's.
    at : mapping
        The point: dotted keys and their values.
    scenario : Scenario
        What is simulated there.
    policies, variants, baseline, metrics, replications
        As `moesim.compare` takes them.
    """

    name: str
    at: Mapping[str, Any]
    scenario: Scenario
    policies: Sequence[Any]
    variants: Mapping[str, Mapping[str, Any]]
    baseline: str | None
    metrics: Sequence[str] | None
    replications: int | None


@dataclass(frozen=True)
class Measure:
    """One scenario at one point of a grid, measured and compared with nothing.

    Parameters
    ----------
    name, at, scenario, metrics, replications
        As of a `Point`.
    closed_form : bool
        Whether what is measured is set against the closed form (`study.closed`).
    """

    name: str
    at: Mapping[str, Any]
    scenario: Scenario
    metrics: Sequence[str] | None
    replications: int | None
    closed_form: bool = False


@dataclass(frozen=True)
class Study:
    """A question and all that is done to answer it: one of the three."""

    name: str
    question: str
    points: Sequence[Point] = ()
    measures: Sequence[Measure] = ()
    caches: CacheStudy | None = None
