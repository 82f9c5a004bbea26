"""Arrays of whole numbers from an ``.npz`` that nobody vouches for.

Files are read as data only: nothing is unpickled. What an array claims to be (size in
the zip directory, shape and type in its header) is checked against the file and against
caps before anything is inflated; zip members end where the directory says.
"""

import lzma
import struct
import warnings
import zipfile
import zlib
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from moesim.errors import InputError, Problem

LARGEST_BYTES = 1 << 31
"""Bytes that the wanted arrays may have together, once inflated."""
LARGEST_RATIO = 400
"""How much larger than in the file an array may be; real expert ids reach about 1.3."""
SLACK_BYTES = 1 << 16
"""Below this size no ratio is suspicious."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    SyntaxError,
    TokenError,
    RuntimeError,
    MemoryError,
    ArithmeticError,
    LookupError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    Warning,
)
"""What zipfile and NumPy raise on files that are not what they say."""


def read_whole_numbers(path: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    """Return the arrays of whole numbers that a file holds under `names`.

    Raises
    ------
    InputError
        No regular file, no zip of plain arrays, an array that is missing, stored
        twice, too large, truncated, or not of whole numbers.
    """
    expected = f"an .npz with {' and '.join(names)} is expected"
    if not path.is_file():
        raise refusal(path, f"is no file; {expected}")
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(path) as archive:
            warnings.simplefilter("error")
            _check_directory(archive, [f"{name}.npy" for name in names], path)
            return [_read(archive, f"{name}.npy", path) for name in names]
    except DAMAGE as error:
        raise refusal(path, f"cannot be read ({error!s:.120}); {expected}") from None


def refusal(path: Path, message: str) -> InputError:
    """Return the error that a file is refused with; its name is safe to print."""
    return InputError([Problem(f"{ascii(str(path))[1:-1]} {message}", key="path")])


def _check_directory(archive: zipfile.ZipFile, wanted: list[str], path: Path) -> None:
    """Refuse by what the directory claims, before anything is inflated."""
    found = archive.namelist()
    for name in wanted:
        if found.count(name) != 1:
            listed = ascii(", ".join(found[:20]))[1:-1] or "nothing"
            raise refusal(
                path, f"holds {listed:.200}; {name} is expected in it exactly once"
            )
    members = [archive.getinfo(name) for name in wanted]
    total = sum(member.file_size for member in members)
    if total > LARGEST_BYTES:
        raise refusal(
            path, f"inflates to {total} bytes; at most {LARGEST_BYTES} are expected"
        )
    for member in members:
        limit = LARGEST_RATIO * member.compress_size + SLACK_BYTES
        if member.file_size > limit:
            raise refusal(
                path,
                f"{member.filename} inflates {member.compress_size} bytes to "
                f"{member.file_size}; at most {LARGEST_RATIO} times is expected",
            )


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    """Return one array, once its header agrees with the size of its member."""
    with archive.open(name) as file:
        shape, kind = _header(file, name, path)
        claimed, present = prod(shape) * kind.itemsize, archive.getinfo(name).file_size
        if kind.kind not in "iu":
            raise refusal(path, f"{name} holds {kind}; whole numbers are expected")
        if min(shape, default=0) < 0 or claimed != present - file.tell():
            raise refusal(
                path,
                f"{name} claims shape {list(shape)} of {kind}, {claimed} bytes; "
                f"{present - file.tell()} are there",
            )
    with archive.open(name) as file:
        values: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return values


def _header(
    file: IO[bytes], name: str, path: Path
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type that a member declares, and stand behind the header."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise refusal(path, f"{name} has .npy version {version}; 1.0 is expected")
    shape, _, kind = HEADERS[version](file)
    return shape, kind
