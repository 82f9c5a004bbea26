"""Lines and JSON of files that nobody vouches for: strict, bounded, with line numbers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from moesim.errors import InputError, Problem
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.source import open_binary, refusal

BOM = b"\xef\xbb\xbf"
TICKS = 1024
"""Lines between two looks at the clock."""


class Record(NamedTuple):
    """One JSON value, and the line where it begins."""

    line: int
    value: Any


def lines(path: Path, meter: Meter) -> Iterator[tuple[int, bytes]]:
    """Yield every line with its number from 1, without its end and without a BOM.

    Raises
    ------
    InputError
        A line is longer than the limit.
    """
    with open_binary(path) as file:
        for number, raw in enumerate(_raw_lines(file, meter.line_bytes), start=1):
            if number % TICKS == 0:
                meter.tick()
            if len(raw) > meter.line_bytes:
                message = f"the line is longer than {meter.line_bytes} bytes"
                raise refusal(message, path, number)
            yield (
                number,
                (raw.removeprefix(BOM) if number == 1 else raw).rstrip(b"\r\n"),
            )


def json_records(path: Path, meter: Meter) -> Iterator[Record]:
    """Yield the values of JSON lines; or the one value of a JSON document.

    Raises
    ------
    InputError
        No JSON, a key twice in an object, NaN, nesting too deep, a blank line between
        values, or a document longer than the memory limit allows.
    """
    found = lines(path, meter)
    number, first = next(found, (1, b""))
    try:
        value = parse_json(first, meter)
    except InputError:
        yield Record(1, _document(path, meter))
        return
    yield Record(number, value)
    blank = 0
    for number, raw in found:
        if not raw.strip():
            blank = blank or number
            continue
        if blank:
            raise refusal("the line is blank", path, blank)
        yield Record(number, _parsed(raw, meter, path, number))


def parse_json(text: bytes, meter: Meter) -> Any:
    """Return what JSON text means.

    Raises
    ------
    InputError
        As `json_records`, without a place.
    """
    try:
        return _DECODER.decode(text.decode())
    except json.JSONDecodeError as error:
        problem = Problem(
            f"no JSON: {error.msg}", line=error.lineno, column=error.colno
        )
        raise InputError([problem]) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        limit = meter.limits.depth
        raise InputError(f"is nested far deeper than {limit} levels") from None
    except ValueError as error:  # raised by the hooks, and for endless integers
        raise InputError(f"no JSON: {error!s:.100}") from None


def _parsed(raw: bytes, meter: Meter, path: Path, number: int) -> Any:
    try:
        return parse_json(raw, meter)
    except InputError as error:
        problem = error.problems[0]
        hint = " (is the file cut off?)" if "Unterminated" in problem.message else ""
        raise InputError(
            [Problem(problem.message + hint, str(path), number, problem.column)]
        ) from None


def _document(path: Path, meter: Meter) -> Any:
    size = path.stat().st_size
    if size > meter.document_bytes:
        message = f"is a JSON document of {size} bytes, which is parsed whole"
        raise refusal(f"{message}; at most {meter.document_bytes} are allowed", path)
    with open_binary(path) as file:
        return parse_json(file.read(meter.document_bytes).removeprefix(BOM), meter)


def _raw_lines(file: BinaryIO, most: int) -> Iterator[bytes]:
    return iter(lambda: file.readline(most + 1), b"")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
