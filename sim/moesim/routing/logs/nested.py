"""Nested lists of JSON into arrays: whole numbers only, and nothing ragged."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError

LARGEST = 1 << 53
NUMBERS = (int, float)
"""Exact types, so that true and false are none."""


def array_of(value: object, axes: int, what: str) -> NDArray[np.int64]:
    """Return nested lists of whole numbers as an array of that many axes.

    Raises
    ------
    InputError
        Another depth, lists of unequal length, or anything but whole numbers below
        2**53 in size.
    """
    flat, shape = _flattened(value, axes, what)
    for item in flat:
        if type(item) is not int or not -LARGEST < item < LARGEST:
            raise InputError(f"{what} holds {_shown(item)}; whole numbers are expected")
    return np.array(flat, np.int64).reshape(shape)


def numbers_of(value: object, axes: int, what: str) -> NDArray[Any]:
    """Return nested lists of numbers, whole or not, as an array of that many axes.

    Raises
    ------
    InputError
        As `array_of`, but fractions are accepted.
    """
    flat, shape = _flattened(value, axes, what)
    for item in flat:
        if type(item) not in NUMBERS or not -LARGEST < item < LARGEST:
            raise InputError(f"{what} holds {_shown(item)}; numbers are expected")
    return np.array(flat, np.float64).reshape(shape)


def depth_of(value: object) -> int:
    """Return how deep the first items of a list are nested; 0: it is no list."""
    depth = 0
    while isinstance(value, list) and value and depth < 8:
        depth, value = depth + 1, value[0]
    return depth


def _flattened(value: object, axes: int, what: str) -> tuple[list[Any], list[int]]:
    level: list[Any] = [value]
    shape: list[int] = []
    for axis in range(axes):
        if not all(isinstance(item, list) for item in level):
            bad = next(item for item in level if not isinstance(item, list))
            message = f"{what} holds {_shown(bad)} where a list is expected"
            raise InputError(f"{message} (level {axis + 1} of {axes})")
        sizes = {len(item) for item in level}
        if len(sizes) > 1:
            low, high = min(sizes), max(sizes)
            raise InputError(f"{what} holds lists of {low} and of {high} items")
        shape.append(sizes.pop() if sizes else 0)
        level = [inner for item in level for inner in item]
    return level, shape


def _shown(item: object) -> str:
    if isinstance(item, list | dict):
        return f"a {type(item).__name__} of {len(item)} items"
    if isinstance(item, int) and abs(item) >= 1 << 64:
        return "an integer of more than 64 bits"
    return ascii(item)[:60]
