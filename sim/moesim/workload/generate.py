"""A workload in a few words, and the requests it means.

Each column comes from a stream of its own, so a change of one law leaves the other
columns as they were, and a longer run begins with the shorter one.
Axis: ``N`` requests, in order of arrival.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.streams import stream
from moesim.types import Ints
from moesim.workload.arrivals import Arrivals
from moesim.workload.checks import check_number, check_whole, refuse
from moesim.workload.lengths import Lengths, LogLength, TraceLength, lengths
from moesim.workload.requests import Requests

CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Phases:
    """Classes come in waves, as real traffic is bursty by domain.

    Parameters
    ----------
    share : float
        Probability that a request takes the class of the phase instead of its own.
    mean_requests : float
        Mean length of a phase in requests; lengths are geometric.
    """

    share: float
    mean_requests: float = 50.0

    def __post_init__(self) -> None:
        share = check_number("share", self.share, 0, 1)
        refuse([*share, *check_number("mean_requests", self.mean_requests, 1, 1e9)])


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What arrives, in words.

    Parameters
    ----------
    num_prompts : int
        How many requests.
    arrivals : Arrivals
        Their law of arrival.
    input_len, output_len : Lengths or int
        Laws of their lengths; a bare number is that constant.
    classes : tuple of (name, weight)
        Classes (domains) of requests; without any, all are ``default``.
    max_concurrency : int
        Requests unfinished at once at most; 0: no limit.
    phases : Phases or None
        Whether classes come in waves; without, each request's class is independent.
    """

    num_prompts: int
    arrivals: Arrivals
    input_len: Lengths | int
    output_len: Lengths | int
    classes: tuple[tuple[str, float], ...] = ()
    max_concurrency: int = 0
    phases: Phases | None = None

    def __post_init__(self) -> None:
        problems = check_whole("num_prompts", self.num_prompts, 1)
        problems += check_whole("max_concurrency", self.max_concurrency, 0)
        for name, weight in self.classes:
            problems += check_number(f"classes.{name}", weight, 0, 1e9)
        refuse([*problems, *_check_names([name for name, _ in self.classes])])
        if self.classes and not sum(weight for _, weight in self.classes):
            raise InputError([Problem("all weights are 0", key="classes")])
        if self.phases is not None and len(self.classes) < 2:
            message = "does nothing: only two classes or more can come in waves"
            raise InputError([Problem(f"{message} (workload.classes)", key="phases")])


def generate(
    spec: WorkloadSpec,
    seed: int,
    sequence_lengths: Sequence[int] | Ints | None = None,
) -> Requests:
    """Return the requests of a workload; the same seed gives the same ones.

    Parameters
    ----------
    spec : WorkloadSpec
        What arrives, in words.
    seed : int
        Seed of all streams.
    sequence_lengths : (N or more,) array of int, optional
        Lengths of the sequences of a routing log, for lengths of type ``log``.

    Raises
    ------
    InputError
        If a trace or log has fewer requests than asked, or lengths of type ``log``
        come without a log.
    """
    n = spec.num_prompts
    inputs = _law(spec.input_len, sequence_lengths)
    outputs = _law(spec.output_len, sequence_lengths)
    names = tuple(name for name, _ in spec.classes)
    return Requests(
        arrival_s=spec.arrivals.times(n, stream(seed, "arrivals")),
        input_tokens=_narrow(inputs.draw(n, stream(seed, "input lengths"))),
        output_tokens=_narrow(outputs.draw(n, stream(seed, "output lengths"))),
        klass=_classes(spec, seed).astype(np.min_scalar_type(max(len(names) - 1, 0))),
        class_names=names or ("default",),
        max_concurrency=spec.max_concurrency,
    )


def _narrow(lengths: Ints) -> NDArray[np.int32]:
    return lengths.astype(np.int32)  # `LONGEST` fits, and so does a sum of two


def _law(value: Lengths | int, recorded: Sequence[int] | Ints | None) -> Lengths:
    if isinstance(value, LogLength) and recorded is not None:
        return TraceLength(recorded)
    return lengths(value)


def _classes(spec: WorkloadSpec, seed: int) -> Ints:
    """Return ``(N,)`` indices into the classes, in waves if the workload has phases."""
    n = spec.num_prompts
    if len(spec.classes) < 2:
        return np.zeros(n, np.int64)
    weights = np.array([weight for _, weight in spec.classes])
    own = _pick(weights, stream(seed, "classes").random(n))
    if spec.phases is None:
        return own
    # One row a request: the prefix of a longer run is the shorter run. What comes
    # before the first start belongs to a phase that begins with request 0.
    begin, which, follow = stream(seed, "phases").random((n, 3)).T
    starts = begin < 1 / spec.phases.mean_requests
    first = np.maximum.accumulate(np.where(starts, np.arange(n), 0))
    return np.where(follow < spec.phases.share, _pick(weights, which)[first], own)


def _pick(weights: np.ndarray, uniform: np.ndarray) -> Ints:
    """Return the class of each number in [0, 1), by cumulative weight."""
    edges = np.cumsum(weights) / weights.sum()
    last = np.flatnonzero(weights)[-1]  # rounding may leave the last edge under 1
    return np.minimum(np.searchsorted(edges, uniform, side="right"), last)


def _check_names(names: Sequence[str]) -> list[Problem]:
    problems = [
        Problem(f"expected letters, digits, . _ or -; got {name!r}", key="classes")
        for name in names
        if not CLASS_NAME.fullmatch(name)
    ]
    if len(set(names)) < len(names):
        problems.append(Problem("a name appears twice", key="classes"))
    return problems
