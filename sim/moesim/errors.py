"""The one error that bad input raises: every problem at once, each with its place."""

from collections.abc import Sequence
from dataclasses import dataclass


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
