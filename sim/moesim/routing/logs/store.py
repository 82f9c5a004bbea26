"""Rows of numbers that grow block by block: in memory, or on disk beyond a cap.

Axes: ``n`` rows, ``...`` what one row holds.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 22
"""Bytes of a block that is read at once; small enough for a processor's cache."""


class Unnamed:
    """A temporary file that no one else can open, and that goes when it is forgotten."""

    def __init__(self) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="moesim-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._descriptor)

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        while len(data):
            data = data[os.write(self._descriptor, data) :]

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Read exactly the bytes that fill `buffer`."""
        while len(buffer):
            got = os.preadv(self._descriptor, [buffer], offset)
            if not got:
                raise OSError("the temporary file of this log is cut off")
            buffer, offset = buffer[got:], offset + got

    def map(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        offset: int = 0,
        mode: Literal["r", "r+"] = "r+",
    ) -> NDArray[Any]:
        """Return the file as an array; one that is written to is made long enough."""
        # A descriptor of its own, so that the map outlives this object.
        with os.fdopen(os.dup(self._descriptor), "r+b") as file:
            if mode == "r+":
                file.truncate(offset + prod(shape) * dtype.itemsize)
            return np.memmap(file, dtype, mode, offset, shape)


class Rows:
    """``(n, ...)`` numbers that do not change, in memory or in an unnamed file."""

    def __init__(
        self,
        held: "bytearray | Unnamed",
        dtype: np.dtype[Any],
        inner: Sequence[int],
        span: tuple[int, int],
    ) -> None:
        self._held = held
        self.dtype = dtype
        self._inner = tuple(inner)
        self._first, self._end = span

    @property
    def shape(self) -> tuple[int, ...]:
        """How many rows there are, and the shape of each."""
        return (len(self), *self._inner)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self._inner) * self.dtype.itemsize

    @property
    def on_disk(self) -> bool:
        """Whether the rows lie in a file instead of in memory."""
        return not isinstance(self._held, bytearray)

    def __len__(self) -> int:
        return self._end - self._first

    def after(self, rows: int) -> "Rows":
        """Return the same without the first `rows`; nothing is copied."""
        return Rows(
            self._held, self.dtype, self._inner, (self._first + rows, self._end)
        )

    def take(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop`; from disk they are read, else they are a view."""
        start, stop = min(start, len(self)), min(stop, len(self))
        shape = (stop - start, *self._inner)
        offset = (self._first + start) * self.row_bytes
        if isinstance(self._held, bytearray):
            flat = np.frombuffer(self._held, self.dtype, prod(shape), offset)
        else:
            flat = np.empty(prod(shape), self.dtype)
            self._held.fill(flat.view(np.uint8).data, offset)
        flat.flags.writeable = False
        return flat.reshape(shape)

    def blocks(self, rows: int = 0) -> Iterator[NDArray[Any]]:
        """Yield all rows in order, `rows` at a time (default: about 4 MiB)."""
        step = rows or max(1, BLOCK_BYTES // max(1, self.row_bytes))
        for start in range(0, len(self), step):
            yield self.take(start, start + step)

    def array(self) -> NDArray[Any]:
        """Return all rows: a view of memory, or a map of the file."""
        if isinstance(self._held, bytearray) or not len(self):
            return self.take(0, len(self))
        offset = self._first * self.row_bytes
        return self._held.map(self.dtype, self.shape, offset, "r")


class Spool:
    """Takes blocks of whole numbers, in the narrowest unsigned type that holds them.

    Parameters
    ----------
    inner : sequence of int
        Shape of one row.
    memory_bytes : int
        Beyond this many bytes rows go to an unnamed temporary file.
    dtype : data type
        The type to begin with; larger numbers widen it.
    """

    def __init__(
        self, inner: Sequence[int], memory_bytes: int, dtype: Any = np.uint8
    ) -> None:
        self.inner = tuple(inner)
        self.dtype = np.dtype(dtype)
        self.rows = 0
        self._cap = memory_bytes
        self._held: bytearray | Unnamed = bytearray()

    def append(self, block: NDArray[Any]) -> None:
        """Add rows that are not negative; the caller has looked at them."""
        if block.size and block.max() > np.iinfo(self.dtype).max:
            self._widen(np.min_scalar_type(block.max()))
        data = np.ascontiguousarray(block, self.dtype)
        room = self._cap - data.nbytes
        if isinstance(self._held, bytearray) and len(self._held) > room:
            self._spill()
        if isinstance(self._held, bytearray):
            self._held += data.reshape(-1).view(np.uint8).data if data.size else b""
        else:
            self._held.write(data.reshape(-1).view(np.uint8).data)
        self.rows += len(block)

    def finish(self) -> Rows:
        """Return what was added."""
        return Rows(self._held, self.dtype, self.inner, (0, self.rows))

    def _spill(self) -> None:
        file = Unnamed()
        if isinstance(self._held, bytearray):
            file.write(memoryview(self._held))
        self._held = file

    def _widen(self, dtype: np.dtype[Any]) -> None:
        old = self.finish()
        wider = Spool(self.inner, self._cap, dtype)
        for block in old.blocks():
            wider.append(block)
        self.dtype, self._held = wider.dtype, wider._held
