"""Arrays in NumPy's ``.npy`` form, read block by block from any stream.

Axes: ``n`` rows (the first axis), ``...`` the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.archive import HEADERS
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.store import BLOCK_BYTES

MAGIC = b"\x93NUMPY"
KINDS = "iuf"
"""Signed, unsigned and floating numbers: objects, texts, records are never read."""


@dataclass(frozen=True)
class Header:
    """What an ``.npy`` says of itself, checked against the bytes that are there."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], available: int, name: str) -> Header:
    """Return the header; `file` then stands at the data.

    Raises
    ------
    InputError
        No header, another version, no plain numbers, or a size that is not there.
    """
    try:
        version = npy_format.read_magic(file)
        if version not in HEADERS:
            raise InputError(f"{name} has .npy version {version}; 1.0 is expected")
        shape, fortran, dtype = HEADERS[version](file)
    except (ValueError, TypeError, SyntaxError, TokenError, EOFError) as error:
        raise InputError(f"{name} is no .npy ({error!s:.120})") from None
    except (RecursionError, MemoryError, OverflowError, LookupError):
        raise InputError(f"{name} has a header that cannot be read") from None
    if dtype.kind not in KINDS or dtype.itemsize > 8:
        what = f"{name} holds {ascii(str(dtype))[1:-1]:.60}"
        raise InputError(f"{what}; plain numbers are expected, nothing is unpickled")
    header = Header(shape, dtype, fortran)
    left = available - file.tell()
    if min(shape, default=0) < 0 or header.size != left:
        claim = f"claims shape {list(shape)} of {dtype}, {header.size} bytes"
        raise InputError(f"{name} {claim}; {left} are there")
    return header


def read_blocks(
    file: IO[bytes], header: Header, meter: Meter, rows: int = 0
) -> Iterator[NDArray[Any]]:
    """Yield the data, some rows at once, in the machine's byte order.

    An array in Fortran's order is read whole: its rows lie scattered.
    """
    inner = header.shape[1:]
    row_bytes = prod(inner) * header.dtype.itemsize
    if header.fortran or not row_bytes or not inner:
        yield read_whole(file, header, meter)
        return
    meter.hold(row_bytes, "one row")
    step = rows or max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, header.shape[0], step):
        meter.tick()
        count = min(step, header.shape[0] - start)
        yield _numbers(file, count * row_bytes, header.dtype).reshape(count, *inner)


def read_whole(file: IO[bytes], header: Header, meter: Meter) -> NDArray[Any]:
    """Return the whole array, if it fits the memory limit."""
    meter.hold(2 * header.size, f"an array of shape {list(header.shape)}")
    flat = _numbers(file, header.size, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _numbers(file: IO[bytes], size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        part = file.read(min(size - done, BLOCK_BYTES))
        if not part:
            raise InputError(f"ends {size - done} bytes too early")
        view[done : done + len(part)] = part
        done += len(part)
    flat: NDArray[Any] = np.frombuffer(buffer, dtype)
    return flat.astype(dtype.newbyteorder("="), copy=False)
