"""When requests arrive: laws with one method, drawn before anything is served.

Axis: ``n`` requests, in order of arrival.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from moesim.errors import Problem
from moesim.types import Floats
from moesim.workload.checks import check_number, check_rate, refuse
from moesim.workload.traces import Trace


class Arrivals(Protocol):
    """A law of arrival times."""

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` seconds, ascending, none before 0."""
        ...


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Independent requests: exponential gaps, the first one from time 0.

    Parameters
    ----------
    request_rate : float
        Requests per second in the long run; infinity: all arrive at 0.
    """

    request_rate: float

    def __post_init__(self) -> None:
        refuse(check_rate("request_rate", self.request_rate))

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` seconds; more requests leave the earlier ones as they are."""
        return _after_gaps(rng.standard_exponential(n), self.request_rate)


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Gamma-distributed gaps, as vLLM's ``--burstiness``.

    Parameters
    ----------
    request_rate : float
        Requests per second in the long run; infinity: all arrive at 0.
    burstiness : float
        Shape of the gaps, whose squared coefficient of variation is ``1 / burstiness``.
        1 is Poisson, less is burstier, more is steadier.
    """

    request_rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        shape = check_number("burstiness", self.burstiness, 1e-3, 1e6)
        refuse([*check_rate("request_rate", self.request_rate), *shape])

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` seconds; more requests leave the earlier ones as they are."""
        gaps = rng.standard_gamma(self.burstiness, n)
        gaps /= self.burstiness
        return _after_gaps(gaps, self.request_rate)


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """One request every ``1 / request_rate`` seconds, the first at 0."""

    request_rate: float

    def __post_init__(self) -> None:
        refuse(check_rate("request_rate", self.request_rate))

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` seconds; nothing is drawn."""
        return np.arange(n) / self.request_rate


@dataclass(frozen=True, slots=True)
class BatchArrivals:
    """All requests at 0; with a limit on concurrency, a closed loop."""

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` zeros; nothing is drawn."""
        return np.zeros(n)


@dataclass(frozen=True, slots=True, eq=False)
class TraceArrivals:
    """The first requests of a recorded trace, at their own pace or another.

    Parameters
    ----------
    trace : Trace
        What was recorded.
    speedup : float
        How many times faster than recorded.
    request_rate : float or None
        If given, time is scaled so that the requests taken have exactly this mean rate.
    """

    trace: Trace
    speedup: float = 1.0
    request_rate: float | None = None

    def __post_init__(self) -> None:
        problems = check_number("speedup", self.speedup, 1e-9, 1e9)
        if self.request_rate is not None:
            problems += check_rate("request_rate", self.request_rate)
            if self.speedup != 1.0:
                message = "give either speedup or request_rate: each sets the pace"
                problems.append(Problem(message, key="speedup"))
        refuse(problems)

    def times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return ``(n,)`` seconds; nothing is drawn.

        Raises
        ------
        InputError
            If the trace has fewer requests, or all at one instant when a rate is asked.
        """
        taken = self.trace.head(n)
        if self.request_rate is not None:
            return taken.at_rate(self.request_rate).arrival_s
        return taken.sped_up(self.speedup).arrival_s


def _after_gaps(gaps: Floats, rate: float) -> Floats:
    """Return the times after gaps of mean 1, sped up to `rate`.

    Scaling the sums, not the gaps, makes the same draws at another rate the same
    traffic on another clock. The gaps' own memory is used: there may be millions.
    """
    np.cumsum(gaps, out=gaps)
    gaps /= rate
    return gaps


ARRIVALS: Final[Mapping[str, Callable[..., Arrivals]]] = {
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "constant": ConstantArrivals,
    "batch": BatchArrivals,
    "trace": TraceArrivals,
}
"""Every law by its name in a scenario."""
