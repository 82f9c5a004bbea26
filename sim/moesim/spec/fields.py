"""Values picked out of somebody else's configuration, complaints kept to the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moesim.errors import InputError, Problem, meant, shown

MISSING = object()


@dataclass(frozen=True)
class Fields:
    """A configuration and what has been found wrong with it so far.

    A getter that finds something wrong notes it and returns a harmless value, so that
    one reading finds every mistake; `finish` raises them together.

    Parameters
    ----------
    table : mapping
        The configuration; dotted keys reach into nested tables.
    where : str
        The file, for messages.
    problems : list of Problem
        Grows while values are read.
    """

    table: Mapping[str, Any]
    where: str = ""
    problems: list[Problem] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Return what stands under a dotted key, or `MISSING`."""
        value: Any = self.table
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        return value

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**24
    ) -> int:
        """Return a whole number; `default` stands for a key that is not there."""
        value = self.get(key)
        if value is MISSING and default is not None:
            return default
        if value is MISSING:
            self.complain(key, f"missing{self._near(key)}")
        elif isinstance(value, bool) or not isinstance(value, int):
            self.complain(key, f"a whole number is expected, not {shown(value)}")
        elif not least <= value <= most:
            self.complain(key, f"{shown(value)} is not within {least} to {most}")
        else:
            return value
        return least

    def count_or_null(self, key: str) -> int:
        """Return a whole number, 0 for null; the key must be there."""
        return 0 if self.get(key) is None else self.count(key)

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001  a value, no switch
        """Return true or false; `default` stands for a key that is not there."""
        value = self.get(key)
        if value is MISSING:
            return default
        if not isinstance(value, bool):
            self.complain(key, f"true or false is expected, not {shown(value)}")
            return default
        return value

    def whole_list(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers, empty when the key is not there or null."""
        value = self.get(key)
        if value is MISSING or value is None:
            return ()
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            self.complain(
                key, f"a list of whole numbers is expected, not {shown(value)}"
            )
            return ()
        return tuple(value)

    def complain(self, key: str, message: str) -> None:
        """Note a problem with the value under `key`, once."""
        problem = Problem(message, self.where, key=key)
        if problem not in self.problems:
            self.problems.append(problem)

    def finish(self) -> None:
        """Raise `InputError` with every problem found, if any."""
        if self.problems:
            raise InputError(self.problems)

    def _near(self, key: str) -> str:
        return meant(key, map(str, self.table), 0.8)
