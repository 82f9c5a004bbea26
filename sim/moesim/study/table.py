"""The table of a study: every comparison at every point, with intervals and verdicts.

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
from moesim.study.read import Point, Study

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
        ``study``, ``comparison``, a column for each key of a grid, ``policy``,
        ``baseline`` (whom it is compared with), ``metric``, ``baseline_value`` and
        ``value`` (means over replications), ``relative`` (mean paired difference as a
        share of the baseline's value), ``low`` and ``high`` (its interval),
        ``verdict``, ``replications``.

    Raises
    ------
    InputError, SimulationError
        As `moesim.compare`.
    """
    keys = list(dict.fromkeys(key for point in study.points for key in point.at))
    rows: list[dict[str, Any]] = []
    for number, point in enumerate(study.points):
        report = share(progress or silent, number, len(study.points))
        rows += [
            {"study": study.name, "comparison": point.name}
            | {key: point.at.get(key) for key in keys}
            | row
            for row in _compared(point, replications, report)
        ]
    return rows


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
            | {key: _short(value) for key, value in numbers.items()}
            | {"verdict": row["verdict"], "replications": made.replications}
        )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
