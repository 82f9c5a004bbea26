"""Arrays of an ``.npz`` or ``.npy``, whole or block by block.

Axes: ``n`` rows (the first axis of an array).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs import npy
from moesim.routing.logs.source import Source, open_binary
from moesim.routing.logs.zips import open_member, open_zip


def whole(source: Source, name: str) -> NDArray[Any]:
    """Return one array; ``""`` is that of an ``.npy``.

    Raises
    ------
    InputError
        It is missing, damaged, or does not fit the memory limit.
    """
    with ExitStack() as stack:
        file, header = _open(stack, source, name)
        return npy.read_whole(file, header, source.meter)


def blocks(source: Source, names: list[str], rows: int) -> Iterator[list[NDArray[Any]]]:
    """Yield the same `rows` rows of several arrays, side by side.

    `rows` 0: some 4 MiB of the first array.

    Raises
    ------
    InputError
        As `whole`; or they have different numbers of rows.
    """
    with ExitStack() as stack:
        opened = [_open(stack, source, name) for name in names]
        sizes = {header.shape[:1] for _, header in opened}
        if len(sizes) > 1:
            raise InputError(f"arrays have different numbers of rows: {sorted(sizes)}")
        if len(opened) > 1 and any(header.fortran for _, header in opened):
            raise InputError("arrays are in Fortran's order; save them in C's")
        streams = [
            npy.read_blocks(file, header, source.meter, rows) for file, header in opened
        ]
        yield from map(list, zip(*streams, strict=True))


def names_in(path: Path, source: Source) -> list[str]:
    """Return the names of an archive's arrays; ``[""]`` for an ``.npy``."""
    if not _is_zip(path):
        return [""]
    with open_zip(path, source.meter) as archive:
        found = [name for name in archive.namelist() if name.endswith(".npy")]
    return [name.removesuffix(".npy") for name in islice(found, 1 << 16)]


def _open(stack: ExitStack, source: Source, name: str) -> tuple[IO[bytes], npy.Header]:
    path = source.files[0]
    if not name:
        file: IO[bytes] = stack.enter_context(open_binary(path))
        return file, npy.read_header(file, path.stat().st_size, "the file")
    archive: ZipFile = stack.enter_context(open_zip(path, source.meter))
    member = f"{name}.npy"
    if member not in archive.NameToInfo:
        listed = ascii(", ".join(archive.namelist()[:20]))[1:-1] or "nothing"
        raise InputError(f"holds {listed:.200}; {ascii(member)[1:-1]} is expected")
    file = stack.enter_context(open_member(archive, member, source.meter))
    size = archive.getinfo(member).file_size
    return file, npy.read_header(file, size, ascii(member)[1:-1])


def _is_zip(path: Path) -> bool:
    with open_binary(path) as file:
        return file.read(2) == b"PK"
