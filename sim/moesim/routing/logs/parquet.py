"""Parquet: a long table as in CSV, or one row a token; the latter is our own form.

Ours: columns ``layer_NAME``, each a list of k experts, one row a token; ``sequence``,
the number of its sequence; metadata ``moesim``, our description in JSON.

Axes: ``n`` rows, ``L`` layers, ``k`` experts of a token.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.describe import DESCRIPTION, Description, parse
from moesim.routing.logs.limits import MOST_LAYERS, Meter
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source
from moesim.routing.logs.table import columns_of, read_table
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

NAME = "parquet"
SUMMARY = "parquet: columns layer_* of lists, a row a token; or a long table as in CSV"
FOLDERS = False
LAYER, SEQUENCE = "layer_", "sequence"
BATCH_ROWS = 1 << 14
VALUE_BYTES = 8
"""Of one number, decoded: a run of equal ones takes almost nothing in the file."""
SLACK_BYTES = 1 << 20
"""Below this size no ratio is suspicious."""


def recognise(peek: Peek) -> bool:
    """Tell whether this is parquet."""
    return peek.container == "parquet"


def read(source: Source) -> RoutingLog:
    """Return tokens or counts, row group by row group."""
    import pyarrow as pa

    try:
        return _read(source)
    except (pa.ArrowException, OSError, NotImplementedError) as error:
        raise InputError(f"cannot be read as parquet ({error!s:.120})") from None


def _read(source: Source) -> RoutingLog:
    file = _open(source.files[0], source.meter)
    names = file.schema_arrow.names
    about = _described(file, source)
    layers = [name for name in names if name.startswith(LAYER)]
    if layers:
        return _wide(source, file, layers, about)
    columns = columns_of(names)
    rows = (
        np.stack([_whole(batch.column(name), name) for name in names], axis=1)
        for batch in _batches(file, names, source.meter)
    )
    hints = replace(source.hints, experts=source.hints.experts or about.experts)
    log = read_table(replace(source, hints=hints), NAME, columns, rows)
    same = set(about.layers) == set(log.layers)
    return replace(log, layers=about.layers) if same and about.layers else log


def _wide(
    source: Source, file: Any, names: list[str], about: Description
) -> RoutingLog:
    experts = source.hints.experts or about.experts
    told = replace(source, hints=replace(source.hints, experts=experts))
    sink = TokenSink(told, [name.removeprefix(LAYER) for name in names])
    has_sequences = SEQUENCE in file.schema_arrow.names and about.sequences
    runs = _Runs()
    wanted = [*names, *([SEQUENCE] if has_sequences else [])]
    for batch in _batches(file, wanted, source.meter):
        ids = [_lists(batch.column(name), name) for name in names]
        if len({found.shape for found in ids}) > 1:
            raise InputError("layers have lists of different lengths")
        sink.add(np.stack(ids, axis=1))
        if has_sequences:
            runs.add(_whole(batch.column(SEQUENCE), SEQUENCE))
    if not has_sequences:
        source.note("the file does not say where sequences end")
    sink.sequences(runs.lengths() if has_sequences else None)
    return sink.finish(NAME)


def _open(path: Path, meter: Meter) -> Any:
    """Return the file, once its footer claims nothing that is too large."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        path,
        page_checksum_verification=True,
        thrift_string_size_limit=1 << 26,
        thrift_container_size_limit=1 << 22,
    )
    if len(file.schema_arrow.names) > MOST_LAYERS:
        raise InputError(f"has {len(file.schema_arrow.names)} columns")
    packed = inflated = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        parts = [group.column(at) for at in range(group.num_columns)]
        meter.hold(3 * max(group.total_byte_size, 0), "a row group")
        packed += sum(part.total_compressed_size for part in parts)
        decoded = sum(part.num_values for part in parts) * VALUE_BYTES
        inflated += max(group.total_byte_size, decoded)
    most = min(meter.limits.ratio * packed + SLACK_BYTES, meter.limits.file_bytes)
    if inflated > most:
        raise InputError(f"inflates {packed} bytes to {inflated}; {most} are allowed")
    return file


def _batches(file: Any, columns: list[str], meter: Meter) -> Iterator[Any]:
    """Yield batches of rows, and refuse the file if they are more than it claims."""
    for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
        meter.tick()
        meter.hold(4 * batch.nbytes, "a batch of rows")
        if len(batch):
            yield batch


def _whole(column: Any, name: str) -> Ints:
    """Return a column of whole numbers without gaps."""
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        raise InputError(f"{name} is {column.type}; whole numbers are expected")
    if column.null_count:
        raise InputError(f"{name} has {column.null_count} empty values in a row group")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if values.size and (values.min() < 0 or values.max() >= 1 << 62):
        raise InputError(f"{name} holds {values.min()}, out of range")
    return values.astype(np.int64)


def _lists(column: Any, name: str) -> NDArray[Any]:
    """Return ``(n, k)`` ids of a column of lists, all of one length."""
    import pyarrow as pa

    if column.null_count:
        raise InputError(f"{name} has {column.null_count} empty rows")
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(sizes[0])
        if (sizes != width).any():
            raise InputError(f"{name} has lists of {sizes.min()} to {sizes.max()} ids")
    else:
        raise InputError(f"{name} is {kind}; lists of whole numbers are expected")
    flat = column.flatten()
    if not pa.types.is_integer(flat.type) or flat.null_count or not width:
        raise InputError(f"{name} holds {flat.type}; whole numbers are expected")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), width)


def _described(file: Any, source: Source) -> Description:
    metadata = file.schema_arrow.metadata or {}
    text = metadata.get(DESCRIPTION.encode())
    if text is None:
        return Description()
    about = parse(text, source.meter)
    for note in about.notes:
        source.note(note)
    return about


class _Runs:
    """Lengths of runs of equal numbers, over blocks."""

    def __init__(self) -> None:
        self._last = -1
        self._lengths: list[int] = []

    def add(self, values: Ints) -> None:
        """Add numbers that never go back."""
        steps = np.diff(values, prepend=values[0] if self._last < 0 else self._last)
        if steps.min() < 0:
            raise InputError(f"{SEQUENCE} goes back: sort the rows")
        starts = np.flatnonzero(steps)
        if self._last < 0:
            starts = np.concatenate([[0], starts])
        sizes = np.diff(np.append(starts, len(values)))
        head = int(starts[0]) if len(starts) else len(values)
        if self._lengths:
            self._lengths[-1] += head
        self._lengths.extend(sizes.tolist())
        self._last = int(values[-1])

    def lengths(self) -> Ints:
        """Return how long each run is."""
        return np.array(self._lengths, np.int64)
