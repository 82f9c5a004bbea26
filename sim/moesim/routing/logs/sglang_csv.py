"""The first form of SGLang's recorder: CSV with ``layer_id,expert_id,count`` a rank.

Logical ids; one file a rank, ``expert_distribution_rank{r}_timestamp{t}.csv``, whose
counts add up under data-parallel attention.
Source: pull request 4435 of sgl-project/sglang.

Axes: ``L`` layers, ``E`` experts.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs import csvs
from moesim.routing.logs.counts import Counted, counts_log
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.ranks import Steps, summed
from moesim.routing.logs.source import Source, located, refusal
from moesim.routing.logs.table import columns_of, counted
from moesim.types import Ints

NAME = "sglang-csv"
SUMMARY = "SGLang recorder, first version (CSV layer_id,expert_id,count; a file a rank)"
FOLDERS = True
HEADER = ("layer_id", "expert_id", "count")
FILE = re.compile(r"expert_distribution_rank([0-9]+)_timestamp([0-9.]+)\.csv")


def recognise(peek: Peek) -> bool:
    """Tell whether the columns are exactly SGLang's."""
    return peek.container == "csv" and peek.names == HEADER


def read(source: Source) -> RoutingLog:
    """Return counts, those of all ranks summed."""
    _check_names(source)
    layers: dict[tuple[str, ...], Path] = {}
    counts = summed(source, _ranks(source, layers))
    if len(layers) > 1:
        raise InputError("files of the ranks name different layers")
    return counts_log(source, NAME, Counted(counts, next(iter(layers))))


def _ranks(source: Source, layers: dict[tuple[str, ...], Path]) -> Iterator[Steps]:
    """Yield the counts of each rank as one step, all padded to as many experts."""
    tables = []
    for path in source.files:
        found, names = located(path, lambda path=path: _table(source, path))  # type: ignore[misc]
        layers.setdefault(names, path)
        tables.append(found[0])
    experts = max(table.shape[1] for table in tables)
    for table in tables:
        yield {0: np.pad(table, ((0, 0), (0, experts - table.shape[1])))}


def _table(source: Source, path: Path) -> tuple[Ints, tuple[str, ...]]:
    names = csvs.header(path, source.meter)
    if names != HEADER:
        raise refusal(f"expected the header {','.join(HEADER)}", path, 1)
    blocks = (block.rows for block in csvs.blocks(path, source.meter, 3))
    return counted(source, columns_of(names), blocks)


def _check_names(source: Source) -> None:
    """Refuse several dumps in one folder, which must not be summed."""
    times = {match[2] for path in source.files if (match := FILE.fullmatch(path.name))}
    if len(times) > 1:
        shown = ", ".join(sorted(times)[:4])
        raise InputError(f"holds dumps of several times ({shown}): one a folder")
