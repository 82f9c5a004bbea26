"""Tensors of a ``torch.save`` file, without torch, and read only when asked for.

Two layouts: the zip archive of torch 1.6 and later (``NAME/data.pkl``,
``NAME/data/KEY``, ``NAME/byteorder``), and the older stream of pickles followed by the
storages. Pickles run on `picklevm`, which imports and calls nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.picklevm import Machine
from moesim.routing.logs.source import open_binary
from moesim.routing.logs.tensors import Storage, Tensor
from moesim.routing.logs.zips import open_member, open_zip

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
KINDS = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
}
DTYPES = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "bf16",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint64": "u8",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
    "bool": "u1",
    "float8_e5m2": "f8_e5m2",
    "float8_e4m3fn": "f8_e4m3",
}
"""Types of tensors on an UntypedStorage, by torch's names."""
WIDTHS = {"bf16": 2, "f8_e5m2": 1, "f8_e4m3": 1}
Order = Literal["<", ">"]


@dataclass(frozen=True)
class TorchFile:
    """What a file holds: containers with `Tensor` in them, and how to read a storage."""

    content: Any
    order: Order
    raw: Callable[[Storage, int], bytes]
    meter: Meter

    def array(self, tensor: Any, what: str) -> NDArray[Any]:
        """Return the numbers of a tensor.

        Raises
        ------
        InputError
            `tensor` is none, is of an unknown type, reaches past its storage, or does
            not fit the memory limit.
        """
        if not isinstance(tensor, Tensor):
            found = type(tensor).__name__
            raise InputError(f"{what} is a {found}; a tensor is expected")
        kind = _kind(tensor, what)
        width = WIDTHS.get(kind) or np.dtype(kind).itemsize
        self.meter.tick()
        self.meter.hold(3 * 8 * prod(tensor.shape), f"{what}, shape {tensor.shape}")
        reach = tensor.offset + _span(tensor)
        untyped = tensor.storage.kind == "UntypedStorage"
        size = tensor.storage.size * (1 if untyped else width)
        if reach * width > size:
            raise InputError(f"{what} reaches past its storage of {size} bytes")
        self.meter.hold(2 * size, f"the storage of {what}")
        data = self.raw(tensor.storage, size)
        flat = _numbers(data[: size // width * width], kind, self.order)
        strides = [step * flat.itemsize for step in tensor.strides]
        return np.lib.stride_tricks.as_strided(
            flat[tensor.offset :], tensor.shape, strides, writeable=False
        ).copy()


@contextmanager
def open_torch(path: Path, meter: Meter) -> Iterator[TorchFile]:
    """Give what a ``torch.save`` file holds.

    Raises
    ------
    InputError
        It is none, is damaged, or its pickle asks for anything but tensors.
    """
    with open_binary(path) as file:
        zipped = file.read(2) == b"PK"
    if not zipped:
        meter.hold(2 * path.stat().st_size, "a file of torch's older format")
        with open_binary(path) as file:
            yield _legacy(file.read(), meter)
        return
    with open_zip(path, meter) as archive:
        yield _zipped(archive, meter)


def _zipped(archive: ZipFile, meter: Meter) -> TorchFile:
    found = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(found) != 1:
        raise InputError(f"holds {len(found)} members data.pkl; one is expected")
    root = found[0].removesuffix("/data.pkl")

    def member(name: str) -> bytes:
        meter.hold(archive.getinfo(name).file_size, name)
        with open_member(archive, name, meter) as file:
            return file.read()

    def raw(storage: Storage, size: int) -> bytes:
        name = f"{root}/data/{storage.key}"
        if name not in archive.NameToInfo:
            raise InputError(f"the storage {storage.key} is missing")
        data = member(name)
        if len(data) != size:
            claim = f"the storage {storage.key} claims {size} bytes"
            raise InputError(f"{claim}; {len(data)} are there")
        return data

    order = b"little"
    if f"{root}/byteorder" in archive.NameToInfo:
        order = member(f"{root}/byteorder").strip()
    if order not in (b"little", b"big"):
        raise InputError(f"its byte order is {order[:20]!r}; little or big is expected")
    program = member(found[0])
    content = Machine(program, 0, meter).run()
    return TorchFile(content, "<" if order == b"little" else ">", raw, meter)


def _legacy(data: bytes, meter: Meter) -> TorchFile:
    parts, place = [], 0
    for _ in range(5):
        machine = Machine(data, place, meter)
        parts.append(machine.run())
        place = machine.place
        if len(parts) == 1 and parts[0] != MAGIC:
            raise InputError("is a bare pickle, which is never read; torch.save is")
    _, protocol, system, content, keys = parts
    if protocol != PROTOCOL or not isinstance(system, dict):
        raise InputError("is no torch.save file of protocol 1001")
    order: Order = "<" if system.get("little_endian", True) is True else ">"
    begins = _storages(content, keys)

    def raw(storage: Storage, size: int) -> bytes:
        start = place
        for key in begins:
            count = int.from_bytes(
                data[start : start + 8], "little" if order == "<" else "big"
            )
            width = begins[key]
            if key == storage.key:
                found = data[start + 8 : start + 8 + size]
                if count * width != size or len(found) < size:
                    raise InputError(f"the storage {key} is cut off")
                return found
            start += 8 + count * width
        raise InputError(f"the storage {storage.key} is missing")

    return TorchFile(content, order, raw, meter)


def _storages(content: Any, keys: Any) -> dict[str, int]:
    """Return bytes per element of every storage, in the order of the file."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InputError("its list of storages is no list of names")
    kinds: dict[str, str] = {}
    seen: set[int] = set()
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            kinds[value.storage.key] = value.storage.kind
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return {key: _width(kinds.get(key, "")) for key in keys}


def _width(kind: str) -> int:
    name = KINDS.get(kind, "u1")
    return WIDTHS.get(name) or np.dtype(name).itemsize


def _kind(tensor: Tensor, what: str) -> str:
    name = tensor.storage.kind
    if name == "UntypedStorage" and tensor.dtype in DTYPES:
        return DTYPES[tensor.dtype]
    if name in KINDS:
        return KINDS[name]
    found = ascii(tensor.dtype or name)[:60]
    raise InputError(f"{what} is of {found}; torch's plain number types are read")


def _span(tensor: Tensor) -> int:
    """Return how many elements of the storage a tensor reaches over."""
    if 0 in tensor.shape:
        return 0
    steps = zip(tensor.shape, tensor.strides, strict=True)
    return 1 + sum((size - 1) * step for size, step in steps)


def _numbers(data: bytes, kind: str, order: Order) -> NDArray[Any]:
    """Return raw bytes as numbers in the machine's order; narrow floats as singles."""
    if kind == "bf16":
        wide = np.frombuffer(data, f"{order}u2").astype(np.uint32) << 16
        return wide.view(np.float32)
    if kind == "f8_e5m2":
        halves = np.frombuffer(data, np.uint8).astype(np.uint16) << 8
        return halves.view(np.float16).astype(np.float32)
    if kind == "f8_e4m3":
        return _e4m3()[np.frombuffer(data, np.uint8)]
    flat: NDArray[Any] = np.frombuffer(data, f"{order}{kind}")
    return flat.astype(flat.dtype.newbyteorder("="), copy=False)


def _e4m3() -> NDArray[np.float32]:
    """Return the value of every byte as a float of 4 exponent and 3 mantissa bits."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, (code & 7) / 8
    normal = np.exp2(exponent - 7.0) * (1 + mantissa)
    value = np.where(exponent == 0, np.exp2(-6.0) * mantissa, normal)
    value[(code & 127) == 127] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)
