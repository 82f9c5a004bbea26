"""What a scenario measures at one point, and how far that is from the closed form."""

from collections.abc import Iterator
from typing import Any

from moesim.measure.result import Result
from moesim.replicate import Progress
from moesim.simulate import run
from moesim.study.closed import closed_form
from moesim.study.parts import Measure

METRICS = ("output_tput_per_gpu", "mean_tpot_ms", "p50_itl_ms", "binding")
"""What is measured when nobody says. The closed form may know others."""
REPLICATIONS = 4
"""How often a measure is run when neither it nor its scenario says more."""


def measured(
    part: Measure, replications: int | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield a row for each metric of a measure.

    Raises
    ------
    InputError, SimulationError
        As `moesim.run`.
    """
    count = replications or part.replications
    count = count or max(part.scenario.replications, REPLICATIONS)
    expected = closed_form(part.scenario) if part.closed_form else {}
    made = run(part.scenario, replications=count, progress=progress)
    for metric in part.metrics or METRICS:
        yield _row(metric, made, expected.get(metric))


def _row(metric: str, made: Result, expected: float | str | None) -> dict[str, Any]:
    """Return what was measured of one metric, and what was to be expected."""
    value = said(made, metric) if metric in made.summaries[0] else None
    low, high = made.ci95.get(metric, (None, None))
    off = None
    if isinstance(expected, float) and isinstance(value, float | int) and expected:
        off = value / expected - 1
    return {
        "metric": metric,
        "value": value,
        "low": low,
        "high": high,
        "closed_form": expected,
        "deviation": off,
        "replications": made.replications,
    }


def said(made: Result, metric: str) -> Any:
    """Return a number's mean over replications, or all the words that were said."""
    words = [record[metric] for record in made.summaries]
    if all(isinstance(word, str) for word in words):
        return " or ".join(dict.fromkeys(words))
    return made.summary[metric]
