"""Top-k without replacement, exactly: the Plackett-Luce law, by the million.

Popular experts are drawn one after the other, each with probability proportional to its
weight among those not yet taken. Slot ``j`` of a cell takes the first of its own draws
that differs from slots ``0..j-1``; since a repeated draw says nothing about the next one,
that is Plackett-Luce exactly, order included (slot 0 is the top-1 expert).

Axes: ``C`` cells, one for each (token, layer); ``k`` slots; ``N`` rows of weights, one for
each (kind of token, layer); ``E`` experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moesim.routing.alias import AliasTables, alias_tables
from moesim.routing.counter import GAMMA, Bits, bits_at, uniform
from moesim.types import Bools, Floats, Ids, Ints

Forced = NDArray[np.integer]
"""``(h, C)`` experts of the first slots of cells, -1 where they are free."""
ATTEMPTS = 16
"""Draws of one slot before it is settled by a race of all experts."""
BLOCK = 1 << 13
"""Cells drawn together: what keeps the work in the cache."""
SPARE = 1 << 12
"""Numbers that are drawn rather than going another round."""
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

    def __len__(self) -> int:
        """Return how many cells there are, ``C``."""
        return len(self.start)

    def __getitem__(self, index: Ints | slice) -> "Cells":
        """Return the cells at `index`."""
        return Cells(self.start[index], self.row[index])


class Law(Protocol):
    """What one slot is drawn from."""

    def prepare(self, cells: Cells, forced: Forced | None) -> Cells:
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

    def prepare(self, cells: Cells, forced: Forced | None) -> Cells:
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
    return (counter.astype(np.uint64) * np.uint64(GAMMA))[:, None]


def distinct(law: Law, cells: Cells, top_k: int, forced: Forced | None = None) -> Ids:
    """Return ``(k, C)``: the distinct experts of each cell, in order of choice.

    Parameters
    ----------
    forced : (h, C) array of int, optional
        Experts that a cell must use in its first slots; -1 where it is free. Within a
        cell they are distinct and no free slot comes before a forced one.
    """
    cells = law.prepare(cells, forced)
    ids = np.empty((top_k, len(cells)), np.uint16)
    unlucky = np.empty(len(cells), bool)
    for some in blocks(len(cells)):
        drawn = law.draw(cells[some], np.arange(top_k))
        if forced is not None:
            _force(drawn, forced[:, some])
        unlucky[some] = _repeats(drawn)
        ids[:, some] = drawn
    rows = np.flatnonzero(unlucky)
    if 2 * len(rows) > len(cells):
        return _mend(law, cells, ids)
    if len(rows):
        mended = _mend(law, cells[rows], ids.take(rows, axis=1))
        for slot in range(1, top_k):
            ids[slot][rows] = mended[slot]
    return ids


def blocks(count: int) -> Iterator[slice]:
    """Yield slices that cover `count` cells, in pieces that fit in the cache."""
    for first in range(0, count, BLOCK):
        yield slice(first, first + BLOCK)


def _force(ids: Ids, forced: Forced) -> None:
    """Put the forced experts in their places; without branches, which cost more."""
    part = ids[: len(forced)]
    change = forced.astype(np.uint16)
    change ^= part
    change *= forced >= 0
    part ^= change


def _repeats(ids: Ids) -> Bools:
    """Return ``(C,)``: whether any two slots hold the same expert."""
    same, found = np.empty(ids.shape, bool), np.zeros(ids.shape, bool)
    for gap in range(1, len(ids)):
        found[gap:] |= np.equal(ids[gap:], ids[:-gap], out=same[gap:])
    return np.logical_or.reduce(found, axis=0)


def _mend(law: Law, cells: Cells, ids: Ids) -> Ids:
    """Redraw repeats, slot by slot; race the few cells that stay unlucky."""
    for slot in range(1, len(ids)):
        open_ = np.flatnonzero((ids[:slot] == ids[slot]).any(axis=0))
        if len(open_):
            open_ = _redraw(law, cells, ids, slot, open_)
        for first in range(0, len(open_), RACERS):
            few = open_[first : first + RACERS]
            ids[slot:, few] = _race(law, cells[few], ids[:slot, few], len(ids) - slot)
    return ids


def _redraw(law: Law, cells: Cells, ids: Ids, slot: int, open_: Ints) -> Ints:
    """Draw a slot of the open cells until it differs; return those that stay open.

    When few cells are left, all their attempts are drawn at once, and the first that
    differs counts: that spends numbers and saves rounds.
    """
    some, taken = cells[open_], ids[:slot].take(open_, axis=1)
    attempt = 1
    while attempt < ATTEMPTS and len(open_):
        last = attempt + min(max(1, SPARE // len(open_)), ATTEMPTS - attempt)
        fresh = law.draw(some, np.arange(attempt, last) * len(ids) + slot)
        again = (fresh == taken[:, None]).any(axis=0)
        if last - attempt > 1:
            pick = again.argmin(axis=0), np.arange(len(open_))
            fresh, again = fresh[pick][None], again[pick][None]
        ids[slot][open_] = fresh[0]
        left = np.flatnonzero(again[0])
        open_, some, taken = open_[left], some[left], taken.take(left, axis=1)
        attempt = last
    return open_


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
