"""One of the checks that a scenario has to pass."""

from collections.abc import Callable
from dataclasses import dataclass

from moesim.scenario.schema import Sections
from moesim.scenario.tree import Location


@dataclass(frozen=True, slots=True)
class Check:
    """Something to make or to compare.

    Parameters
    ----------
    at : Location
        Where its problems are shown; their keys are relative to it.
    run : callable
        Raises `InputError` when the scenario is wrong.
    reads : tuple of Location
        What else it depends on: it is skipped when that is wrong.
    tells : tuple of str
        Problems whose dotted key begins with one of these name the places in `reads`,
        with their lines; default all.
    """

    at: Location
    run: Callable[[Sections], object]
    reads: tuple[Location, ...] = ()
    tells: tuple[str, ...] = ("",)
