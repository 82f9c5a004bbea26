"""Recorded request traces: times and lengths, read from files that nobody vouches for.

Axis: ``N`` requests, in order of arrival.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from stat import S_ISREG
from typing import Final, Literal

import numpy as np

from moesim.errors import InputError, Problem, file_meant, meant, shown
from moesim.types import Floats, Ints
from moesim.workload.formats import Row, azure, mooncake

Format = Literal["auto", "azure", "mooncake"]
READERS: Final[Mapping[str, Callable[[Sequence[str]], Iterator[Row | Problem]]]] = {
    "azure": azure,
    "mooncake": mooncake,
}
"""Every format by its name in a scenario."""
MOST_PROBLEMS = 20
LONGEST_LINE = 1 << 20
LARGEST_FILE = 1 << 29
"""Bytes beyond which a line or a file is refused instead of read."""
LONGEST_SPAN_S = 8_640_000


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What was recorded: ``(N,)`` columns.

    Parameters
    ----------
    arrival_s : (N,) array of float
        Seconds after the first request, ascending.
    input_tokens, output_tokens : (N,) arrays of int
        Prompt length and tokens generated, each at least 1.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        """Return how many requests there are, ``N``."""
        return len(self.arrival_s)

    @property
    def mean_rate(self) -> float:
        """Requests per second: gaps divided by their sum; infinite if that is 0."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span else np.inf

    def head(self, n: int) -> "Trace":
        """Return the first `n` requests.

        Raises
        ------
        InputError
            If there are fewer.
        """
        if n > len(self):
            raise InputError(f"{n} requests asked, but the trace has {len(self)}")
        return Trace(self.arrival_s[:n], self.input_tokens[:n], self.output_tokens[:n])

    def sped_up(self, speedup: float) -> "Trace":
        """Return the same requests, that many times faster."""
        return replace(self, arrival_s=self.arrival_s / speedup)

    def at_rate(self, request_rate: float) -> "Trace":
        """Return the same requests with exactly this `mean_rate`.

        Raises
        ------
        InputError
            If all arrive at one instant, which no scaling spreads.
        """
        if isinf(self.mean_rate) and not isinf(request_rate):
            message = "all requests arrive at one instant: no scaling gives them a rate"
            raise InputError([Problem(message, key="request_rate")])
        if isinf(request_rate):
            return replace(self, arrival_s=np.zeros(len(self)))
        return self.sped_up(request_rate / self.mean_rate)


def read_trace(path: str | Path, form: str = "auto") -> Trace:
    """Return the requests of a trace file.

    Parameters
    ----------
    path : str or Path
        A regular file, UTF-8.
    form : {"auto", "azure", "mooncake"}
        ``azure``: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. ``mooncake``: a
        JSON object a line with timestamp (ms), input_length, output_length. ``auto``
        looks at the first line, not at the name.

    Raises
    ------
    InputError
        With up to 20 problems, each at its line: the file cannot be read, is empty,
        has unknown columns, bad values, or times that go back.
    """
    place = Path(path)
    try:
        lines = _lines(place)
        reader = READERS[_format(lines, form)]
        return _trace(_in_order(reader(lines)))
    except InputError as error:
        raise InputError(
            [replace(p, where=str(place)) for p in error.problems]
        ) from None


def _trace(found: Iterator[Row | Problem]) -> Trace:
    rows: list[Row] = []
    problems: list[Problem] = []
    for item in found:
        if isinstance(item, Row):
            rows.append(item)
        else:
            problems.append(item)
        if len(problems) == MOST_PROBLEMS:
            break
    if not rows and not problems:
        problems = [Problem("expected at least one request; there is none")]
    if problems:
        raise InputError(problems)
    _, times, inputs, outputs = zip(*rows, strict=True)
    arrival_s = np.array([(time - times[0]) / 1e9 for time in times])
    if arrival_s[-1] > LONGEST_SPAN_S:
        days = f"{arrival_s[-1] / 86_400:.0f} days: more than 100"
        raise InputError(f"the trace covers {days}, is the unit of its times right?")
    return Trace(arrival_s, np.array(inputs), np.array(outputs))


def _in_order(found: Iterator[Row | Problem]) -> Iterator[Row | Problem]:
    """Yield everything, and a problem for each row that goes back in time."""
    latest: Row | None = None
    for item in found:
        if (
            isinstance(item, Row)
            and latest is not None
            and item.time_ns < latest.time_ns
        ):
            back = (latest.time_ns - item.time_ns) / 1e9
            message = (
                f"time goes back by {back:g} s after line {latest.line}: sort the file"
            )
            yield Problem(message, line=item.line)
            continue
        if isinstance(item, Row):
            latest = item
        yield item


def _format(lines: Sequence[str], form: str) -> str:
    if form in READERS:
        return form
    if form != "auto":
        names = f"auto, {', '.join(READERS)}{meant(form, READERS)}"
        message = f"{form!r} is not one of {names}"
        raise InputError([Problem(message, key="format")])
    if lines[0].lstrip().startswith("{"):
        return "mooncake"
    if "," in lines[0]:
        return "azure"
    message = f"neither CSV nor JSON lines, as far as line 1 tells: {shown(lines[0])}"
    raise InputError([Problem(message, line=1)])


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, less their ends and the blank ones at its end."""
    _check_file(path)
    try:
        with path.open("rb") as handle:
            lines = [
                _text(raw, at) for at, raw in enumerate(_raw_lines(handle.readline), 1)
            ]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError("the file is empty")
    return lines


def _raw_lines(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(lambda: readline(LONGEST_LINE + 1), b"")


def _text(raw: bytes, line: int) -> str:
    if len(raw) > LONGEST_LINE:
        message = f"the line is longer than {LONGEST_LINE} bytes"
        raise InputError([Problem(message, line=line)])
    try:
        text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {raw[error.start]:#04x}"
        raise InputError(
            [Problem(message, line=line, column=error.start + 1)]
        ) from None
    return text.rstrip("\r\n")


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(_missing(path, error)) from None
    if not S_ISREG(status.st_mode):
        raise InputError("expected a regular file, not a folder, pipe or device")
    if status.st_size > LARGEST_FILE:
        raise InputError(f"{status.st_size} bytes: larger than {LARGEST_FILE}")


def _missing(path: Path, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot be read: {reason}{file_meant(path)}"
