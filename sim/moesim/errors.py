"""The one error that bad input raises: every problem at once, each with its place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

LONGEST = 64
"""Characters of a value that a message shows."""
MOST_FILES = 1000
"""Files of a folder among which one that was meant is looked for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in what a person gave us.

    Parameters
    ----------
    message : str
        What was found, what was expected, and the nearest right thing.
    where : str
        The file, option or argument; empty when there is none.
    line, column : int
        Position in that file, counted from 1; 0 when there is none.
    key : str
        Dotted key inside the file, such as ``workload.arrivals.type``.
    source : str
        The line as written, to be shown under the message.
    """

    message: str
    where: str = ""
    line: int = 0
    column: int = 0
    key: str = ""
    source: str = ""

    def __str__(self) -> str:
        """Return ``where:line:column: error: key: message``, as compilers do."""
        place = ":".join(
            str(part) for part in (self.where, self.line, self.column) if part
        )
        parts = [part for part in (place, "error", self.key, self.message) if part]
        return ": ".join(parts)


class InputError(Exception):
    """What a person gave cannot be used; carries every problem found."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem(problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SimulationError(Exception):
    """The simulation could not finish: it says at what simulated time, and why."""


def shown(value: object) -> str:
    """Return a value as written, in ASCII and cut to one line, for use in a message.

    >>> shown("5 GB"), len(shown("x" * 1000))
    ("'5 GB'", 64)
    """
    if isinstance(value, int) and abs(value) >= 10**LONGEST:
        return f"a number of more than {LONGEST} digits"
    try:
        text = ascii(value)
    except ValueError:  # Python spells no whole number of more than 4,300 digits
        text = f"a {type(value).__name__} too long to write"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def closest(
    found: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return up to `count` of the known words that are nearest to what was found.

    Parameters
    ----------
    cutoff : float
        How alike they have to be, from 0 (not at all) to 1.
    """
    return get_close_matches(str(found), list(known), count, cutoff)


def meant(found: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the known word that is nearest, to end a message; or nothing.

    >>> meant("fivo", ["fifo", "oldest"]), meant("x", ["fifo"])
    ("; did you mean 'fifo'?", '')
    """
    near = closest(found, known, 1, cutoff)
    return f"; did you mean {near[0]!a}?" if near else ""


def file_meant(path: Path) -> str:
    """Return a hint at the file beside one that is not there; or nothing."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), MOST_FILES)]
    except (OSError, ValueError):
        return ""
    return "" if path.name in names else meant(path.name, sorted(names))
