"""Logs in our two forms: ``.npz``, which `routing: log` replays, and parquet.

A file appears whole or not at all, and its bytes depend on nothing but the log.

Axes: ``T`` tokens, ``L`` layers, ``k`` experts of a token, ``S`` steps, ``E`` experts.
"""

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.routing.logs.describe import DESCRIPTION, describe
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.parquet import LAYER, SEQUENCE
from moesim.spec.files import place
from moesim.types import Ints

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip: files of one log are equal to the byte."""
Writer = Callable[[RoutingLog, str | Path], None]


def check_place(path: str | Path, *, force: bool = False) -> Writer:
    """Return what writes a log in the form that a name asks for; nothing is written.

    Raises
    ------
    InputError
        The name ends in neither ``.npz`` nor ``.parquet``; something is there already
        and `force` is not given; or its folder is not there or is read-only.
    """
    target = Path(path)
    writer = WRITERS.get(target.suffix.lower())
    if writer is None:
        known = " or ".join(WRITERS)
        raise _refusal(target, f"the name must end in {known}")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise _refusal(target, "is no regular file; name a new one")
    if target.exists() and not force:
        raise _refusal(target, "exists; choose another name, or --force (force=True)")
    home = next((up for up in target.absolute().parents if up.exists()), target)
    if home != target.absolute().parent or not home.is_dir():
        raise _refusal(target, f"there is no folder {place(target.parent)}")
    if not os.access(home, os.W_OK | os.X_OK):
        raise _refusal(target, f"{place(target.parent)} cannot be written to")
    return writer


def write_log(log: RoutingLog, path: str | Path, *, force: bool = False) -> Path:
    """Write a log in the form that the name asks for; return where.

    Raises
    ------
    InputError
        The place is none (`check_place`), or nothing can be written there.
    """
    writer, target = check_place(path, force=force), Path(path)
    try:
        writer(log, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refusal(target, f"cannot be written: {reason}") from None
    return target


def write_npz(log: RoutingLog, path: str | Path) -> None:
    """Write the canonical ``.npz``, not compressed; an old file is replaced.

    ``expert_ids`` (T, L, k) and ``seq_lens``, one sequence where they are unknown; or
    ``counts`` (S, L, E), and ``phy2log`` of a placement; and ``moesim``, a description.
    """
    about = np.frombuffer(describe(log), np.uint8)
    with _whole_file(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        _member(archive, DESCRIPTION, about)
        if log.tokens is not None:
            shape, dtype = log.tokens.shape, log.tokens.dtype
            with _open_member(archive, "expert_ids") as member:
                _header(member, shape, dtype)
                for block in log.blocks():
                    member.write(np.ascontiguousarray(block).tobytes())
            lengths = log.lengths
            if lengths is None:
                lengths = np.array([log.steps], np.int64)
            _member(archive, "seq_lens", lengths)
        if log.counts is not None:
            _member(archive, "counts", log.counts)
        if log.phy2log is not None:
            _member(archive, "phy2log", log.phy2log)


def write_parquet(log: RoutingLog, path: str | Path) -> None:
    """Write the canonical parquet; an old file is replaced.

    A row a token, columns ``layer_NAME`` of k ids and ``sequence``; or a row for each
    step, layer and expert, with its count. Names of layers that are no numbers, and
    placements, have no such table.

    Raises
    ------
    InputError
        The log cannot be written so.
    """
    import pyarrow.parquet as pq

    tables = _token_tables(log) if log.tokens is not None else _count_tables(log)
    first = next(tables)
    options = {"compression": "zstd", "write_page_checksum": True}
    with (
        _whole_file(Path(path)) as file,
        pq.ParquetWriter(file, first.schema, **options) as writer,
    ):
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


WRITERS: dict[str, Writer] = {
    ".npz": write_npz,
    ".parquet": write_parquet,
}
"""How a log is written, by the ending of the name."""


def _token_tables(log: RoutingLog) -> Iterator[Any]:
    import pyarrow as pa

    metadata = {DESCRIPTION: describe(log)}
    lengths = log.lengths if log.lengths is not None else np.array([log.steps])
    ends, start = np.cumsum(lengths), 0
    for block in log.blocks():
        columns = {
            f"{LAYER}{name}": pa.FixedSizeListArray.from_arrays(
                pa.array(np.ascontiguousarray(block[:, at]).ravel()), log.top_k
            )
            for at, name in enumerate(log.layers)
        }
        rows = np.arange(start, start + len(block))
        columns[SEQUENCE] = pa.array(np.searchsorted(ends, rows, side="right"))
        yield pa.table(columns).replace_schema_metadata(metadata)
        start += len(block)


def _count_tables(log: RoutingLog) -> Iterator[Any]:
    import pyarrow as pa

    if log.counts is None or log.unit != "tokens" or log.counts.dtype.kind == "f":
        raise InputError("only whole counts of tokens have a table; write an .npz")
    if not all(name.isdecimal() for name in log.layers):
        raise InputError("layers without numbers have no such table; write an .npz")
    metadata = {DESCRIPTION: describe(log)}
    for step, counts in enumerate(log.counts):
        layer, expert = np.indices(counts.shape)
        names = np.array([int(name) for name in log.layers])
        columns: dict[str, Ints | NDArray[Any]] = {
            "step": np.full(counts.size, step),
            "layer": names[layer.ravel()],
            "expert": expert.ravel(),
            "count": counts.ravel(),
        }
        yield pa.table(columns).replace_schema_metadata(metadata)


def _member(archive: zipfile.ZipFile, name: str, values: NDArray[Any]) -> None:
    with _open_member(archive, name) as member:
        _header(member, values.shape, values.dtype)
        member.write(np.ascontiguousarray(values).tobytes())


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    info = zipfile.ZipInfo(f"{name}.npy", EPOCH)
    with archive.open(info, "w", force_zip64=True) as member:
        yield member


def _header(member: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    npy_format.write_array_header_1_0(
        member,
        {"descr": dtype.str, "fortran_order": False, "shape": shape},
    )


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file beside `path`, which takes its place once the block is done."""
    fresh = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    try:
        with fresh.open("xb") as file:
            yield file
        os.replace(fresh, path)
    finally:
        with suppress(OSError):
            fresh.unlink()


def _refusal(path: Path, message: str) -> InputError:
    return InputError([Problem(message, place(path), key="out")])
