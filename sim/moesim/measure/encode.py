"""Tables, arrays and records as bytes: the same bytes for the same numbers, always."""

import json
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from hashlib import file_digest as hashed
from hashlib import sha256
from io import BytesIO, StringIO
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

FORMULA = ("=", "+", "-", "@", "\t")
"""First characters that make a spreadsheet take a text for a formula."""


def as_json(value: object) -> bytes:
    r"""Return `value` as JSON with sorted keys; NaN becomes null, infinity ``"inf"``.

    Examples
    --------
    >>> as_json({"b": float("nan"), "a": (1, np.float64(0.1)), "r": float("inf")})
    b'{\n  "a": [\n    1,\n    0.1\n  ],\n  "b": null,\n  "r": "inf"\n}\n'
    """
    text = json.dumps(
        simple(value), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False
    )
    return f"{text}\n".encode()


def simple(value: object) -> object:
    """Return `value` made of nothing but what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): simple(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return simple(value.tolist())
    if isinstance(value, list | tuple):
        return [simple(item) for item in value]
    if isinstance(value, float):
        return finite(value)
    return value if isinstance(value, int | str | None) else str(value)


def finite(value: float) -> float | str | None:
    """Return `value`, or what stands for it where JSON has no number for it."""
    if isnan(value):
        return None
    return value if isfinite(value) else str(value)


def as_csv(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return `rows` as CSV: a column per key of any row, empty where it has none."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(columns)
    out.writerows([cell(row.get(key)) for key in columns] for row in rows)
    return text.getvalue().encode()


def cell(value: object) -> object:
    """Return `value` as one CSV cell; a text that looks like a formula is disarmed."""
    known = simple(value)
    if known is None:
        return ""
    if isinstance(known, dict | list):
        return json.dumps(known, sort_keys=True)
    if isinstance(known, str) and known.startswith(FORMULA) and known != "-inf":
        return f"'{known}"
    return known


def write_parquet(blocks: Iterable["DataFrame"], path: Path) -> int:
    """Write a table as Parquet, compressed with zstd, a row group for each block.

    Returns
    -------
    int
        How many rows there were.
    """
    from pyarrow import Table, default_memory_pool
    from pyarrow.parquet import ParquetWriter

    rest = iter(blocks)
    part = Table.from_pandas(next(rest), preserve_index=False)
    rows = part.num_rows
    # Dictionaries of numbers that hardly repeat take memory and time, and save nothing.
    words = [field.name for field in part.schema if "string" in str(field.type)]
    with (
        path.open("wb") as file,
        ParquetWriter(
            file, part.schema, compression="zstd", use_dictionary=words
        ) as out,
    ):
        out.write_table(part)
        for block in rest:
            part = Table.from_pandas(block, out.schema, preserve_index=False)
            out.write_table(part)
            rows += part.num_rows
    default_memory_pool().release_unused()
    return rows


def from_parquet(data: bytes) -> "DataFrame":
    """Return the table that `write_parquet` wrote; `ValueError` if it is damaged."""
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import read_table

    try:
        return read_table(BufferReader(data)).to_pandas()
    except ArrowException as error:
        raise ValueError(str(error)) from error


def as_npz(**arrays: np.ndarray[Any, Any]) -> bytes:
    """Return named arrays as a compressed ``.npz``."""
    buffer = BytesIO()
    np.savez_compressed(buffer, **cast("Any", arrays))  # dated 1980, not today
    return buffer.getvalue()


def from_npz(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return one array of an ``.npz``; never runs code that hides in it."""
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return arrays[name]


def all_from_npz(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return every array of an ``.npz`` by name, as `from_npz` does one."""
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, without reading it as a whole."""
    with path.open("rb") as handle:
        return hashed(handle, "sha256").hexdigest()
