"""What a reader of one format is handed: the file, how far it may go, what it was told.

Everything a person can get wrong with a path is refused here, before a reader starts.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, TypeVar

from moesim.errors import InputError, Problem, file_meant
from moesim.routing.logs.limits import Hints, Limits, Meter
from moesim.spec.files import place

T = TypeVar("T")
MOST_FILES = 4096
"""Files of one log in a folder: one for each rank."""
HASHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """The files of one log, open for one reading.

    Parameters
    ----------
    path : Path
        What was asked for: a file, or a folder.
    files : tuple of Path
        The file; or the files of the folder, sorted by name.
    meter : Meter
        Limits of this reading.
    hints : Hints
        What the person says.
    notes : list of str
        What readers have to tell; grows.
    """

    path: Path
    files: tuple[Path, ...]
    meter: Meter
    hints: Hints
    notes: list[str] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        """Whether a folder was asked for."""
        return self.files != (self.path,)

    def note(self, text: str) -> None:
        """Tell the person something about the log, once."""
        if text not in self.notes:
            self.notes.append(text)


def refusal(
    message: str, path: Path | None = None, line: int = 0, key: str = ""
) -> InputError:
    """Return the error that a log is refused with."""
    where = place(path) if path else ""
    return InputError([Problem(message, where, line, key=key)])


def open_source(path: Path, limits: Limits, hints: Hints) -> Source:
    """Return the source that a path names: a regular file, or a folder of them.

    Raises
    ------
    InputError
        Nothing is there, it is a pipe or a device, a folder holds no files, or the
        files are too large.
    """
    mode = _stat(path).st_mode
    files = _members(path) if S_ISDIR(mode) else (path,)
    total = 0
    for file in files:
        status = _stat(file)
        if not S_ISREG(status.st_mode):
            raise refusal(
                "is no regular file: a log is not a pipe, device or folder in a folder",
                file,
            )
        total += status.st_size
    if total > limits.file_bytes:
        raise refusal(
            f"holds {total} bytes; at most {limits.file_bytes} are read", path
        )
    if not total:
        raise refusal("is empty", path)
    return Source(path, files, Meter(limits), hints)


def open_binary(path: Path) -> BinaryIO:
    """Return a regular file, open for reading; a pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    if not S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise refusal("is no regular file", path)
    return file


def fingerprint(source: Source) -> tuple[tuple[int, int, int], ...]:
    """Return size, time and number of every file, which change when a file does."""
    states = [_stat(file) for file in source.files]
    return tuple((state.st_size, state.st_mtime_ns, state.st_ino) for state in states)


def digest(source: Source) -> str:
    """Return the SHA-256 of all files, one after the other."""
    total = hashlib.sha256()
    for path in source.files:
        with open_binary(path) as file:
            for chunk in _chunks(file):
                source.meter.tick()
                total.update(chunk)
    return total.hexdigest()


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``rank2`` before ``rank10``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def located(path: Path, action: Callable[[], T]) -> T:
    """Return what `action` does, with `path` named by every problem that names none."""
    try:
        return action()
    except InputError as error:
        found = [replace(p, where=p.where or place(path)) for p in error.problems]
        raise InputError(found) from None


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(HASHED_BYTES), b"")


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = file_meant(path)
        raise refusal(f"cannot be read: {reason}{hint}", path) from None


def _members(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder by name, hidden ones left out."""
    try:
        found = list(islice(folder.iterdir(), MOST_FILES + 1))
    except OSError as error:
        raise refusal(f"cannot be read: {error.strerror}", folder) from None
    if len(found) > MOST_FILES:
        raise refusal(f"holds more than {MOST_FILES} files", folder)
    seen = (path for path in found if not path.name.startswith("."))
    files = tuple(sorted(seen, key=lambda path: natural(path.name)))
    if not files:
        raise refusal("is a folder without files", folder)
    return files
