"""Which experts a token would use next, after those it has.

Drawn by the same law, given the ones it has: so all together are a Plackett-Luce draw
of more experts. Numbers that drew or redrew the first ones cannot be drawn again as new
ones, since what they name is taken; all others are fresh.

Axes: ``T`` tokens, ``L`` MoE layers, ``C`` cells, ``k`` experts of a token.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from moesim.routing.counter import root, step, token_keys
from moesim.routing.source import TokenKeys
from moesim.routing.topk import LAYER_STRIDE, Cells, Forced, Law, distinct
from moesim.types import Floats, Ids, Ints


@runtime_checkable
class Tasteful(Protocol):
    """A source whose tokens draw experts by a law, and so have next ones."""

    seed: int

    @property
    def reachable(self) -> int:
        """How many experts of a layer a token may choose among."""
        ...

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        ...


@dataclass(frozen=True, slots=True)
class Settled:
    """A law for cells that are prepared already."""

    law: Law

    def prepare(self, cells: Cells, forced: Forced | None) -> Cells:
        """Return the cells as they are."""
        return cells

    def draw(self, cells: Cells, counter: Ints) -> Ids:
        """Return ``(len(counter), C)`` draws, repeats allowed."""
        return self.law.draw(cells, counter)

    def log_weights(self, cells: Cells) -> Floats:
        """Return ``(C, E)``: log weight of each expert."""
        return self.law.log_weights(cells)


def further(
    source: Tasteful, keys: TokenKeys, where: tuple[Ints, Ints], has: Ids, count: int
) -> Ids:
    """Return ``(n, C)``, n at most `count`: the next experts of some cells, in order.

    Parameters
    ----------
    source : Tasteful
        What routes.
    keys : TokenKeys
        All tokens.
    where : two (C,) arrays of int
        Token and layer of each cell.
    has : (k, C) array of int
        The experts that the cell's token uses in the layer.
    count : int
        How many more, if the token may use as many.
    """
    token, layer = where
    law, rows = source.taste(keys)
    origin = root(source.seed, "routing")
    start = token_keys(origin, keys.request[token], keys.position[token])
    apart = np.array([step(n * LAYER_STRIDE) for n in range(rows.shape[1])])
    cells = Cells(apart[layer] + start, rows[token, layer].astype(np.uint64))
    ready = law.prepare(cells, None)
    most = min(len(has) + count, source.reachable)
    drawn = distinct(Settled(law), ready, most, has.astype(np.int64))
    return drawn[len(has) :]
