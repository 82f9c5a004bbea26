"""What a finding is, and the words that rules share."""

from shlex import quote
from typing import Any

Record = dict[str, Any]
LITTLE = 0.02
"""Share of the experts' time below which a measure is not worth its trouble."""


def finding(
    title: str, text: str, evidence: list[str], then: str, stake: float | None = None
) -> Record:
    """Return a finding; its rank is given later."""
    return {
        "title": title,
        "text": text,
        "evidence": evidence,
        "next": then,
        "stake": stake,
    }


def largest(record: Record) -> tuple[str, Record, Record]:
    """Return the largest EP size, its figures, and its bounds."""
    size = max(record["ranks"], key=int)
    return size, record["ranks"][size], record["bounds"][size]


def again(record: Record, more: str) -> str:
    """Return the command that diagnoses the same logs otherwise."""
    paths = " ".join(quote(path) for path in record["log"]["paths"])
    return f"moesim diagnose {paths} {more}"


def variants(*settings: str) -> str:
    """Return a comparison of one's own scenario, which the log is to be put into."""
    asked = " ".join(f"--variant {quote(text)}" for text in settings)
    return f"moesim compare SCENARIO {asked}"


def two(value: float | None) -> str:
    """Return a number with two digits, or a dash."""
    return "-" if value is None else f"{value:.2f}"
