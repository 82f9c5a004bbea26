"""Checks of what a person gives, collected so that every mistake shows at once."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from moesim.errors import InputError, Problem, shown
from moesim.types import Ints

LONGEST = 1_000_000_000
"""Tokens of the longest sequence that is believed."""
SLOWEST, FASTEST = 1e-6, 1e9
"""Requests per second of the slowest rate, one in eleven days, and the fastest."""


def refuse(problems: Iterable[Problem]) -> None:
    """Raise `InputError` with all problems, if there are any."""
    if found := list(problems):
        raise InputError(found)


def check_number(key: str, value: object, low: float, high: float) -> list[Problem]:
    """Return a problem unless `value` is a number from `low` to `high` inclusive."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and low <= value <= high:  # type: ignore[operator]
        return []
    expected = f"expected a number from {low:g} to {high:g}"
    return [Problem(f"{expected}; got {shown(value)}", key=key)]


def check_whole(
    key: str, value: object, low: int, high: int = LONGEST
) -> list[Problem]:
    """Return a problem unless `value` is a whole number from `low` to `high`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value <= high:  # type: ignore[operator]
        return []
    message = f"expected a whole number from {low} to {high}; got {shown(value)}"
    return [Problem(message, key=key)]


def check_rate(key: str, value: object) -> list[Problem]:
    """Return a problem unless `value` is requests per second; infinity is one."""
    if value == np.inf:
        return []
    problems = check_number(key, value, SLOWEST, FASTEST)
    return [
        replace(problem, message=f"{problem.message} (or inf)") for problem in problems
    ]


def as_lengths(key: str, values: Sequence[int] | Ints) -> Ints:
    """Return `values` as an array of its own.

    Raises
    ------
    InputError
        Unless there is one value at least, each a whole number from 1 to `LONGEST`.
    """
    try:
        array = np.array(values)
    except ValueError:  # lists of unequal length
        array = np.empty(0)
    if array.ndim != 1 or not array.size:
        refuse([Problem("expected at least one length in a flat list", key=key)])
    if array.dtype.kind not in "iu":
        refuse([Problem(f"expected whole numbers; got {array.dtype}", key=key)])
    bad = np.flatnonzero((array < 1) | (array > LONGEST))
    if len(bad):
        found = f"got {array[bad[0]]} at position {bad[0]}"
        refuse([Problem(f"expected lengths from 1 to {LONGEST}; {found}", key=key)])
    return array.astype(np.int64)
