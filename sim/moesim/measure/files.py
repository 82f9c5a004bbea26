"""Runs and comparisons as folders: written whole or not at all, and read back.

All but ``manifest.json`` is a function of what was simulated: the same run gives the
same bytes on any day. The manifest holds the facts of the day (date, host, wall time)
and the SHA-256 of every other file, so that a changed or missing file is noticed.

Axes: ``R`` replications, ``L`` MoE layers, ``E`` experts, ``P`` phases, ``G`` GPUs.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

from moesim.errors import InputError, Problem
from moesim.measure.encode import (
    all_from_npz,
    as_csv,
    as_json,
    as_npz,
    digest,
    file_digest,
    from_npz,
    from_parquet,
    write_parquet,
)
from moesim.measure.figures import ResultFigures
from moesim.measure.folder import (
    MANIFEST,
    file_name,
    locate,
    point_latest,
    read_manifest,
    stamp,
    unused,
    whole_folder,
)
from moesim.measure.frames import expert_load
from moesim.measure.metrics import published
from moesim.measure.result import Comparison, Result
from moesim.measure.tables import COLUMNS, SPARSE, Tables, empty

SCHEMA_VERSION: Final = 2
"""Of a saved run; 1 had no memory of GPUs (`mem_bytes` and its parts)."""
RUN, COMPARISON = "moesim run", "moesim comparison"
PLOTS, RESIDENCY = "plots", "residency.npz"
TABLES: Final = tuple(COLUMNS)
UNREADABLE: Final = (
    AttributeError,
    BadZipFile,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    zlib.error,
)
"""What decoders raise when a file is not what its name says."""
NEEDED: Final = (
    "scenario.yaml",
    "summary.json",
    "traffic.npz",
    "expert_load.npz",
    *(f"{name}.parquet" for name in TABLES if name not in SPARSE),
)
"""Without these a run cannot be read back; an empty table of `SPARSE` has no file."""


def write_run(result: Result, folder: Path) -> Path:
    """Write a run to exactly `folder`, replacing an earlier result of ours.

    Returns
    -------
    Path
        `folder`.

    Raises
    ------
    InputError
        If `folder` is a file, holds something else, or cannot be written; nothing is
        left behind then.
    """
    with whole_folder(folder) as draft:
        fill(draft, run_files(result))
        fill_tables(draft, result)
        if result.figures is not None:
            result.plot.save_all(draft / PLOTS)
        seal(draft, RUN, {**result.manifest, "scenario": result.name})
    return folder


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write a comparison to exactly `folder`, as `write_run` does a run."""
    baseline = comparison.results[comparison.baseline]
    numbers = comparison.to_dict()
    files = {
        "scenario.yaml": baseline.scenario_text.encode(),
        "compare.json": as_json(numbers),
        "compare.csv": as_csv(comparison.rows),
    }
    with whole_folder(folder) as draft:
        fill(draft, files)
        if comparison.figures is not None:
            comparison.plot.save_all(draft / PLOTS)
        seal(draft, COMPARISON, {**baseline.manifest, "scenario": baseline.name})
    return folder


def save_run(result: Result, results: Path) -> Result:
    """Write a run to ``results/<scenario>/<date>-<digest>`` and point ``latest`` at it.

    Returns
    -------
    Result
        The same result, which now knows `where` it is.
    """
    label = f"{stamp(result.manifest)}-{digest(result.scenario_text.encode())[:8]}"
    folder = write_run(result, unused(results / file_name(result.name) / label))
    point_latest(folder)
    return replace(result, where=folder)


def save_comparison(comparison: Comparison, results: Path) -> Comparison:
    """Write a comparison to ``results/<scenario>/compare-<date>``."""
    baseline = comparison.results[comparison.baseline]
    label = f"compare-{stamp(baseline.manifest)}"
    folder = unused(results / file_name(baseline.name) / label)
    return replace(comparison, where=write_comparison(comparison, folder))


def read_run(
    path: Path | str, figures: Callable[[Result], ResultFigures] | None = None
) -> Result:
    """Return a saved run, checked against its manifest.

    Parameters
    ----------
    path : Path or str
        The run's folder, the ``latest`` beside it, or the folder they lie in.
    figures : callable, optional
        What makes the object behind ``plot``.

    Raises
    ------
    InputError
        If there is no run, or its files are missing, changed or damaged: all of them.
    """
    folder = locate(Path(path))
    manifest = manifest_of(folder)
    data = checked_files(folder, manifest["files"])
    with damage(folder):
        result = Result(
            tables=read_tables(data),
            summaries=read_records(data["summary.json"]),
            manifest=manifest,
            scenario_text=data["scenario.yaml"].decode(),
            traffic=from_npz(data["traffic.npz"], "bytes"),
            rank_load=from_npz(data["expert_load.npz"], "rank_load"),
            residency=all_from_npz(data[RESIDENCY]) if RESIDENCY in data else {},
            where=folder,
            figures=figures,
        )
        check_shapes(result)
    return result


def run_files(result: Result) -> dict[str, bytes]:
    """Return every file of a run but its tables, by name; the same for the same run."""
    records = [
        {**record, "run_number": number}
        for number, record in enumerate(result.summaries)
    ]
    whole = {"replications": result.replications, "schema_version": SCHEMA_VERSION}
    numbers = {**published(result.summary), **whole, "ci95": result.ci95}
    return {
        "scenario.yaml": result.scenario_text.encode(),
        "result.json": as_json(numbers),
        "summary.json": as_json(records),
        "summary.csv": as_csv(records),
        "traffic.npz": as_npz(bytes=result.traffic),
        "expert_load.npz": as_npz(
            load=expert_load(result.experts), rank_load=result.rank_load
        ),
        **({RESIDENCY: as_npz(**result.residency)} if result.residency else {}),
    }


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into `folder`."""
    for name, data in files.items():
        (folder / name).write_bytes(data)


def fill_tables(folder: Path, result: Result) -> None:
    """Write the tables into `folder`, a block of rows at a time."""
    for name in TABLES:
        path = folder / f"{name}.parquet"
        if not write_parquet(result.tables.blocks(name), path) and name in SPARSE:
            path.unlink()


def seal(folder: Path, kind: str, facts: Mapping[str, Any]) -> None:
    """Write the manifest: what this is, how it came about, and every file's hash."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    hashes = {str(p.relative_to(folder).as_posix()): file_digest(p) for p in paths}
    ours = {"kind": kind, "schema_version": SCHEMA_VERSION, "files": hashes}
    (folder / MANIFEST).write_bytes(as_json({**facts, **ours}))


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run that this version can read."""
    manifest = read_manifest(folder)
    if manifest.get("kind") != RUN or not isinstance(manifest.get("files"), dict):
        found = manifest.get("kind", "no manifest.json of moesim")
        raise damaged(folder, f"expected a saved run; found {found}")
    found = manifest.get("schema_version")
    if found != SCHEMA_VERSION:
        versions = manifest.get("versions")
        wrote = versions.get("moesim", "") if isinstance(versions, dict) else ""
        writer = f"moesim {wrote}".rstrip()
        why = f"was written by {writer} with schema version {found}"
        what = f"this one reads {SCHEMA_VERSION}; run its scenario.yaml again"
        raise damaged(folder, f"{why}; {what}")
    return manifest


def checked_files(folder: Path, hashes: Mapping[str, str]) -> dict[str, bytes]:
    """Return the bytes of every data file, all present and as they were written."""
    names = [name for name in hashes if "/" not in name and "\\" not in name]
    data: dict[str, bytes] = {}
    problems = []
    for name in sorted({*names, *NEEDED}):
        try:
            data[name] = (folder / name).read_bytes()
        except OSError as error:
            why = error.strerror or str(error)
            problems.append(Problem(f"cannot be read: {why}", where=str(folder / name)))
            continue
        if digest(data[name]) != hashes.get(name):
            why = "is not as the run wrote it (its SHA-256 differs from the manifest's)"
            problems.append(Problem(why, where=str(folder / name)))
    if problems:
        raise InputError(problems)
    return data


def read_tables(data: Mapping[str, bytes]) -> Tables:
    """Return the tables of a run; those of `SPARSE` may have no file, and no rows."""
    tables = {
        name: from_parquet(data[f"{name}.parquet"])
        for name in TABLES
        if f"{name}.parquet" in data
    }
    return Tables(**{name: empty(name) for name in SPARSE} | tables)


def read_records(data: bytes) -> list[dict[str, Any]]:
    """Return the records of ``summary.json`` without the numbers of their runs."""
    return [
        {key: value for key, value in record.items() if key != "run_number"}
        for record in json.loads(data)
    ]


def check_shapes(result: Result) -> None:
    """Refuse arrays that do not fit the tables beside them."""
    gpus = result.gpus["gpu"].nunique()
    layers = result.experts["layer"].nunique()
    runs = result.replications
    for name, array, shape in (
        ("traffic", result.traffic, (runs, 2, gpus, gpus)),
        ("rank_load", result.rank_load, (runs, layers, gpus)),
    ):
        if array.shape != shape:
            message = f"{name} has shape {array.shape}; its tables say {shape}"
            raise ValueError(message)


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Turn what a decoder says of a damaged file into an error for people."""
    try:
        yield
    except UNREADABLE as error:
        raise damaged(folder, f"is damaged: {error}") from error


def damaged(folder: Path, why: str) -> InputError:
    """Return the error that says why `folder` cannot be read."""
    return InputError([Problem(why, where=str(folder))])
