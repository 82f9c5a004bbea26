"""Files that people hand us: read whole, within limits, or refused with a reason.

The parse stage is pure and guesses nothing: regular files only, UTF-8, a size cap, no
NaN, no duplicate keys.
"""

import json
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NoReturn

from moesim.errors import InputError, Problem, shown

CONFIG_BYTES = 2**20
"""The largest config.json that is read; published ones have 0.5 to 5 kB."""


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular UTF-8 file of at most `most_bytes` bytes.

    Raises
    ------
    InputError
        The path names no readable regular file, or its content is too long or no UTF-8.
    """
    where = place(path)
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            data = file.read(most_bytes + 1) if S_ISREG(mode) else b""
    except OSError as error:
        _refuse(where, f"cannot be read: {error.strerror or error}")
    except ValueError as error:  # a NUL or a lone surrogate in the path
        _refuse(where, f"is no path: {error}")
    if not S_ISREG(mode):
        is_folder = S_ISDIR(mode)
        _refuse(where, "is a folder, not a file" if is_folder else "is no regular file")
    if len(data) > most_bytes:
        _refuse(where, f"is longer than the {most_bytes} bytes that are allowed")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(where, f"is not UTF-8 text (byte {error.start})")


def path_of(given: object, expected: str) -> Path:
    """Return the path that somebody gave where `expected` is wanted.

    Raises
    ------
    InputError
        It is neither text nor a path.
    """
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise InputError([Problem(f"{expected} is expected; got {type_shown(given)}")])


def type_shown(value: object) -> str:
    """Return what kind of thing a value is, for a message.

    >>> type_shown(None), type_shown({}), type_shown(3.5)
    ('nothing', 'a dict', 'a float')
    """
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return "nothing" if value is None else f"{article} {name}"


def place(path: Path) -> str:
    """Return a path as messages name it: in ASCII, control characters escaped."""
    return ascii(str(path))[1:-1]


def read_json(path: Path, most_bytes: int = CONFIG_BYTES) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises
    ------
    InputError
        As `read_text`; or the text is no JSON object, has duplicate keys, NaN or an
        infinity, or is nested too deeply.
    """
    text = read_text(path, most_bytes)
    where = place(path)
    try:
        parsed = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        raise InputError(
            [Problem(f"no JSON: {error.msg}", where, error.lineno, error.colno)]
        ) from None
    except RecursionError:
        _refuse(where, "is nested too deeply")
    except ValueError as error:  # raised by the hooks, and for endless integers
        _refuse(where, f"is refused: {error}")
    if not isinstance(parsed, dict):
        _refuse(where, f"holds a {type(parsed).__name__}, not an object {{...}}")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shown(key)} stands twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse(where: str, message: str) -> NoReturn:
    raise InputError([Problem(message, where)])
