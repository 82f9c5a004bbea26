"""Members of a zip that nobody vouches for, inflated within what its directory says."""

import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from moesim.errors import InputError
from moesim.routing.archive import SLACK_BYTES
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.source import open_binary

METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""What NumPy and torch write; others cannot be inflated in bounded pieces."""
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    Warning,
)
"""What zipfile raises on files that are not what they say."""
MOST_MEMBERS = 1 << 20
MEMBER_BYTES = 1024
"""Memory for the directory entry of one member."""


@contextmanager
def open_zip(path: Path, meter: Meter) -> Iterator[zipfile.ZipFile]:
    """Give an archive whose directory was checked.

    Raises
    ------
    InputError
        It is no zip, a name stands twice or leaves the archive, or what is inside is
        larger than the limits.
    """
    with warnings.catch_warnings(), open_binary(path) as file:
        warnings.simplefilter("error")
        try:
            with zipfile.ZipFile(file) as archive:
                _check_directory(archive, meter)
                yield archive
        except DAMAGE as error:
            message = f"cannot be read as a zip archive ({error!s:.120})"
            raise InputError(message) from None


def open_member(archive: zipfile.ZipFile, name: str, meter: Meter) -> IO[bytes]:
    """Return one member, open for reading; it ends where the directory says."""
    info = archive.getinfo(name)
    if info.compress_type not in METHODS:
        raise InputError(
            f"{name!a} is compressed in a way that is not read; stored and deflated are"
        )
    most = meter.limits.ratio * info.compress_size + SLACK_BYTES
    if info.file_size > most:
        message = f"inflates {info.compress_size} bytes to {info.file_size}"
        raise InputError(
            f"{name!a} {message}; at most {meter.limits.ratio} times is expected"
        )
    return archive.open(info)


def _check_directory(archive: zipfile.ZipFile, meter: Meter) -> None:
    names = archive.namelist()
    meter.hold(len(names) * MEMBER_BYTES, f"a directory of {len(names)} members")
    if len(names) > MOST_MEMBERS:
        message = f"holds {len(names)} members; at most {MOST_MEMBERS} are read"
        raise InputError(message)
    seen: set[str] = set()
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if name.startswith("/") or ".." in parts or ":" in parts[0]:
            message = f"holds {ascii(name)[:100]}, a name that leaves the archive"
            raise InputError(message)
        if name in seen:
            raise InputError(f"holds {ascii(name)[:100]} twice; which one is meant?")
        seen.add(name)
    total = sum(info.file_size for info in archive.infolist())
    if total > meter.limits.file_bytes:
        message = f"inflates to {total} bytes"
        raise InputError(f"{message}; at most {meter.limits.file_bytes} are read")
