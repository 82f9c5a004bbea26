"""Tensors in Hugging Face's ``.safetensors`` form: a JSON table and raw numbers.

Format: 8 bytes little-endian length of the table, the table, the data; each tensor has
``dtype``, ``shape`` and ``data_offsets`` into the data, which they fill without holes.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.text import parse_json

TYPES = {
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
SIZES = {"BOOL": 1, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
"""Types that may stand in a file but are no ids or counts."""
LONGEST_TABLE = 100_000_000
"""Bytes of the table that the reference implementation accepts."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies: bytes from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_table(file: BinaryIO, meter: Meter) -> dict[str, Entry]:
    """Return every tensor of a file by name, once the table agrees with its size.

    Raises
    ------
    InputError
        No such file, or tensors that overlap, leave holes, or have another size than
        their shape.
    """
    total = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if total < 8 or not 2 <= length <= min(total - 8, LONGEST_TABLE):
        raise InputError(f"its table claims {length} bytes; the file has {total}")
    if length > meter.document_bytes:
        raise InputError(f"its table of {length} bytes does not fit the memory limit")
    table = parse_json(file.read(length), meter)
    if not isinstance(table, dict):
        raise InputError("its table is no JSON object")
    table.pop("__metadata__", None)
    found = {
        name: _entry(name, value, 8 + length, total) for name, value in table.items()
    }
    _check_cover(found, 8 + length, total)
    return found


def read_tensor(file: BinaryIO, entry: Entry, name: str, meter: Meter) -> NDArray[Any]:
    """Return one tensor of numbers.

    Raises
    ------
    InputError
        Its type is none of `TYPES`, it does not fit the memory limit, or it is cut off.
    """
    if entry.dtype not in TYPES:
        known = ", ".join(TYPES)
        raise InputError(f"{name!a} is {entry.dtype}; {known} are read")
    meter.tick()
    meter.hold(2 * entry.size, f"the tensor {ascii(name)[:60]}")
    file.seek(entry.start)
    data = file.read(entry.size)
    if len(data) < entry.size:
        raise InputError(f"{name!a} is cut off")
    values: NDArray[Any] = np.frombuffer(data, TYPES[entry.dtype]).reshape(entry.shape)
    return values


def _entry(name: str, value: Any, start: int, total: int) -> Entry:
    what = ascii(name)[:60]
    if not isinstance(value, dict):
        raise InputError(f"{what} is described by no object")
    dtype, shape, offsets = (value.get(k) for k in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or (dtype not in TYPES and dtype not in SIZES):
        raise InputError(f"{what} has the dtype {ascii(dtype)[:40]}, which is unknown")
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise InputError(f"{what} has no plain shape and data_offsets")
    first, end = offsets
    width = SIZES.get(dtype) or np.dtype(TYPES[dtype]).itemsize
    if not 0 <= first <= end <= total - start or prod(shape) * width != end - first:
        claim = f"{what} claims shape {shape} of {dtype}"[:160]
        raise InputError(f"{claim} at bytes {first} to {end}; that does not fit")
    return Entry(dtype, tuple(shape), start + first, end - first)


def _whole(values: Any) -> TypeGuard[list[int]]:
    """Tell whether `values` is a short list of whole numbers that a file can have."""
    if not isinstance(values, list) or len(values) > 8:
        return False
    return all(type(item) is int and 0 <= item < 1 << 48 for item in values)


def _check_cover(found: dict[str, Entry], start: int, total: int) -> None:
    """Refuse tensors that overlap, share an offset with an empty one, or leave holes."""
    place = start
    for entry in sorted(found.values(), key=lambda entry: (entry.start, entry.size)):
        if entry.start != place:
            raise InputError(f"its tensors overlap or leave a hole at byte {place}")
        place += entry.size
    if place != total:
        raise InputError(f"ends at byte {total}; its tensors end at byte {place}")
