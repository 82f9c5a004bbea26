"""The table of a study: every comparison or measure at every point, with intervals.

Verdicts are Holm-corrected within a point: over its policies and metrics.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moesim.measure.encode import as_csv
from moesim.measure.folder import make_folders, readable_errors, refusal, sibling
from moesim.replicate import Progress, share, silent
from moesim.simulate import compare
from moesim.study.caches import cache_rows
from moesim.study.measure import measured
from moesim.study.parts import Measure, Point, Study

DIGITS = 6
"""Digits of a number in the table: more than any interval deserves."""


def run_study(
    study: Study, replications: int | None = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a study's table.

    Parameters
    ----------
    study : Study
        What to run.
    replications : int, optional
        Overrides the file's numbers of paired replications.
    progress : callable, optional
        As `moesim.run` takes it.

    Returns
    -------
    list of dict
        Of comparisons ``study``, ``comparison``, a column for each key of a grid,
        ``policy``, ``baseline`` (whom it is compared with), ``metric``,
        ``baseline_value`` and ``value`` (means over replications), ``relative`` (mean
        paired difference as a share of the baseline's value), ``low`` and ``high`` (its
        interval), ``verdict``, ``replications``. Of measures ``study``, ``measure``,
        the grid, ``metric``, ``value`` (mean over replications), ``low`` and ``high``
        (its interval), ``closed_form``, ``deviation`` (of the value, as a share of
        that), ``replications``. Of caches see `study.caches`.

    Raises
    ------
    InputError, SimulationError
        As `moesim.compare`.
    """
    told = progress or silent
    if study.caches is not None:
        rates = cache_rows(study.caches, told)
        return [{"study": study.name} | rounded(row) for row in rates]
    parts: Sequence[Point | Measure] = [*study.points, *study.measures]
    keys = list(dict.fromkeys(key for part in parts for key in part.at))
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        report = share(told, number, len(parts))
        if isinstance(part, Point):
            label, found = "comparison", _compared(part, replications, report)
        else:
            label, found = "measure", measured(part, replications, report)
        at = {key: part.at.get(key) for key in keys}
        head = {"study": study.name, label: part.name} | at
        rows += [head | rounded(row) for row in found]
    return rows


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with as many digits of its numbers as the table has."""
    return {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for key, value in row.items()
    }


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows as CSV, whole or not at all; return the path.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    check_table(path)
    draft = sibling(path, "tmp")
    with readable_errors(path):
        make_folders(path.parent)
        try:
            draft.write_bytes(as_csv(rows))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return path


def check_table(path: Path) -> None:
    """Refuse a place where no table can be written, before anything is simulated.

    Raises
    ------
    InputError
        It is a folder or no CSV file, or a file or read-only folder is above it.
    """
    if path.suffix != ".csv":
        raise refusal(path, "is no .csv file")
    with readable_errors(path):
        if path.is_dir():
            raise refusal(path, "is a folder")
        home = next(place for place in path.absolute().parents if place.exists())
        if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
            raise refusal(path, f"cannot be written: {home} is no writable folder")


def _compared(
    point: Point, replications: int | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one point, differences as shares of the baseline."""
    made = compare(
        point.scenario,
        point.policies,
        variants=point.variants,
        replications=replications or point.replications,
        baseline=point.baseline,
        metrics=point.metrics,
        progress=progress,
    )
    for row in made.rows:
        base = abs(row["baseline"])
        ends = {key: row[key] / base if base else None for key in ("low", "high")}
        numbers = {
            "baseline_value": row["baseline"],
            "value": row["value"],
            "relative": row["relative"],
            **ends,
        }
        yield (
            {
                "policy": row["policy"],
                "baseline": made.baseline,
                "metric": row["metric"],
            }
            | numbers
            | {"verdict": row["verdict"], "replications": made.replications}
        )
