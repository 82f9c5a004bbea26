"""What does not fit into experts of limited capacity: dropped, or sent to next ones.

Axes: ``T`` tokens of a micro-batch, ``L`` MoE layers, ``k`` experts of a token, ``E``
experts; ``C`` (token, layer) cells with overflow, ``O`` choices that overflow.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moesim.routing.source import count
from moesim.types import Bools, Ids, Ints

Further = Callable[[Ints, Ints, Ids], Ids]
"""From tokens and layers of ``C`` cells, and the ``(k, C)`` experts they have, to
``(n, C)`` next ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """Choices after capacity.

    Parameters
    ----------
    ids : (T, L, k) array of int
        Experts; a choice that was rerouted names its new one.
    kept : (T, L, k) array of bool
        Which choices are served.
    dropped, rerouted : (L, E) arrays of int
        Choices that each expert had no room for, by what became of them. So the served
        ones are ``T k`` less the dropped ones in every layer.
    """

    ids: Ids
    kept: Bools
    dropped: Ints
    rerouted: Ints


def admit(ids: Ids, room: int, experts: int, further: Further | None) -> Admitted:
    """Return what experts with room for so many tokens take.

    Of the choices of an expert the first stay, in order of tokens. With `further` the
    others move on in rounds: each asks its token's next expert not asked before, and
    those with room take them in order of tokens and choices.
    """
    wanted = count(ids, experts)
    kept = fits(ids, wanted, room)
    token, layer, choice = np.nonzero(~kept)
    old = ids[token, layer, choice]
    lost = np.ones(len(token), bool)
    if further is not None and len(token):
        ids = ids.copy()
        found = _move_on(ids, (token, layer), np.minimum(wanted, room), room, further)
        lost = found < 0
        ids[token, layer, choice] = np.where(lost, old, found)
        kept[token, layer, choice] = ~lost
    cell = layer * experts + old
    size = wanted.size

    def tally(some: Bools) -> Ints:
        return np.bincount(cell[some], minlength=size).reshape(wanted.shape)

    return Admitted(ids, kept, tally(lost), tally(~lost))


def fits(ids: Ids, wanted: Ints, room: int) -> Bools:
    """Return ``(T, L, k)``: which choices are among the first `room` of their expert."""
    kept = np.ones(ids.shape, bool)
    layers, experts = wanted.shape
    crowded = (wanted > room)[np.arange(layers)[:, None], ids]
    token, layer, choice = np.nonzero(crowded)
    cell = layer * experts + ids[token, layer, choice]
    kept[token, layer, choice] = turns(cell) < room
    return kept


def turns(cell: Ints) -> Ints:
    """Return for each entry how many equal ones come before it.

    >>> turns(np.array([3, 1, 3, 3, 1])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(cell, kind="stable")
    ordered = cell[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(first, append=len(cell))
    turn = np.empty(len(cell), np.int64)
    turn[order] = np.arange(len(cell)) - np.repeat(first, lengths)
    return turn


def _move_on(
    ids: Ids, at: tuple[Ints, Ints], load: Ints, room: int, further: Further
) -> Ints:
    """Return ``(O,)``: the experts that take the choices, -1 where none does.

    Parameters
    ----------
    at : two (O,) arrays of int
        Token and layer of each choice, in order.
    load : (L, E) array of int
        What experts have already; updated.
    """
    token, layer = at
    layers, experts = load.shape
    cells, mine = np.unique(token * layers + layer, return_inverse=True)
    owner, where = np.divmod(cells, layers)
    asked = further(owner, where, ids[owner, where].T)
    turn = np.zeros(len(cells), np.int64)
    found = np.full(len(token), -1)
    left = np.arange(len(token))
    flat = load.reshape(-1)
    while len(left):
        cell = mine[left]
        number = turn[cell] + turns(cell)
        left, cell, number = (
            part[number < len(asked)] for part in (left, cell, number)
        )
        expert = asked[number, cell].astype(np.int64)
        place = layer[left] * experts + expert
        taken = turns(place) < room - flat[place]
        found[left[taken]] = expert[taken]
        flat += np.bincount(place[taken], minlength=flat.size)
        turn += np.bincount(cell, minlength=len(turn))
        left = left[~taken]
    return found
