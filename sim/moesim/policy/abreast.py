"""Caches of every layer and size at once: what `policy.cache` does, for a whole log.

Each layer has a cache of its own. The rules are those of `policy.cache_rules`, and a
test holds the two to each other touch by touch.

Axes: ``N`` touches in order, ``L`` MoE layers, ``E`` experts, ``C`` sizes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moesim.policy.reuse import NONE
from moesim.types import Bools, Floats, Ints

ABSENT = np.iinfo(np.int64).max
"""The rank of who is not there: never the smallest."""
USES = 1 << 32
"""A use counts more than any number of touches since."""


@dataclass
class _Rank:
    """What a rule goes by: this touch, and what has been and will be."""

    touches: Ints
    uses: Ints
    now: int = 0
    later: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def fresh(self, lanes: Ints, _: Ints) -> Ints:
        """Return ``(L,)``: the number of this touch."""
        return np.full(len(lanes), self.now)

    def reversed(self, lanes: Ints, _: Ints) -> Ints:
        """Return ``(L,)``: the number of this touch, the last the smallest."""
        return np.full(len(lanes), -self.now)

    def used(self, lanes: Ints, key: Ints) -> Ints:
        """Return ``(L,)``: how often each was used, of equals when."""
        return self.uses[lanes, key] * USES + self.now

    def soon(self, lanes: Ints, _: Ints) -> Ints:
        """Return ``(L,)``: how soon each is used again."""
        return -self.later[self.now, lanes]


@dataclass(frozen=True)
class _Rule:
    """How keys rank: by what, whether a hit ranks anew, whether the worst stay out."""

    rank: Callable[[_Rank, Ints, Ints], Ints]
    renews: bool = True
    bypass: bool = False


RULES: Mapping[str, _Rule] = {
    "lru": _Rule(_Rank.fresh),
    "lfu": _Rule(_Rank.used),
    "fifo": _Rule(_Rank.fresh, renews=False),
    "lifo": _Rule(_Rank.reversed, renews=False),
    "belady": _Rule(_Rank.soon),
    "belady_bypass": _Rule(_Rank.soon, bypass=True),
}
"""Caches that fill as they are touched. The last is the bound of those that may refuse
a key, as a static one does."""


def hits(touches: Ints, experts: int, sizes: Sequence[int], name: str) -> Bools:
    """Return ``(N, L, C)``: whether each touch finds its expert; where none is, no.

    Parameters
    ----------
    touches : (N, L) array of int
        Experts in the order of use; `reuse.NONE` where a layer has none.
    sizes : sequence of int
        Experts that a layer's cache holds, 1 or more.
    name : str
        One of `RULES`.
    """
    rule, room = RULES[name], np.array(sizes)
    count, layers = touches.shape
    state = _Rank(touches, np.zeros((layers, experts), np.int64))
    if rule.rank is _Rank.soon:
        state.later = next_uses(touches, experts)
    ranks = np.full((layers, len(room), experts), ABSENT)
    held = np.zeros((layers, len(room)), np.int64)
    found = np.zeros((count, layers, len(room)), bool)
    for now in range(count):
        state.now = now
        lanes = np.flatnonzero(touches[now] != NONE)
        key = touches[now, lanes]
        state.uses[lanes, key] += 1
        rank = rule.rank(state, lanes, key)[:, None]
        before = ranks[lanes, :, key]
        there = before != ABSENT
        found[now, lanes] = there
        if rule.renews:
            ranks[lanes, :, key] = np.where(there, rank, before)
        if not there.all():
            _admit(ranks, held, (lanes, key, rank, ~there), room, rule)
    return found


def _admit(
    ranks: Ints,
    held: Ints,
    missing: tuple[Ints, Ints, Ints, Bools],
    room: Ints,
    rule: _Rule,
) -> None:
    """Bring in what was not there, and let the smallest rank leave where it is full."""
    lanes, key, rank, absent = missing
    row, size = np.nonzero(absent)
    lane, key, rank = lanes[row], key[row], rank[row, 0]
    full = held[lane, size] >= room[size]
    comes = np.ones(len(row), bool)
    if full.any():
        rows = ranks[lane[full], size[full]]
        victim = rows.argmin(axis=1)
        if rule.bypass:
            # Who is used as late as another is never used again: no matter which stays.
            worse = rank[full] < rows[np.arange(len(rows)), victim]
            comes[full] = ~worse
            victim = victim[~worse]
        leaves = full & comes
        ranks[lane[leaves], size[leaves], victim] = ABSENT
        held[lane[leaves], size[leaves]] -= 1
    ranks[lane[comes], size[comes], key[comes]] = rank[comes]
    held[lane[comes], size[comes]] += 1


def static_hits(touches: Ints, popularity: Floats, sizes: Sequence[int]) -> Bools:
    """Return ``(N, L, C)``: whether each touch is of one of the most popular.

    Parameters
    ----------
    popularity : (L, E) array of float
        The most popular are in, of equals the smaller number.
    """
    layers, experts = popularity.shape
    order = np.argsort(-popularity, axis=1, kind="stable")
    place = np.empty((layers, experts), np.int64)
    np.put_along_axis(place, order, np.arange(experts)[None, :], axis=1)
    at = place[np.arange(layers), touches]
    inside = at[:, :, None] < np.array(sizes)
    return inside & (touches != NONE)[:, :, None]


def next_uses(touches: Ints, experts: int) -> Ints:
    """Return ``(N, L)``: the number of each expert's next touch; ``N`` for never."""
    count, layers = touches.shape
    coming = np.full((layers, experts), count)
    found = np.full((count, layers), count)
    for now in range(count - 1, -1, -1):
        lanes = np.flatnonzero(touches[now] != NONE)
        key = touches[now, lanes]
        found[now, lanes] = coming[lanes, key]
        coming[lanes, key] = now
    return found
