"""Plain data that remembers where each key and value was written."""

from dataclasses import dataclass, field
from typing import Any

from moesim.errors import Problem

Location = tuple[str | int, ...]
Mark = tuple[int, int]
"""Line and column, counted from 1; zeros when there is no place."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data, and the place of every key and value of it.

    Parameters
    ----------
    data : Any
        Mappings, lists and scalars.
    where : str
        The file's name, as messages show it.
    lines : tuple of str
        The text, for showing the faulty line.
    keys, values : dict of Location to Mark
        Where each key and each value starts. Data that no file holds has no marks.
    problems : tuple of Problem
        What was wrong with the text, although it could be read.
    """

    data: Any
    where: str = ""
    lines: tuple[str, ...] = ()
    keys: dict[Location, Mark] = field(default_factory=dict)
    values: dict[Location, Mark] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def value_mark(self, at: Location) -> Mark:
        """Return the place of a value, or of the nearest thing that encloses it."""
        for length in range(len(at), -1, -1):
            if at[:length] in self.values:
                return self.values[at[:length]]
        return (0, 0)

    def key_mark(self, at: Location) -> Mark:
        """Return the place of a key, or of the nearest thing that encloses it."""
        return self.keys.get(at) or self.value_mark(at)

    def problem(self, at: Location, message: str, mark: Mark | None = None) -> Problem:
        """Return a problem with the value at `at` (or at `mark`), with its line."""
        line, column = mark or self.value_mark(at)
        source = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Problem(message, self.where, line, column, dotted(at), source)


def dotted(at: Location) -> str:
    """Return ``("a", "b", 3)`` as ``a.b.3``."""
    parts = (str(part) for part in at)
    return ".".join(p if p.isprintable() else ascii(p)[1:-1] for p in parts)
