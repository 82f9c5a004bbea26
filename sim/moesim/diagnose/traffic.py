"""The traffic that a log holds, in as much memory as a diagnosis needs.

Counts are of every token. What looks at single tokens looks at a sample: all of a short
log, else runs of neighbours from all over it.

Axes: ``T`` tokens of the sample, ``W`` windows, ``L`` MoE layers, ``E`` experts, ``k``
experts of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moesim.errors import InputError, Problem
from moesim.routing.logs import RoutingLog
from moesim.routing.source import count
from moesim.types import Bools, Floats, Ids, Ints

SAMPLE = 1 << 16
"""Tokens looked at one by one, at most."""
SAMPLE_BYTES = 1 << 25
"""Bytes of their ids, at most."""
RUN = 1 << 10
"""Neighbours taken together from a long log."""
WINDOWS = 32
WINDOW_BYTES = 1 << 26
WEIGHTS = ("expert_weights", "topk_weights")
"""Arrays of an ``.npz`` that say how a token's experts weigh."""
BLOCK = 1 << 20
"""Bytes of ids counted at once."""
FEWEST = 2
"""Experts of a layer, and layers' tokens, below which there is nothing to balance."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Who asked for which experts.

    Parameters
    ----------
    name : str
        The log's, for people.
    format : str
        Of the file.
    layers : tuple of str
        Names of the layers, as the file has them.
    top_k : int
        Experts of a token, ``k``; 0 where nobody knows.
    tokens : int
        Tokens of the log; 0 where there are only counts.
    windows : (W, L, E) array
        Tokens of each expert, in equal parts of the log one after the other.
    ids : (T, L, k) array or None
        Experts of the sampled tokens; None where there are only counts.
    starts : (T,) array of bool
        Sampled tokens whose predecessor in their sequence is not there.
    first : (T, L) array or None
        First choices of the sampled tokens, or the first slot where nothing tells.
    known_first : bool
        Whether weights told which choice is the first.
    known_runs : bool
        Whether the file told where sequences end.
    notes : tuple of str
        What the reader said.
    """

    name: str
    format: str
    layers: tuple[str, ...]
    top_k: int
    tokens: int
    windows: Floats
    ids: Ids | None
    starts: Bools
    first: Ids | None
    known_first: bool = False
    known_runs: bool = False
    notes: tuple[str, ...] = ()

    @property
    def experts(self) -> int:
        """Experts of each layer, ``E``."""
        return self.windows.shape[2]

    @property
    def totals(self) -> Floats:
        """``(L, E)``: tokens of each expert."""
        total: Floats = self.windows.sum(axis=0)
        return total

    @property
    def runs(self) -> Ints:
        """Lengths of the runs of neighbours in the sample; they sum to ``T``."""
        return np.diff(np.flatnonzero(self.starts), append=len(self.starts))


def traffic_of(
    log: RoutingLog, top_k: int = 0, slots: Ints | str | None = None
) -> Traffic:
    """Return the traffic of a log.

    Parameters
    ----------
    log : RoutingLog
        What was read.
    top_k : int
        Experts of a token, for logs that only count; 0: unknown.
    slots : (T, L) array of int or str, optional
        Which slot holds the first choice of each sampled token, or why that cannot be
        told (`weights.first_slots`).

    Raises
    ------
    InputError
        The log is a placement, which says nothing of traffic, or holds no token.
    """
    where = log.origin.path
    if log.unit != "tokens":
        message = "counts copies of experts, not tokens: a placement is no traffic"
        raise InputError([Problem(message, where)])
    windows = _windows(log)
    if not windows.any():
        raise InputError([Problem("holds no token that reached an expert", where)])
    rows = sampled(log)
    ids = None if log.tokens is None else _taken(log, rows)
    known = None if isinstance(slots, str) else slots
    return Traffic(
        name=where,
        format=log.origin.format,
        layers=log.layers,
        top_k=log.top_k or top_k,
        tokens=log.steps if log.tokens is not None else 0,
        windows=windows,
        ids=ids,
        starts=_starts(log, rows),
        first=None if ids is None else _first(ids, known),
        known_first=known is not None,
        known_runs=log.lengths is not None,
        notes=_notes(log, slots),
    )


def _notes(log: RoutingLog, slots: Ints | str | None) -> tuple[str, ...]:
    """Return the reader's notes; weights that it did not read were read here."""
    if slots is None:
        return log.notes
    unread = {f"not read: {name}" for name in WEIGHTS}
    kept = tuple(note for note in log.notes if note not in unread)
    return (*kept, slots) if isinstance(slots, str) else kept


def sampled(log: RoutingLog) -> tuple[range, ...]:
    """Return runs of token numbers: all of a short log, else some from all over it."""
    if log.tokens is None:
        return ()
    room = max(RUN, min(SAMPLE, SAMPLE_BYTES // max(1, log.tokens.row_bytes)))
    if log.steps <= room:
        return (range(log.steps),)
    places = max(1, room // RUN)
    firsts = np.linspace(0, log.steps - RUN, places).astype(np.int64)
    return tuple(range(int(first), int(first) + RUN) for first in firsts)


def pooled(parts: Sequence[Traffic]) -> Traffic:
    """Return several traffics one after the other, as one.

    Raises
    ------
    InputError
        They are not of one model.
    """
    first, *others = parts
    for other in others:
        _same_model(first, other)
    ids = [part.ids for part in parts if part.ids is not None]
    tops = [part.first for part in parts if part.first is not None]
    whole = len(ids) == len(parts)
    return replace(
        first,
        name=" + ".join(part.name for part in parts),
        format=", ".join(dict.fromkeys(part.format for part in parts)),
        tokens=sum(part.tokens for part in parts),
        windows=np.concatenate([part.windows for part in parts]),
        ids=np.concatenate(ids) if whole else None,
        starts=np.concatenate([part.starts for part in parts]),
        first=np.concatenate(tops) if whole else None,
        known_first=all(part.known_first for part in parts),
        known_runs=all(part.known_runs for part in parts),
        notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes),
    )


def _same_model(one: Traffic, other: Traffic) -> None:
    for what in ("layers", "experts", "top_k"):
        mine, its = getattr(one, what), getattr(other, what)
        if mine != its:
            listed = [len(x) if what == "layers" else x for x in (its, mine)]
            message = f"has {listed[0]} {what}, {one.name} has {listed[1]}"
            if listed[0] == listed[1]:
                message = f"names its {what} otherwise than {one.name}"
            raise InputError([Problem(f"{message}: one model?", other.name)])


def _windows(log: RoutingLog) -> Floats:
    """Return counts of `WINDOWS` parts of the log, fewer where they would be large."""
    layers, experts = len(log.layers), log.experts
    most = max(1, min(WINDOWS, WINDOW_BYTES // (8 * layers * experts)))
    parts = max(1, min(most, log.steps))
    if log.counts is not None:
        edges = np.arange(parts) * log.steps // parts
        return np.add.reduceat(np.asarray(log.counts, np.float64), edges, axis=0)
    found = np.zeros((parts, layers, experts))
    ends = (np.arange(parts) + 1) * log.steps // parts
    row = 1 if log.tokens is None else log.tokens.row_bytes
    done = 0
    for block in log.blocks(max(1, BLOCK // max(1, row))):
        at = 0
        while at < len(block):
            window = int(np.searchsorted(ends, done + at, side="right"))
            stop = min(len(block), int(ends[window]) - done)
            found[window] += count(block[at:stop], experts)
            at = stop
        done += len(block)
    return found


def _taken(log: RoutingLog, rows: Sequence[range]) -> Ids:
    assert log.tokens is not None
    return np.concatenate([log.tokens.take(part.start, part.stop) for part in rows])


def _starts(log: RoutingLog, rows: Sequence[range]) -> Bools:
    number = np.array([n for part in rows for n in part], np.int64)
    begins = np.zeros(len(number), bool)
    if len(number):
        begins[np.cumsum([0, *(len(part) for part in rows[:-1])])] = True
    if log.lengths is not None:
        ends = np.cumsum(log.lengths)
        begins |= np.isin(number, ends)
    return begins


def _first(ids: Ids, slots: Ints | None) -> Ids:
    if slots is None:
        return ids[:, :, 0]
    return np.take_along_axis(ids, slots[:, :, None], axis=2)[:, :, 0]
