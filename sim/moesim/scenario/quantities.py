"""Types of single values in a scenario: each says what it expects when it gets else."""

import os
import re
from collections.abc import Callable
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from moesim.engine.clock import LONGEST_S
from moesim.errors import shown as written
from moesim.units import (
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_flops,
    parse_number,
)

LONGEST_TOKENS = 10_000_000
"""Tokens of the longest sequence or budget that is believed."""
PREFIX = "MOESIM_"
"""Other environment variables may be secrets, which a message would repeat."""
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def shown(value: object) -> str:
    """Return what was found, in ASCII and short enough for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return written(value)


def _read(expected: str, read: Callable[[Any], Any]) -> BeforeValidator:
    """Return a validator that names what it expects when the value is of no use."""

    def check(value: object) -> object:
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"{expected} is expected; got {shown(value)}")
        return read(value)

    return BeforeValidator(check)


def _at_least(least: float, text: str, unit: str) -> AfterValidator:
    """Return a validator for a speed that no machine of today falls below."""

    def check(value: float) -> float:
        if value < least:
            raise ValueError(f"{text} or more is expected; got {value:g} {unit}")
        return value

    return AfterValidator(check)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"true or false is expected; got {shown(value)}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text is expected; got {shown(value)}: put it in quotes")
    if not value.isprintable() or not value.strip():
        raise ValueError(f"printable text is expected; got {shown(value)}")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{shown(text)} is no name: 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return text


def parse_tokens(value: object) -> int:
    """Return a number of tokens, read as vLLM reads it; else raise `ValueError`.

    A capital letter counts in powers of 1024, a small one in powers of 1000
    (``human_readable_int`` in vLLM's argument parser).

    >>> parse_tokens("8K"), parse_tokens("8k"), parse_tokens(8192), parse_tokens("1M")
    (8192, 8000, 8192, 1048576)
    """
    text = value.strip() if isinstance(value, str) else ""
    if text[-1:] in ("K", "M"):
        return parse_count(text[:-1]) * 2 ** (10 if text[-1] == "K" else 20)
    if text[-1:] == "m":
        return parse_count(f"{text[:-1]}M")
    return parse_count(value)


def budget(value: object) -> float:
    """Return seconds, which may be infinite; else raise `ValueError`."""
    return inf if value in ("inf", inf) else parse_duration(value)


def seconds_text(seconds: float) -> str:
    """Return a duration as text that parses to exactly the same number."""
    return "inf" if seconds == inf else f"{seconds!r} s"


def bytes_text(count: float) -> str:
    """Return an amount of memory as text that parses to exactly the same number.

    >>> bytes_text(4 * 2**30), bytes_text(5e8)
    ('4 GiB', '500000000 B')
    """
    whole = int(count)
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if whole and whole == count and not whole % size:
            return f"{whole // size} {unit}"
    return f"{whole if whole == count else repr(count)} B"


def anchored(text: str, base: Path) -> str:
    """Return a path that no longer depends on where the scenario file lies.

    A relative one is taken from `base`. ``${NAME}`` stays as written, so that a saved
    scenario works on another machine; one that begins with it is taken as it is.
    """
    if text.startswith("${") or os.path.isabs(text):
        return text
    return os.path.normpath(base / text)


def expanded(text: str) -> Path:
    """Return the path with each ``${NAME}`` replaced by that environment variable.

    Raises
    ------
    ValueError
        If a variable is not set.
    """
    foreign = [name for name in _VARIABLE.findall(text) if not name.startswith(PREFIX)]
    if foreign:
        names = ", ".join(shown(name) for name in foreign)
        raise ValueError(f"only variables {PREFIX}... are read in paths; got {names}")
    missing = [name for name in _VARIABLE.findall(text) if not os.environ.get(name)]
    if missing:
        names = ", ".join(shown(name) for name in missing)
        raise ValueError(f"the environment variable {names} is not set")
    return Path(_VARIABLE.sub(lambda match: os.environ[match[1]], text))


Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_name)]
Whole = Annotated[int, _read("a whole number", parse_count)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Tokens = Annotated[
    int,
    _read("a number of tokens", parse_tokens),
    Field(ge=1, le=LONGEST_TOKENS),
]
Number = Annotated[float, _read("a number", parse_number)]
Amount = Annotated[Number, Field(ge=0, le=1e12)]
Share = Annotated[Number, Field(ge=0, le=1)]
Bytes = Annotated[
    float,
    _read("an amount of memory such as '4 GiB'", parse_bytes),
    PlainSerializer(bytes_text),
]
Bandwidth = Annotated[
    float,
    _read("a bandwidth such as '25 GB/s'", parse_bandwidth),
    Field(le=1e18),
    _at_least(1e6, "1 MB/s", "B/s"),
    PlainSerializer(lambda value: f"{value!r} B/s"),
]
Flops = Annotated[
    float,
    _read("an arithmetic speed such as '4 TFLOPS'", parse_flops),
    Field(le=1e18),
    _at_least(1e9, "1 GFLOPS", "FLOPS"),
    PlainSerializer(lambda value: f"{Decimal(repr(value)).scaleb(-12)} TFLOPS"),
]
Seconds = Annotated[
    float,
    _read("a duration such as '5 ms'", parse_duration),
    Field(le=LONGEST_S),
    PlainSerializer(seconds_text),
]
