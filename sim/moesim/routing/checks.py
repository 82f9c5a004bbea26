"""What a parameter of a routing source may be; every check says found and expected."""

from numbers import Integral, Real

from moesim.errors import InputError, Problem


def check_number(key: str, value: object, low: float, high: float) -> list[Problem]:
    """Return a problem if a parameter is no number in a range, ends included."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and low <= float(value) <= high:  # type: ignore[arg-type]
        return []
    return [_unexpected(key, value, f"a number from {low:g} to {high:g}")]


def check_count(key: str, value: object, low: int, high: int) -> list[Problem]:
    """Return a problem if a parameter is no whole number in a range, ends included."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= int(value) <= high:  # type: ignore[call-overload]
        return []
    return [_unexpected(key, value, f"a whole number from {low} to {high}")]


def check_choice(key: str, value: object, known: tuple[str, ...]) -> list[Problem]:
    """Return a problem if a parameter is none of the known words."""
    return [] if value in known else [_unexpected(key, value, " or ".join(known))]


def refuse(problems: list[Problem]) -> None:
    """Raise what was found, if anything was."""
    if problems:
        raise InputError(problems)


def _unexpected(key: str, value: object, expected: str) -> Problem:
    return Problem(f"found {value!r:.60}, expected {expected}", key=key)
