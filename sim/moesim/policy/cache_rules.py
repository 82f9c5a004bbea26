"""Who leaves a full cache first: small rules that rank keys when they are touched.

Of keys that a rule ranks alike the smallest leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

Key = Any
"""A hashable value that orders against the other keys of the same cache."""
Rank = tuple[float, ...]
"""The resident key with the smallest rank leaves first."""


class Rule(Protocol):
    """Ranks keys when they are touched: whoever ranks lowest leaves first."""

    @property
    def bypass(self) -> bool:
        """Whether a key that would be the first to leave does not come in."""
        ...

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return the rank of a key at its touch number `now`, counted from 0.

        `held` is the rank it has had since its last touch; None when it is not there.
        """
        ...

    def enter(self, key: Key, now: int) -> Rank:
        """Return the rank of a key that comes in without a touch, after `now` touches."""
        ...


@dataclass(frozen=True, slots=True)
class Lru:
    """The least recently used leaves first."""

    bypass: bool = field(default=False, init=False)

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return the time of this touch."""
        return (now,)

    def enter(self, key: Key, now: int) -> Rank:
        """Return the time it came in."""
        return (now,)


@dataclass(frozen=True, slots=True)
class Fifo:
    """Who came first leaves first, however often used since."""

    bypass: bool = field(default=False, init=False)

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return the time it came in."""
        return (now,) if held is None else held

    def enter(self, key: Key, now: int) -> Rank:
        """Return the time it came in."""
        return (now,)


@dataclass(frozen=True, slots=True)
class Lifo:
    """Who came last leaves first: the oldest stay for ever."""

    bypass: bool = field(default=False, init=False)

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return the time it came in, reversed."""
        return (-now,) if held is None else held

    def enter(self, key: Key, now: int) -> Rank:
        """Return the time it came in, reversed."""
        return (-now,)


@dataclass(slots=True)
class Lfu:
    """The least frequently used leaves first; of equals, the least recently used.

    Uses are counted from the start, also while a key is away.
    """

    bypass: bool = field(default=False, init=False)
    _uses: dict[Key, int] = field(default_factory=dict, init=False)

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return how often it was used, and when last."""
        self._uses[key] = self._uses.get(key, 0) + 1
        return self._uses[key], now

    def enter(self, key: Key, now: int) -> Rank:
        """Return how often it was used before, and that it is new."""
        return self._uses.get(key, 0), now


@dataclass(frozen=True, slots=True)
class Static:
    """Nothing ever comes in: what is pinned is all there is."""

    bypass: bool = field(default=True, init=False)

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return the same rank for all."""
        return (0.0,)

    def enter(self, key: Key, now: int) -> Rank:
        """Return the same rank for all."""
        return (0.0,)


@dataclass(slots=True)
class Belady:
    """Whoever is used again last leaves first: no cache that always admits misses less.

    It has to be told the future, so it is a bound and no policy.

    Parameters
    ----------
    future : sequence of keys
        Every touch to come, in order.
    bypass : bool
        A key that would be used again last of all passes through. That is the bound
        of caches that may refuse a key, such as a static one.

    Raises
    ------
    ValueError
        A touch is not what the future said.
    """

    future: Sequence[Key]
    bypass: bool = False
    _next: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.future = list(self.future)
        later: dict[Key, int] = {}
        following = []
        for time in range(len(self.future) - 1, -1, -1):
            key = self.future[time]
            following.append(float(later.get(key, inf)))
            later[key] = time
        self._next = following[::-1]

    def rank(self, key: Key, now: int, held: Rank | None) -> Rank:
        """Return how soon it is used again."""
        if now >= len(self.future) or self.future[now] != key:
            raise ValueError(f"touch {now} is {key!r}, not what the future said")
        return (-self._next[now],)

    def enter(self, key: Key, now: int) -> Rank:
        """Raise `ValueError`: the future tells only of touches."""
        raise ValueError(f"{key!r} comes in without a touch, of which no future tells")
