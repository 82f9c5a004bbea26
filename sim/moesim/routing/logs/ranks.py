"""Files of several ranks into one: summed, unless every rank wrote the same.

Under data-parallel attention each rank sees tokens of its own, and loads add up. Under
tensor-parallel attention all ranks see all tokens, and adding would count them again.

Axes: ``S`` steps, ``L`` layers, ``E`` experts.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs.source import Source, located
from moesim.types import Ints

Steps = Mapping[int, Ints]
"""Counts ``(L, E)`` by the number of the step."""


def summed(source: Source, ranks: Iterable[Steps]) -> Ints:
    """Return ``(S, L, E)`` counts of all ranks, steps in the order of their numbers.

    Raises
    ------
    InputError
        Nothing was counted, or ranks disagree about layers or experts.
    """
    first: Steps | None = None
    total: dict[int, Ints] = {}
    files, alike = 0, True
    for steps in ranks:
        files += 1
        first = steps if first is None else first
        alike = alike and _equal(first, steps)
        for step, counts in steps.items():
            _add(total, step, counts)
        size = sum(counts.nbytes for counts in total.values())
        source.meter.hold(3 * size, f"counts of {len(total)} steps")
    if not total or first is None:
        raise InputError("holds no steps; at least one is expected")
    if files > 1 and alike:
        source.note(f"all {files} ranks counted the same tokens: one is used")
        total = dict(first)
    elif files > 1:
        source.note(f"summed {files} files, one of each rank")
    return np.stack([total[step] for step in sorted(total)])


def distinct(source: Source, digest: Callable[[Path], bytes]) -> list[Path]:
    """Return the files to read: only the first if all of them hold the same tokens."""
    files = list(source.files)
    if len(files) < 2:
        return files
    digests = {located(path, lambda path=path: digest(path)) for path in files}  # type: ignore[misc]
    if len(digests) == 1:
        source.note(f"all {len(files)} ranks recorded the same tokens: one is used")
        return files[:1]
    source.note(f"joined {len(files)} files, one of each rank, one after the other")
    return files


def _add(total: dict[int, Ints], step: int, counts: Ints) -> None:
    if any(counts.shape != other.shape for other in list(total.values())[:1]):
        shapes = list(next(iter(total.values())).shape), list(counts.shape)
        message = f"step {step} has {shapes[1]} layers and experts"
        raise InputError(f"{message}; others have {shapes[0]}")
    total[step] = total[step] + counts if step in total else counts


def _equal(one: Steps, other: Steps) -> bool:
    if one is other:
        return True
    if one.keys() != other.keys():
        return False
    return all(np.array_equal(one[step], other[step]) for step in one)
