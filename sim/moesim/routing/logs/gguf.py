"""The index of a GGUF file: which tensors it has and where.

Format: ``docs/gguf.md`` of ggml-org/ggml, versions 2 and 3: magic, version, counts,
key-value pairs, tensor infos, then the data, aligned.
"""

import struct
from dataclasses import dataclass
from math import prod
from typing import BinaryIO, Literal

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs.limits import Meter
from moesim.types import Floats

VERSIONS = (2, 3)
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of each number type."""
STRING, ARRAY, FLOAT32, UINT32 = 8, 9, 0, 4
ALIGNMENT = "general.alignment"
LONGEST_NAME = 1 << 16
MOST_AXES = 4
ENTRY_BYTES = 400
"""Memory for one tensor of the index."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its sizes, fastest first, its type, and where in the data it begins."""

    sizes: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Index:
    """All tensors of a file, and where its data begins."""

    tensors: dict[str, Entry]
    start: int
    order: Literal["<", ">"]


class _Reader:
    """Reads numbers and texts in a row, within the file."""

    def __init__(self, file: BinaryIO, meter: Meter) -> None:
        self.file, self.meter = file, meter
        self.total = file.seek(0, 2)
        file.seek(0)
        self.order: Literal["<", ">"] = "<"

    def bytes(self, size: int) -> bytes:
        """Return the next bytes."""
        data = self.file.read(size) if size <= LONGEST_NAME else b""
        if len(data) < size:
            raise InputError("the index is cut off, or holds a name that is too long")
        return data

    def number(self, form: str) -> int:
        """Return the next whole number, in the form of `struct`."""
        data = self.bytes(struct.calcsize(form))
        return int(struct.unpack(self.order + form, data)[0])

    def skip(self, size: int) -> None:
        """Pass over bytes that are there."""
        if size < 0 or self.file.tell() + size > self.total:
            raise InputError("the index is cut off")
        self.file.seek(size, 1)

    def name(self) -> str:
        """Return the next text."""
        size = self.number("Q")
        return self.bytes(min(size, LONGEST_NAME + 1)).decode("utf-8", "replace")


def read_index(file: BinaryIO, meter: Meter) -> Index:
    """Return the tensors of a GGUF.

    Raises
    ------
    InputError
        Another version, or an index that does not fit the file.
    """
    reader = _Reader(file, meter)
    if reader.bytes(4) != b"GGUF":
        raise InputError("is no GGUF")
    version = reader.number("I")
    if not version & 0xFFFF:  # written on a machine of the other byte order
        reader.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS:
        raise InputError(f"is a GGUF of version {version}; 2 and 3 are read")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    left = reader.total - file.tell()
    if tensors * 24 + pairs * 13 > left:
        raise InputError(f"claims {tensors} tensors and {pairs} keys in {left} bytes")
    meter.hold(tensors * ENTRY_BYTES, f"an index of {tensors} tensors")
    alignment = 32
    for _ in range(pairs):
        meter.tick()
        alignment = _pair(reader) or alignment
    found = _infos(reader, tensors)
    if alignment & (alignment - 1) or alignment > 1 << 20:
        raise InputError(f"its alignment is {alignment}; a power of two is expected")
    start = -(-file.tell() // alignment) * alignment
    return Index(found, start, reader.order)


def read_floats(file: BinaryIO, index: Index, entry: Entry, meter: Meter) -> Floats:
    """Return a float32 tensor, flat.

    Raises
    ------
    InputError
        It has another type, lies outside the file or does not fit the memory limit.
    """
    size = 4 * prod(entry.sizes)
    if entry.kind != FLOAT32:
        raise InputError(f"counts are of GGML type {entry.kind}; float32 is expected")
    meter.hold(4 * size, "counts")
    place = index.start + entry.offset
    if place + size > file.seek(0, 2):
        raise InputError(f"counts at byte {place} lie outside the file")
    file.seek(place)
    return np.frombuffer(file.read(size), f"{index.order}f4").astype(np.float64)


def _infos(reader: _Reader, tensors: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for _ in range(tensors):
        name = reader.name()
        axes = reader.number("I")
        if axes > MOST_AXES:
            raise InputError(f"a tensor has {axes} axes; at most {MOST_AXES} are known")
        sizes = tuple(reader.number("Q") for _ in range(axes))
        entry = Entry(sizes, reader.number("I"), reader.number("Q"))
        if name in found:
            raise InputError(f"the tensor {ascii(name)[:60]} is there twice")
        found[name] = entry
    return found


def _pair(reader: _Reader) -> int:
    """Pass over a key and its value; return the value if it is the alignment."""
    key, kind = reader.name(), reader.number("I")
    if key == ALIGNMENT and kind == UINT32:
        return reader.number("I")
    if kind == ARRAY:
        _skip_array(reader)
    else:
        _skip(reader, kind, 1)
    return 0


def _skip_array(reader: _Reader) -> None:
    kind, count = reader.number("I"), reader.number("Q")
    if kind == ARRAY:
        raise InputError("an array of arrays in the index is not read")
    if count > reader.total:
        raise InputError(f"an array in the index claims {count} values")
    _skip(reader, kind, count)


def _skip(reader: _Reader, kind: int, count: int) -> None:
    if kind == STRING:
        for number in range(count):
            if number % 4096 == 0:
                reader.meter.tick()
            reader.skip(reader.number("Q"))
    elif kind in WIDTHS:
        reader.skip(WIDTHS[kind] * count)
    else:
        raise InputError(f"the index has a value of type {kind}, which is unknown")
