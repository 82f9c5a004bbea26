"""Tables of whole numbers in CSV: strict, fast, and exact about what is wrong.

A block of lines is checked and converted at once; only where something is odd is it
looked at line by line, to say which.

Axes: ``n`` rows, ``c`` columns.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.source import open_binary, refusal
from moesim.routing.logs.text import BOM
from moesim.spec.files import place
from moesim.types import Ints

BLOCK_BYTES = 1 << 20
DIGITS = 18
"""Of the longest number; all of them fit 64 bits."""
MOST_COLUMNS = 1 << 12
MOST_PROBLEMS = 20
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\- ]{0,63}")
NUMBER = re.compile(rb"[0-9]{1,18}")
POWERS = 10 ** np.arange(DIGITS, dtype=np.int64)


class Block(NamedTuple):
    """Rows of a table, and the line of the first."""

    line: int
    rows: Ints


def header(path: Path, meter: Meter) -> tuple[str, ...]:
    """Return the names of the columns.

    Raises
    ------
    InputError
        No header, or names that are odd or stand twice.
    """
    with open_binary(path) as file:
        raw = file.readline(meter.line_bytes).removeprefix(BOM).rstrip(b"\r\n")
    try:
        names = tuple(
            part.strip().strip('"') for part in raw.decode("ascii").split(",")
        )
    except UnicodeDecodeError:
        raise refusal("the header is no ASCII text", path, 1) from None
    odd = [name for name in names if not NAME.fullmatch(name)]
    if odd or len(names) > MOST_COLUMNS:
        shown = ascii(odd[0])[:60] if odd else f"{len(names)} columns"
        hint = "; columns are separated by commas" if ";" in raw.decode() else ""
        raise refusal(f"line 1 is no header of names: {shown}{hint}", path, 1)
    for name in names:
        if names.count(name) > 1:
            raise refusal(f"the column {name} appears twice", path, 1)
    return names


def blocks(path: Path, meter: Meter, columns: int) -> Iterator[Block]:
    """Yield the rows below the header, ``(n, c)``, some thousand at once.

    Raises
    ------
    InputError
        A row with another number of fields, or a field that is no whole number.
    """
    with open_binary(path) as file:
        file.readline(meter.line_bytes)
        line = 2
        for chunk in _chunks(file, meter, path):
            meter.tick()
            rows = _table(chunk, columns)
            if rows is None:
                raise InputError(_complaints(chunk, columns, line, path))
            if len(rows):
                yield Block(line, rows)
            line += chunk.count(b"\n")


def _chunks(file: BinaryIO, meter: Meter, path: Path) -> Iterator[bytes]:
    """Yield whole lines, each with one line end, blank lines at the end left out."""
    rest = b""
    while part := file.read(BLOCK_BYTES):
        cut = part.rfind(b"\n") + 1
        if not cut:
            rest += part
            if len(rest) > meter.line_bytes:
                raise refusal(f"a line is longer than {meter.line_bytes} bytes", path)
            continue
        yield (rest + part[:cut]).replace(b"\r\n", b"\n")
        rest = part[cut:]
    rest = rest.rstrip(b"\r\n")
    if rest:
        yield rest + b"\n"


def _table(chunk: bytes, columns: int) -> Ints | None:
    """Return ``(n, c)`` numbers, or None if anything is not as it should be."""
    if chunk.translate(None, b"0123456789,\n"):
        return None
    data = np.frombuffer(chunk, np.uint8)
    ends = np.flatnonzero(data < 48)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts
    newline = data[ends] == 10
    shape_ok = len(ends) % columns == 0 and newline[columns - 1 :: columns].all()
    rows = len(ends) // columns
    if not shape_ok or newline.sum() != rows or not rows:
        return None
    if sizes.min() < 1 or sizes.max() > DIGITS:
        return None
    return _numbers(data, ends, sizes).reshape(rows, columns)


def _numbers(data: NDArray[np.uint8], ends: Ints, sizes: Ints) -> Ints:
    values = np.zeros(len(ends), np.int64)
    for digit in range(int(sizes.max())):
        there = sizes > digit
        # Where a number is shorter, the byte before it is read and not counted.
        code = data[np.maximum(ends - 1 - digit, 0)].astype(np.int64) - 48
        values += np.where(there, code, 0) * POWERS[digit]
    return values


def _complaints(chunk: bytes, columns: int, line: int, path: Path) -> list[Problem]:
    found: list[Problem] = []
    for number, raw in enumerate(chunk.split(b"\n")[:-1], start=line):
        fields = raw.split(b",")
        if len(fields) != columns:
            message = f"expected {columns} fields; got {len(fields)}"
            found.append(Problem(message, place(path), number))
            continue
        for field in fields:
            if not NUMBER.fullmatch(field):
                shown = ascii(field.decode("utf-8", "replace"))[:60]
                message = f"expected a whole number of 0 or more; got {shown}"
                found.append(Problem(message, place(path), number))
        if len(found) >= MOST_PROBLEMS:
            break
    odd = Problem("the table holds a line that is no row of numbers", place(path), line)
    return found[:MOST_PROBLEMS] or [odd]
