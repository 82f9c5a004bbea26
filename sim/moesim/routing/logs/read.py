"""Any routing log into one form: `read_log`."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from moesim.errors import InputError, Problem, meant
from moesim.routing.logs.catalogue import FORMATS, Format
from moesim.routing.logs.limits import Hints, Limits
from moesim.routing.logs.log import Origin, RoutingLog
from moesim.routing.logs.peek import Peek, look
from moesim.routing.logs.source import Source, digest, fingerprint, open_source
from moesim.routing.logs.table import columns_of
from moesim.spec.files import place

DAMAGE = (
    OSError,
    EOFError,
    MemoryError,
    RecursionError,
    OverflowError,
    UnicodeError,
    struct.error,
    zlib.error,
)
"""What libraries raise on files that are not what they say, where no reader foresaw it."""


def read_log(
    path: str | Path,
    format: str | None = None,
    limits: Limits | None = None,
    hints: Hints | None = None,
) -> RoutingLog:
    """Return the log that a file holds, or the files of a folder, one a rank.

    Nothing in a file is ever executed, and every expert id is checked before it is used.

    Parameters
    ----------
    path : str or Path
        A regular file; or a folder, for formats that write a file a rank.
    format : str, optional
        A name out of `FORMATS`; without it the content tells.
    limits : Limits, optional
        What reading may cost.
    hints : Hints, optional
        What the file does not say, such as the model's top_k; and what to drop.

    Raises
    ------
    InputError
        With every problem found and its place: no file, no known format, damage, a
        limit exceeded, or contents that are no routing.
    """
    where = Path(path)
    try:
        source = open_source(where, limits or Limits(), hints or Hints())
        before = fingerprint(source)
        log = _read(source, _chosen(source, format))
        sha256 = digest(source)
        if fingerprint(source) != before:
            raise InputError("changed while it was read")
    except InputError as error:
        raise InputError(_placed(error, where)) from None
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error!s:.120}"
        message = f"cannot be read ({reason})"
        raise InputError([Problem(message, place(where))]) from None
    origin = Origin(place(where), log.origin.format, len(source.files), sha256)
    return replace(log, origin=origin, notes=tuple(source.notes))


def detect(peek: Peek) -> str:
    """Return the name of the one format that a first look shows.

    Raises
    ------
    InputError
        None does, or several do.
    """
    found = [form.name for form in FORMATS.values() if form.recognise(peek)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"could be {' or '.join(found)}: choose with format")
    inside = ", ".join(ascii(name)[1:-1] for name in peek.names[:8])
    if ";" in inside:
        raise InputError(f"columns are separated by commas; found {inside:.100}")
    if peek.container == "csv":
        columns_of(peek.names)  # says which column is wrong
    what = f"{peek.container} with {inside}" if inside else peek.container
    raise InputError(f"is {what:.200}: no routing log of {', '.join(FORMATS)}")


def _chosen(source: Source, name: str | None) -> Format:
    if name is None:
        form = FORMATS[detect(look(source))]
    elif name in FORMATS:
        form = FORMATS[name]
    else:
        _unknown(name)
    if len(source.files) > 1 and not form.folders:
        message = (
            f"is a folder of {len(source.files)} files; {form.name} reads one file"
        )
        raise InputError(message)
    return form


def _unknown(name: str) -> NoReturn:
    names = f"{', '.join(FORMATS)}{meant(name, FORMATS)}"
    message = f"{name!r:.60} is not one of {names}"
    raise InputError([Problem(message, key="format")])


def _read(source: Source, form: Format) -> RoutingLog:
    hints = source.hints
    for key in ("experts", "layers", "top_k"):
        if getattr(hints, key) < 0:
            raise InputError([Problem("a hint may not be negative", key=key)])
    if hints.warmup is not None and hints.warmup < 0:
        raise InputError([Problem("a warm-up may not be negative", key="warmup")])
    return form.read(source)


def _placed(error: InputError, where: Path) -> list[Problem]:
    """Return the problems, each at the file if it names no place of its own."""
    return [replace(p, where=p.where or place(where)) for p in error.problems]
