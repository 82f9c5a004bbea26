"""The terminal: results on stdout, everything else on stderr, and the exit codes."""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any
from unicodedata import east_asian_width

from moesim.cli.ending import OutputError, code_of, unwritten, warn
from moesim.errors import InputError, Problem, SimulationError

BAD_INPUT, UNFINISHED, BROKEN = 2, 3, 70
PATIENCE_S = 1.0
"""Work shorter than this shows no progress."""
SHOWN = 100
"""Characters of a faulty line that are shown."""
Progress = Callable[[str, float], None]


def show(text: str) -> None:
    """Print a result.

    Raises
    ------
    OutputError
        It cannot be written: the disk is full, or the output is closed.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from None


def note(text: str) -> None:
    """Print a message that is no result."""
    warn(text)


def show_json(value: Any) -> None:
    """Print one JSON object, with null for numbers that do not exist."""
    show(json.dumps(_plain(value), indent=2, sort_keys=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value


@contextmanager
def orderly(*, debug: bool) -> Iterator[None]:
    """Turn exceptions into messages and exit codes; no traceback unless asked for."""
    try:
        yield
    except InputError as error:
        show_problems(error.problems)
        raise SystemExit(BAD_INPUT) from None
    except SimulationError as error:
        note(f"error: {error}")
        raise SystemExit(UNFINISHED) from None
    except KeyboardInterrupt as stop:
        note("interrupted: nothing was written")
        raise SystemExit(code_of(stop)) from None
    except OutputError as error:
        raise SystemExit(unwritten(error)) from None
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            raise
        note(f"error: {type(error).__name__}: {error}")
        note(f"{culprit(error)}; --debug shows where it happened")
        raise SystemExit(BROKEN) from None


def culprit(error: BaseException) -> str:
    """Return whose fault an error is: that of the user's own code, if it raised last."""
    here = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if here in path.parents:
            break
        if path.exists() and "site-packages" not in path.parts:
            return f"raised by {frame.filename}, line {frame.lineno}"
    return "this is a fault of moesim"


def show_problems(problems: Sequence[Problem]) -> None:
    """Print every problem as compilers do, with the line and a caret, then the count."""
    for problem in problems:
        note(problem_text(problem))
    files = list(dict.fromkeys(problem.where for problem in problems if problem.where))
    count = f"{len(problems)} error{'s' * (len(problems) != 1)}"
    if len(problems) > 1 or files:
        note(printable(f"{count}{' in ' + ', '.join(files) if files else ''}"))


def problem_text(problem: Problem) -> str:
    """Return a problem as lines: what and where, the line as written, a caret.

    >>> print(problem_text(Problem("is no number", "a.yaml", 2, 4, "a", "a: x")))
    a.yaml:2:4: error: a: is no number
        2 | a: x
          |    ^
    """
    lines = [printable(str(problem))]
    if problem.source and problem.line:
        source, column = _window(problem.source, problem.column)
        before = sum(_width(character) for character in source[: column - 1])
        lines += [f"{problem.line:>5} | {source}", f"      | {' ' * before}^"]
    return "\n".join(lines)


def printable(text: str) -> str:
    r"""Return text that cannot steer a terminal: what does not print is spelt out.

    >>> printable("a" + chr(27) + "[31m")
    'a\\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _window(source: str, column: int) -> tuple[str, int]:
    """Return the part of a long line that holds the column, and the column in it."""
    plain = "".join(c if c.isprintable() else " " for c in source)
    first = max(0, column - SHOWN // 2) if len(plain) > SHOWN else 0
    return plain[first : first + SHOWN], column - first


def _width(character: str) -> int:
    return 2 if east_asian_width(character) in "WF" else 1


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Give a progress display on stderr, if it is a terminal and work takes a while."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        began = monotonic()
        task = display.add_task("", total=1.0, visible=False)

        def report(label: str, done: float) -> None:
            late = monotonic() - began > PATIENCE_S
            display.update(task, description=label, completed=done, visible=late)

        yield report
