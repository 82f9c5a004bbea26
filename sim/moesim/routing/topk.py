"""Top-k without replacement, exactly: the Plackett-Luce law, by the million.

Popular experts are drawn one after the other, each with probability proportional to its
weight among those not yet taken. Slot ``j`` of a cell takes the first of its own draws
that differs from slots ``0..j-1``; since a repeated draw says nothing about the next one,
that is Plackett-Luce exactly, order included (slot 0 is the top-1 expert).

Axes: ``C`` cells, one for each (token, layer); ``k`` slots; ``N`` rows of weights, one for
each (kind of token, layer); ``E`` experts.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moesim.routing.alias import AliasTables, alias_tables
from moesim.routing.counter import Bits, bits_at, step, uniform
from moesim.types import Bools, Floats, Ids, Ints

ATTEMPTS = 16
"""Draws of one slot before it is settled by a race of all experts."""
RACERS = 1 << 10
"""Cells that race together, to bound memory."""
PREPARE, RACE = 2**22, 2**23
"""Counters, inside a layer's share of a token's stream, beyond those of the slots."""
LAYER_STRIDE = 2**24
"""Counters set aside for each layer of a token."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """(Token, layer) pairs: where the stream of each starts, and its row of weights."""

    start: Bits
    row: Bits

    def __getitem__(self, index: Ints) -> "Cells":
        """Return the cells at `index`."""
        return Cells(self.start[index], self.row[index])


class Law(Protocol):
    """What one slot is drawn from."""

    def prepare(self, cells: Cells, forced: Ints | None) -> Cells:
        """Return the cells with whatever is decided once for all of their slots."""
        ...

    def draw(self, cells: Cells, counter: Ints) -> Ids:
        """Return ``(len(counter), C)`` draws, repeats allowed."""
        ...

    def log_weights(self, cells: Cells) -> Floats:
        """Return ``(C, E)``: log weight of each expert, -inf where not allowed."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PlackettLuce:
    """Draws by weight among all experts."""

    logs: Floats
    tables: AliasTables

    @classmethod
    def of(cls, weights: Floats) -> "PlackettLuce":
        """Return the law of ``(N, E)`` weights; an expert of weight 0 is never drawn."""
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
        return cls(logs, alias_tables(weights))

    def prepare(self, cells: Cells, forced: Ints | None) -> Cells:
        """Return the cells as they are."""
        return cells

    def draw(self, cells: Cells, counter: Ints) -> Ids:
        """Return ``(len(counter), C)`` draws, repeats allowed."""
        return self.tables.draw(cells.row, bits_at(cells.start, steps(2 * counter)))

    def log_weights(self, cells: Cells) -> Floats:
        """Return ``(C, E)``: log weight of each expert."""
        return self.logs[cells.row.view(np.int64)]


def steps(counter: Ints) -> Bits:
    """Return ``(n, 1)`` stream steps, to be added to the starts of cells."""
    return np.array([step(int(number)) for number in counter])[:, None]


def distinct(law: Law, cells: Cells, top_k: int, forced: Ints | None = None) -> Ids:
    """Return ``(k, C)``: the distinct experts of each cell, in order of choice.

    Parameters
    ----------
    forced : (h, C) array of int, optional
        Experts that a cell must use in its first slots; -1 where it is free. Within a
        cell they are distinct and no free slot comes before a forced one.
    """
    cells = law.prepare(cells, forced)
    ids = law.draw(cells, np.arange(top_k))
    if forced is not None:
        np.copyto(ids[: len(forced)], forced.astype(np.uint16), where=forced >= 0)
    rows = np.flatnonzero(_repeats(ids))
    if len(rows):
        mended = _mend(law, cells[rows], ids.take(rows, axis=1))
        for slot in range(1, top_k):
            ids[slot][rows] = mended[slot]
    return ids


def _repeats(ids: Ids) -> Bools:
    """Return ``(C,)``: whether any two slots hold the same expert."""
    found = np.zeros(ids.shape[1], bool)
    for slot in range(1, len(ids)):
        found |= (ids[:slot] == ids[slot]).any(axis=0)
    return found


def _mend(law: Law, cells: Cells, ids: Ids) -> Ids:
    """Redraw repeats, slot by slot; race the few cells that stay unlucky."""
    top_k = len(ids)
    for slot in range(1, top_k):
        open_ = np.flatnonzero((ids[:slot] == ids[slot]).any(axis=0))
        for attempt in range(1, ATTEMPTS):
            if not len(open_):
                break
            fresh = law.draw(cells[open_], np.array([attempt * top_k + slot]))[0]
            ids[slot][open_] = fresh
            taken = ids[:slot].take(
                open_, axis=1
            )  # several times faster than [:, open_]
            open_ = open_[(taken == fresh).any(axis=0)]
        for few in np.array_split(open_, len(open_) // RACERS + 1):
            if len(few):
                ids[slot:, few] = _race(law, cells[few], ids[:slot, few], top_k - slot)
    return ids


def _race(law: Law, cells: Cells, taken: Ids, places: int) -> Ids:
    """Return ``(places, C)``: the first to ring of exponential clocks, one per expert.

    A clock that rings at rate w rings first with probability w over the sum, and what
    is left races on: Plackett-Luce among the experts not yet taken.
    """
    logs = law.log_weights(cells)
    np.put_along_axis(logs, taken.T.astype(np.int64), -np.inf, axis=1)
    clocks = steps(RACE + np.arange(logs.shape[1]))[:, 0]
    time = -np.log(uniform(bits_at(cells.start[:, None], clocks)))
    order = np.argsort(np.log(time) - logs, axis=1, kind="stable")
    return order[:, :places].T.astype(np.uint16)
