"""Lines of a trace file into rows, one function per format.

Nothing is guessed: a value that is not exactly what the format says is a problem with
its line, and the reading goes on.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from moesim.errors import Problem, shown
from moesim.workload.checks import LONGEST

AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE: Final = ("timestamp", "input_length", "output_length")
LATEST_MS: Final = 1e15
NUMBERS: Final = (int, float)
"""Exact types, so that true and false are none."""
EPOCH: Final = datetime(1970, 1, 1)
WHOLE: Final = re.compile(r"[1-9][0-9]{0,9}")
STAMP: Final = re.compile(
    r"(?P<when>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):?(?P<minutes>[0-5][0-9]))?"
)
TOKENS: Final = f"expected a whole number from 1 to {LONGEST}"


class Row(NamedTuple):
    """One request as written; nanoseconds count from any fixed instant."""

    line: int
    time_ns: int
    input_tokens: int
    output_tokens: int


def azure(lines: Sequence[str]) -> Iterator[Row | Problem]:
    """Yield the rows of a CSV with `AZURE` columns in any order, others ignored.

    Format: Azure/AzurePublicDataset, ``AzureLLMInferenceDataset2023.md``.
    """
    header = _fields(lines[0])
    problems = list(_check_header(header))
    yield from problems
    if problems:
        return
    places = [header.index(name) for name in AZURE]
    for number, line in enumerate(lines[1:], start=2):
        fields = _fields(line)
        if len(fields) != len(header):
            message = (
                f"expected {len(header)} fields; got {len(fields)}{_cut(number, lines)}"
            )
            yield Problem(message, line=number, source=_source(line))
        else:
            yield from _csv_row(number, [fields[place] for place in places])


def mooncake(lines: Sequence[str]) -> Iterator[Row | Problem]:
    """Yield the rows of JSON lines with `MOONCAKE` keys, others ignored.

    Format: kvcache-ai/Mooncake, ``FAST25-release/traces``: milliseconds and tokens.
    """
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line, parse_constant=_refuse, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)[:100]
            message = f"not a JSON object: {reason}{_cut(number, lines)}"
            column = getattr(error, "colno", 0)
            yield Problem(message, line=number, column=column, source=_source(line))
            continue
        yield from _json_row(number, record)


def _check_header(header: Sequence[str]) -> Iterator[Problem]:
    for name in AZURE:
        if name not in header:
            found = shown(",".join(header))
            expected = f"expected the header {','.join(AZURE)}"
            yield Problem(f"{expected}; {name} is missing in {found}", line=1)
        elif header.count(name) > 1:
            yield Problem(
                f"the column {name} appears {header.count(name)} times", line=1
            )


def _fields(line: str) -> list[str]:
    try:
        fields = next(csv.reader([line], strict=True), [])
    except csv.Error:
        return [line]
    return [field.strip(" \t") for field in fields]


def _csv_row(line: int, values: Sequence[str]) -> Iterator[Row | Problem]:
    problems = []
    when = _nanoseconds(values[0])
    if when is None:
        expected = "expected a time such as 2023-11-16 18:17:03.9799600"
        problems.append((AZURE[0], expected, values[0]))
    for name, value in zip(AZURE[1:], values[1:], strict=True):
        if not WHOLE.fullmatch(value) or int(value) > LONGEST:
            problems.append((name, TOKENS, value))
    yield from _complaints(line, problems)
    if when is not None and not problems:
        yield Row(line, when, int(values[1]), int(values[2]))


def _json_row(line: int, record: object) -> Iterator[Row | Problem]:
    if not isinstance(record, Mapping):
        message = f"expected a JSON object; got {type(record).__name__}"
        yield Problem(message, line=line)
        return
    problems: list[tuple[str, str, object]] = []
    values: list[Any] = [record.get(name) for name in MOONCAKE]
    when, *tokens = values
    if type(when) not in NUMBERS or not 0 <= when <= LATEST_MS:
        expected = f"expected milliseconds from 0 to {LATEST_MS:g}"
        problems.append((MOONCAKE[0], expected, when))
    for name, value in zip(MOONCAKE[1:], tokens, strict=True):
        if type(value) is not int or not 1 <= value <= LONGEST:
            problems.append((name, TOKENS, value))
    yield from _complaints(line, problems)
    if not problems:
        yield Row(line, round(when * 1_000_000), *tokens)


def _complaints(
    line: int, problems: Iterable[tuple[str, str, object]]
) -> Iterator[Problem]:
    for name, expected, value in problems:
        found = "nothing" if value is None else shown(value)
        yield Problem(f"{expected}; got {found}", line=line, key=name)


def _nanoseconds(text: str) -> int | None:
    """Return nanoseconds since 1970, to the last digit; None if it is not a time."""
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    try:
        since = datetime.fromisoformat(match["when"]) - EPOCH
    except ValueError:
        return None
    seconds = since.days * 86_400 + since.seconds
    if match["sign"]:
        offset = int(match["hours"]) * 3600 + int(match["minutes"]) * 60
        seconds -= offset if match["sign"] == "+" else -offset
    return seconds * 10**9 + int((match["fraction"] or "0").ljust(9, "0"))


def _source(line: str) -> str:
    """Return the line as written, unless it has characters that act on a terminal."""
    return line[:200] if line.isprintable() else shown(line)


def _cut(number: int, lines: Sequence[str]) -> str:
    """Return a hint for the last line, which an interrupted copy cuts short."""
    return " (the last line: is the file cut off?)" if number == len(lines) else ""


def _refuse(constant: str) -> None:
    message = f"{constant} is not a number"
    raise ValueError(message)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        message = "a key appears twice"
        raise ValueError(message)
    return record
