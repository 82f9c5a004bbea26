"""Recorded routing: whole sequences of a log, token by token.

The canonical log is an ``.npz`` with ``expert_ids``, ``[T, L, k]`` of a whole-number
type, and ``seq_lens``, the lengths of its sequences in order. Files are read as data
only: nothing is unpickled, and sizes are checked before anything is inflated.

Axes: ``T`` tokens of the log, ``L`` MoE layers, ``k`` experts of a token.
"""

import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from moesim.errors import InputError, Problem
from moesim.routing.source import TokenKeys
from moesim.types import Ids, Ints

LARGEST_BYTES = 1 << 33
"""Bytes an array may have once inflated."""
LARGEST_RATIO = 400
"""How much larger than in the file; real ids compress about 1.3 times."""
ARRAYS = ("expert_ids", "seq_lens")
MOST_PROBLEMS = 20
UNREADABLE = (
    zipfile.BadZipFile,
    ArithmeticError,
    EOFError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    zlib.error,
)
"""What a broken archive or header makes the standard library raise."""


@dataclass(frozen=True)
class Log:
    """Request ``r`` replays sequence ``r`` (modulo their number) of a recorded log.

    Parameters
    ----------
    path : str
        An ``.npz`` with ``expert_ids`` ``[T, L, k]`` and ``seq_lens``. A request longer
        than its sequence starts it again.
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    path: str = ""

    def __post_init__(self) -> None:
        ids, lengths = self._arrays
        problems = _shape_problems(self, ids, lengths) or _id_problems(self, ids)
        if problems:
            raise InputError([Problem(text, key="path") for text in problems])

    @cached_property
    def _arrays(self) -> tuple[Ids, Ints]:
        ids, lengths = read_arrays(Path(self.path))
        return ids, lengths.astype(np.int64)

    @cached_property
    def _ids(self) -> Ids:
        return self._arrays[0].astype(np.uint16)

    @property
    def sequence_lengths(self) -> Ints:
        """``(n,)``: tokens of each recorded sequence."""
        return self._arrays[1]

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: the recorded expert ids of each token."""
        lengths = self.sequence_lengths
        first = np.cumsum(lengths) - lengths
        sequence = keys.request % len(lengths)
        return self._ids[first[sequence] + keys.position % lengths[sequence]]


def read_arrays(path: Path) -> tuple[Any, Any]:
    """Return ``expert_ids`` and ``seq_lens`` as stored.

    Raises
    ------
    InputError
        No regular file, not a zip of plain arrays, an array is missing, too large or
        no array of whole numbers.
    """
    if not path.is_file():
        raise _refused(path, "is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.namelist()
            missing = [name for name in ARRAYS if f"{name}.npy" not in found]
            if missing or len(found) != len(set(found)):
                message = f"holds {', '.join(found) or 'nothing'}; expected expert_ids "
                raise _refused(path, message + "[T, L, k] and seq_lens, once each")
            ids, lengths = (_member(archive, f"{name}.npy", path) for name in ARRAYS)
    except UNREADABLE as error:
        raise _refused(path, f"is no readable .npz: {error}") from None
    return ids, lengths


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Any:
    """Return one array, after its declared size has been believed."""
    info = archive.getinfo(name)
    if info.file_size > LARGEST_BYTES:
        raise _refused(path, f"{name} would take {info.file_size} bytes")
    if info.file_size > LARGEST_RATIO * max(info.compress_size, 1) + 4096:
        raise _refused(path, f"{name} inflates more than {LARGEST_RATIO} times")
    with archive.open(info) as file:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in read:
            raise _refused(path, f"{name} has .npy version {version}")
        shape, _, kind = read[version](file)
        claimed = int(np.prod(shape, dtype=object)) * kind.itemsize
        if kind.kind not in "iu":
            raise _refused(path, f"{name} holds {kind}; whole numbers are expected")
        if claimed > info.file_size or min(shape, default=0) < 0:
            raise _refused(path, f"{name} claims {claimed} bytes, has {info.file_size}")
    with archive.open(info) as file:
        return npy.read_array(file, allow_pickle=False)


def _shape_problems(log: Log, ids: Any, lengths: Any) -> list[str]:
    expected = ("T", log.layers, log.top_k)
    if ids.ndim != 3 or ids.shape[1:] != expected[1:]:
        return [f"expert_ids is {list(ids.shape)}; the model needs {list(expected)}"]
    if lengths.ndim != 1 or not len(lengths) or (lengths < 1).any():
        return ["seq_lens is a list of lengths, each at least 1"]
    if int(lengths.sum()) != len(ids):
        return [
            f"seq_lens sums to {int(lengths.sum())}; expert_ids has {len(ids)} tokens"
        ]
    return []


def _id_problems(log: Log, ids: Any) -> list[str]:
    """Return the first tokens with an id out of range or twice in a layer."""
    outside = np.argwhere(((ids < 0) | (ids >= log.experts)).any(axis=2))
    problems = [
        f"token {token}, layer {layer}: ids {ids[token, layer].tolist()}; the model has "
        f"experts 0 to {log.experts - 1}"
        for token, layer in outside[:MOST_PROBLEMS].tolist()
    ]
    ordered = np.sort(ids, axis=2)
    twice = np.argwhere((ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2))
    return problems + [
        f"token {token}, layer {layer}: an expert stands twice in "
        f"{ids[token, layer].tolist()}"
        for token, layer in twice[: MOST_PROBLEMS - len(problems)].tolist()
    ]


def _refused(path: Path, message: str) -> InputError:
    return InputError([Problem(f"{ascii(str(path))[1:-1]} {message}", key="path")])
