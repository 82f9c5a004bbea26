"""How long requests are: laws of whole numbers of tokens, each at least 1.

Axis: ``n`` requests, in order of arrival.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from numbers import Integral
from typing import Final, Protocol

import numpy as np

from moesim.errors import InputError, Problem, shown
from moesim.types import Floats, Ints
from moesim.workload.checks import (
    LONGEST,
    as_lengths,
    check_number,
    check_whole,
    refuse,
)

BLOCK = 1 << 16
"""Requests drawn at a time, so that a million need little memory."""


class Lengths(Protocol):
    """A law of lengths."""

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantLength:
    """Always the same length."""

    value: int

    def __post_init__(self) -> None:
        refuse(check_whole("value", self.value, 1))

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens; nothing is drawn."""
        return np.full(n, self.value, np.int64)


@dataclass(frozen=True, slots=True)
class UniformLength:
    """Every whole number from `min` to `max`, both included, equally likely."""

    min: int
    max: int

    def __post_init__(self) -> None:
        refuse(_check_bounds(self.min, self.max))

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""
        return rng.integers(self.min, self.max, n, endpoint=True)


@dataclass(frozen=True, slots=True)
class NormalLength:
    """Normal, rounded, then clipped: values beyond a bound become the bound."""

    mean: float
    std: float
    min: int = 1
    max: int = LONGEST

    def __post_init__(self) -> None:
        mean = check_number("mean", self.mean, 1, LONGEST)
        std = check_number("std", self.std, 0, LONGEST)
        refuse([*mean, *std, *_check_bounds(self.min, self.max)])

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""

        def block(size: int) -> Floats:
            return self.mean + self.std * rng.standard_normal(size)

        return _rounded(block, n, (self.min, self.max))


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Lognormal, rounded, then clipped: the usual shape of prompts and answers.

    Give `mean` and `cv`, or `median` and `sigma`.

    Parameters
    ----------
    mean, cv : float
        Mean before clipping, and standard deviation divided by it.
    median, sigma : float
        Median, and standard deviation of the logarithm.
    min, max : int
        Values beyond become these.
    """

    mean: float | None = None
    cv: float | None = None
    median: float | None = None
    sigma: float | None = None
    min: int = 1
    max: int = LONGEST

    def __post_init__(self) -> None:
        names = ("mean", "cv", "median", "sigma")
        given = tuple(name for name in names if getattr(self, name) is not None)
        if given not in (names[:2], names[2:]):
            found = " and ".join(given) or "nothing"
            message = f"expected mean and cv, or median and sigma; got {found}"
            raise InputError([Problem(message)])
        centre, spread = given
        problems = check_number(centre, getattr(self, centre), 1, LONGEST)
        problems += check_number(spread, getattr(self, spread), 0, 100)
        refuse([*problems, *_check_bounds(self.min, self.max)])

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""
        median, sigma = self.shape

        def block(size: int) -> Floats:
            return median * np.exp(sigma * rng.standard_normal(size))

        with np.errstate(over="ignore"):  # an infinite draw is clipped like any other
            return _rounded(block, n, (self.min, self.max))

    @property
    def shape(self) -> tuple[float, float]:
        """Median, and sigma of the logarithm: ``sigma**2 = log(1 + cv**2)``."""
        if self.mean is None or self.cv is None:
            return float(self.median or 1), float(self.sigma or 0)
        variance = log(1 + self.cv**2)
        return self.mean * exp(-variance / 2), sqrt(variance)


@dataclass(frozen=True, slots=True)
class GeometricLength:
    """Stop after each token with probability ``1 / mean``, then clip."""

    mean: float
    min: int = 1
    max: int = LONGEST

    def __post_init__(self) -> None:
        mean = check_number("mean", self.mean, 1, LONGEST)
        refuse([*mean, *_check_bounds(self.min, self.max)])

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""
        draws = rng.geometric(1 / self.mean, n)
        return np.clip(draws, self.min, self.max, out=draws)


@dataclass(frozen=True, slots=True, eq=False)
class EmpiricalLength:
    """Drawn at random, with replacement, from recorded lengths."""

    values: Ints | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_lengths("values", self.values))

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens."""
        values = np.asarray(self.values)
        return values[rng.integers(0, len(values), n)]


@dataclass(frozen=True, slots=True, eq=False)
class TraceLength:
    """Recorded lengths in their own order: request ``i`` has the ``i``-th."""

    values: Ints | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_lengths("values", self.values))

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return ``(n,)`` numbers of tokens; nothing is drawn.

        Raises
        ------
        InputError
            If fewer were recorded.
        """
        values = np.asarray(self.values)
        if n > len(values):
            raise InputError(
                f"{n} requests asked, but only {len(values)} were recorded"
            )
        return values[:n].copy()


@dataclass(frozen=True, slots=True)
class LogLength:
    """The sequence lengths of the routing log that is replayed.

    `generate` puts a `TraceLength` of them in its place.
    """

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Raise `InputError`: without a routing log there are no lengths."""
        raise InputError(
            "lengths of type 'log' need a routing log that names its sequences"
        )


def lengths(value: "Lengths | int") -> Lengths:
    """Return a law: a bare whole number means that constant."""
    if hasattr(value, "draw"):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return ConstantLength(int(value))
    found = shown(value)
    raise InputError(f"expected a whole number or a law of lengths; got {found}")


def _rounded(draw: Callable[[int], Floats], n: int, bounds: tuple[int, int]) -> Ints:
    """Return `n` draws, rounded, then clipped; a few at a time gives the same draws."""
    lengths = np.empty(n, np.int64)
    for begin in range(0, n, BLOCK):
        part = lengths[begin : begin + BLOCK]
        part[:] = np.clip(np.rint(draw(len(part))), *bounds)
    return lengths


def _check_bounds(low: object, high: object) -> list[Problem]:
    problems = check_whole("min", low, 1) + check_whole("max", high, 1)
    if not problems and low > high:  # type: ignore[operator]
        problems.append(Problem(f"min is {low}, but max is {high}", key="max"))
    return problems


LENGTHS: Final[Mapping[str, Callable[..., Lengths]]] = {
    "constant": ConstantLength,
    "uniform": UniformLength,
    "normal": NormalLength,
    "lognormal": LognormalLength,
    "geometric": GeometricLength,
    "empirical": EmpiricalLength,
    "trace": TraceLength,
    "log": LogLength,
}
"""Every law by its name in a scenario."""
