"""Placements and loads that somebody else measured or computed, read from files.

``.npz`` and ``.json`` name their array, ``.npy`` and ``.csv`` (a line a layer) hold only
that. All are whole numbers: of placements, ``(L, P)`` experts of slots; of loads,
``(L, E)`` tokens of experts, or ``(n, L, E)`` in ``n`` windows, which are added up.

Axes: ``L`` MoE layers, ``E`` experts, ``P`` slots of a layer, ``G`` GPUs.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.routing.archive import DAMAGE, HEADERS, read_whole_numbers, refusal
from moesim.spec.files import read_json, read_text
from moesim.spec.placement import Placement
from moesim.types import Floats, Ints

MOST_BYTES = 1 << 26
"""Bytes of a file that is not an archive; a placement of DeepSeek-V3 has 90 kB."""
MAPS = ("phy2log", "physical_to_logical_map")
"""What EPLB and SGLang call a placement."""
LOADS = ("loads", "logical_count")
"""What loads are called, in SGLang's dumps the latter."""
_ROW = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})*")


def read_placement(path: Path, layers: int, experts: int, gpus: int) -> Placement:
    """Return the placement in a ``phy2log`` file.

    Raises
    ------
    InputError
        The file cannot be read, or its placement does not fit the model and the GPUs.
    """
    slots = _read(path, MAPS)
    placement = Placement(slots, gpus)
    try:
        placement.check(layers, experts)
    except InputError as error:
        found = [
            refusal(path, f"cannot be used: {p.message}").problems[0]
            for p in error.problems
        ]
        raise InputError(found) from None
    return placement


def read_loads(path: Path, layers: int, experts: int) -> Floats:
    """Return ``(L, E)``: the tokens of each expert, windows added up.

    Raises
    ------
    InputError
        The file cannot be read, its shape is not the model's, or a load is negative.
    """
    loads = _read(path, LOADS)
    if loads.ndim not in (2, 3) or loads.shape[-2:] != (layers, experts):
        needed = f"[{layers} MoE layers, {experts} experts], or such windows"
        raise refusal(path, f"has shape {list(loads.shape)}; the model needs {needed}")
    if (loads < 0).any():
        place = np.argwhere(loads < 0)[0].tolist()
        raise refusal(path, f"has a load below 0 at {place}")
    total: Floats = loads.reshape(-1, layers, experts).sum(axis=0, dtype=np.float64)
    return total


def _read(path: Path, names: tuple[str, ...]) -> Ints:
    """Return the array of whole numbers in a file, by the file's kind."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        kinds = ", ".join(_READERS)
        raise refusal(path, f"is none of the kinds that are read: {kinds}")
    found = reader(path, names)
    if found.size == 0 or found.dtype.kind not in "iu":
        raise refusal(path, f"holds {found.dtype}; whole numbers are expected")
    if found.dtype.kind == "u" and found.max() > np.iinfo(np.int64).max:
        raise refusal(path, f"holds {found.max()}, which is too large")
    return found.astype(np.int64)


def _from_npz(path: Path, names: tuple[str, ...]) -> NDArray[Any]:
    problems: list[Problem] = []
    for name in names:
        try:
            return read_whole_numbers(path, (name,))[0]
        except InputError as error:
            problems += error.problems
    raise InputError(problems[:1])


def _from_npy(path: Path, names: tuple[str, ...]) -> NDArray[Any]:
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise refusal(path, f"is no file of at most {MOST_BYTES} bytes")
    try:
        data = path.read_bytes()
        file = io.BytesIO(data)
        shape, _, kind = HEADERS[npy.read_magic(file)](file)
        left = len(data) - file.tell()
        if min(shape, default=0) < 0 or prod(shape) * kind.itemsize != left:
            raise ValueError(f"shape {list(shape)} of {kind} is not its {left} bytes")
        found: NDArray[Any] = npy.read_array(io.BytesIO(data), allow_pickle=False)
    except DAMAGE as error:
        raise refusal(path, f"cannot be read as .npy ({error!s:.120})") from None
    return found


def _from_json(path: Path, names: tuple[str, ...]) -> NDArray[Any]:
    table = read_json(path, MOST_BYTES)
    known = [name for name in names if name in table]
    if not known:
        raise refusal(path, f"has no key {' or '.join(names)}")
    return _array(path, table[known[0]])


def _from_csv(path: Path, names: tuple[str, ...]) -> NDArray[Any]:
    rows = read_text(path, MOST_BYTES).replace("\r\n", "\n").rstrip("\n").split("\n")
    for number, row in enumerate(rows, 1):
        if not _ROW.fullmatch(row):
            message = f"whole numbers with commas between are expected; got {row!a:.40}"
            raise InputError([Problem(message, str(path), number)])
    return _array(path, [json.loads(f"[{row}]") for row in rows])


def _array(path: Path, rows: Any) -> NDArray[Any]:
    """Return nested lists of whole numbers as an array."""
    try:
        found = np.array(rows)
    except (ValueError, OverflowError):
        raise refusal(path, "has rows of different lengths") from None
    return found


_READERS: Mapping[str, Callable[[Path, tuple[str, ...]], NDArray[Any]]] = {
    ".npz": _from_npz,
    ".npy": _from_npy,
    ".json": _from_json,
    ".jsonl": _from_json,
    ".csv": _from_csv,
}
