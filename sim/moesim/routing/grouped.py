"""Group-limited routing: a token may use the experts of a few groups only (DeepSeek).

`group_limited_topk` is DeepSeek-V3's rule on scores. Generators have popularities, not
scores, so they draw: first the groups, by Plackett-Luce on the groups' total weight, then
the experts by Plackett-Luce among the chosen groups. The constraint holds exactly; how
often an expert is used is close to, not equal to, what the score rule would give.

Axes: ``C`` cells, one for each (token, layer); ``N`` rows of weights; ``E`` experts in
``M`` groups, of which each cell uses ``m``.
"""

from dataclasses import dataclass

import numpy as np

from moesim.routing.alias import AliasTables, alias_tables
from moesim.routing.counter import Bits, bits_at, step
from moesim.routing.topk import (
    PREPARE,
    Cells,
    Forced,
    PlackettLuce,
    blocks,
    distinct,
    steps,
)
from moesim.types import Bools, Floats, Ids, Ints

_S12 = np.uint64(12)


def group_limited_topk(scores: Floats, groups: int, top_groups: int, k: int) -> Ints:
    """Return ``(..., k)``: the best experts of the best groups, by score.

    A group's score is the sum of its two largest; the `top_groups` best are kept, and
    the `k` best experts in them are taken. Equal scores go to the lower number. Source:
    class Gate of deepseek-ai/DeepSeek-V3, inference/model.py.

    Parameters
    ----------
    scores : (..., E) array of float
        Scores that selection goes by, bias included.
    """
    allowed = best_groups(scores, groups, top_groups)
    masked = np.where(allowed, scores, -np.inf)
    return np.argsort(-masked, axis=-1, kind="stable")[..., :k]


def best_groups(scores: Floats, groups: int, top_groups: int) -> Bools:
    """Return ``(..., E)``: whether each expert's group is one of the best, by score."""
    parts = scores.reshape(*scores.shape[:-1], groups, -1)
    best_two = np.sort(parts, axis=-1)[..., -2:].sum(axis=-1)
    chosen = np.argsort(-best_two, axis=-1, kind="stable")[..., :top_groups]
    allowed = np.zeros(best_two.shape, bool)
    np.put_along_axis(allowed, chosen, 1, axis=-1)
    return np.repeat(allowed, parts.shape[-1], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class GroupedCells(Cells):
    """Cells that know their ``(m, C)`` groups, and ``(m - 1, C)`` edges between them.

    A number of 52 random bits falls to the group that has as many edges below it as
    there are groups before it.
    """

    groups: Ids
    edges: Ints

    def __getitem__(self, index: Ints | slice) -> "GroupedCells":
        """Return the cells at `index`."""
        if isinstance(index, slice):
            groups, edges = self.groups[:, index], self.edges[:, index]
        else:
            groups = self.groups.take(index, axis=1)
            edges = self.edges.take(index, axis=1)
        return GroupedCells(self.start[index], self.row[index], groups, edges)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLimited:
    """Draws by weight among the experts of a few groups, themselves drawn by weight."""

    logs: Floats
    mass: Floats
    by_mass: PlackettLuce
    tables: AliasTables
    top_groups: int

    @classmethod
    def of(cls, weights: Floats, groups: int, top_groups: int) -> "GroupLimited":
        """Return the law of ``(N, E)`` positive weights in `groups` equal groups."""
        rows, experts = weights.shape
        size = experts // groups
        inner = weights.reshape(rows * groups, size)
        names = np.tile(np.arange(experts).reshape(groups, size), (rows, 1))
        mass = inner.sum(axis=1).reshape(rows, groups)
        return cls(
            np.log(weights),
            mass,
            PlackettLuce.of(mass),
            alias_tables(inner, names),
            top_groups,
        )

    def prepare(self, cells: Cells, forced: Forced | None) -> GroupedCells:
        """Return the cells with their groups drawn; that of one forced expert is in."""
        apart = Cells(cells.start + step(PREPARE), cells.row)
        size = self.logs.shape[1] // self.mass.shape[1]
        held = None if forced is None else forced // size
        groups = distinct(self.by_mass, apart, self.top_groups, held)
        edges = np.empty((self.top_groups - 1, len(cells)), np.int64)
        for some in blocks(len(cells)):
            edges[:, some] = self._edges(cells.row[some], groups[:, some])
        return GroupedCells(cells.start, cells.row, groups, edges)

    def _edges(self, row: Bits, groups: Ids) -> Ints:
        """Return where the shares of the chosen groups end, but for the last.

        A uniform number is `n` + 1/2 units of 2**-52 (`counter.uniform`): it is beyond
        a share if and only if `n` is above the share's units less 1/2, or, as `n` is
        whole, above the whole number below that.
        """
        at = groups + row * np.uint64(self.mass.shape[1])
        share = self.mass.ravel().take(at.view(np.int64), mode="clip")
        for place in range(1, len(share)):
            share[place] += share[place - 1]
        return np.floor(share[:-1] / share[-1] * 2.0**52 - 0.5).astype(np.int64)

    def draw(self, cells: Cells, counter: Ints) -> Ids:
        """Return ``(len(counter), C)`` draws, repeats allowed."""
        assert isinstance(cells, GroupedCells)
        where = bits_at(cells.start, steps(2 * counter + 1))
        where >>= _S12
        chance, groups = where.view(np.int64), cells.groups
        group = np.repeat(groups[:1], len(counter), axis=0)
        for number, edge in enumerate(cells.edges):
            group += (chance > edge) * (groups[number + 1] - groups[number])
        row: Bits = cells.row * np.uint64(self.mass.shape[1]) + group
        return self.tables.draw(row, bits_at(cells.start, steps(2 * counter)))

    def log_weights(self, cells: Cells) -> Floats:
        """Return ``(C, E)``: log weight of each expert, -inf outside the groups."""
        assert isinstance(cells, GroupedCells)
        logs = self.logs[cells.row.view(np.int64)]
        count, groups = len(logs), self.mass.shape[1]
        allowed = np.zeros((count, groups), bool)
        np.put_along_axis(allowed, cells.groups.T.astype(np.int64), np.True_, axis=1)
        inside = np.repeat(allowed, logs.shape[1] // groups, axis=1)
        return np.where(inside, logs, -np.inf)
