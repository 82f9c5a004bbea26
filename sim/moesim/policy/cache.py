"""Which experts stay in fast memory: caches as pure, deterministic objects.

A cache is touched with a key, such as ``(layer, expert)``, and tells whether it was
there and what had to leave. It knows no clock, no bytes and no cluster. Of keys that a
rule ranks alike the smallest leaves, so the keys of a cache have to be comparable.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from moesim.errors import InputError, Problem
from moesim.policy.cache_rules import (
    Belady,
    Fifo,
    Key,
    Lfu,
    Lifo,
    Lru,
    Rank,
    Rule,
    Static,
)


@dataclass(frozen=True, slots=True)
class Touch:
    """What touching a key did.

    Parameters
    ----------
    hit : bool
        The key was there.
    evicted : key or None
        What left to make room; None when nothing had to.
    kept : bool
        The key is there now; a missing one may pass through without staying.
    """

    hit: bool
    evicted: Key | None = None
    kept: bool = True


HIT, ADDED, PASSED = Touch(hit=True), Touch(hit=False), Touch(hit=False, kept=False)


class Cache(Protocol):
    """What an expert cache does."""

    def touch(self, key: Key) -> Touch:
        """Use a key, bring it in if it is not there, and tell what happened."""
        ...

    @property
    def resident(self) -> Collection[Key]:
        """The keys that are there, pinned ones included, in ascending order."""
        ...


@dataclass(slots=True)
class RankedCache:
    """A cache that a rule governs.

    Parameters
    ----------
    capacity : int
        Keys it holds at most, pinned ones included.
    rule : Rule
        Says who leaves.
    pinned : frozenset of keys
        There from the start, and never evicted.

    Raises
    ------
    InputError
        More keys are pinned than fit.
    """

    capacity: int
    rule: Rule
    pinned: frozenset[Key] = frozenset()
    _ranks: dict[Key, Rank] = field(default_factory=dict, init=False)
    _touches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if len(self.pinned) > self.capacity:
            found = f"{len(self.pinned)} pinned experts do not fit"
            message = f"{found} into a cache of {self.capacity}"
            raise InputError([Problem(message, key="capacity")])

    @property
    def resident(self) -> list[Key]:
        """The keys that are there, pinned ones included, in ascending order."""
        return sorted((*self.pinned, *self._ranks))

    def touch(self, key: Key) -> Touch:
        """Use a key, bring it in if it is not there, and tell what happened."""
        held = self._ranks.get(key)
        rank = self.rule.rank(key, self._touches, held)
        self._touches += 1
        if key in self.pinned:
            return HIT
        if held is not None:
            self._ranks[key] = rank
            return HIT
        room = self.capacity - len(self.pinned)
        if len(self._ranks) < room:
            self._ranks[key] = rank
            return ADDED
        if not room:
            return PASSED
        return self._displace(key, rank)

    def _displace(self, key: Key, rank: Rank) -> Touch:
        lowest, victim = min((r, k) for k, r in self._ranks.items())
        if self.rule.bypass and (rank, key) < (lowest, victim):
            return PASSED
        del self._ranks[victim]
        self._ranks[key] = rank
        return Touch(hit=False, evicted=victim)


RULES: Mapping[str, Callable[[], Rule]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "lifo": Lifo,
}
"""Caches that need nothing but touches, by name."""
CACHES = (*RULES, "static", "belady")
"""All names, those too that need to know the popularity or the future of keys."""


def make_cache(
    name: str,
    capacity: int,
    *,
    pinned: Iterable[Key] = (),
    popularity: Mapping[Key, float] | None = None,
    future: Sequence[Key] | None = None,
) -> RankedCache:
    """Return a cache by name.

    Parameters
    ----------
    name : str
        One of `CACHES`.
    capacity : int
        Keys it holds at most.
    pinned : iterable of keys
        There from the start, and never evicted; they count.
    popularity : mapping, optional
        What ``static`` goes by: the most popular fill it, of equals the smallest key.
    future : sequence, optional
        What ``belady`` goes by.

    Raises
    ------
    InputError
        There is no such cache, what it goes by is missing, or the pinned do not fit.
    """
    kept = frozenset(pinned)
    if capacity < 0:
        message = f"a cache cannot hold {capacity} experts"
        raise InputError([Problem(message, key="capacity")])
    if name in RULES:
        return RankedCache(capacity, RULES[name](), kept)
    if name == "static" and popularity is not None:
        return RankedCache(
            capacity, Static(), _most_popular(popularity, capacity, kept)
        )
    if name == "belady" and future is not None:
        return RankedCache(capacity, Belady(future), kept)
    needs = {"static": "popularity", "belady": "future"}
    if name in needs:
        raise InputError([Problem(f"{name} needs {needs[name]}", key="cache")])
    close = get_close_matches(str(name), CACHES, 1, 0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    known = ", ".join(CACHES)
    raise InputError([Problem(f"{name!r} is not one of {known}{hint}", key="cache")])


def _most_popular(
    popularity: Mapping[Key, float], capacity: int, pinned: frozenset[Key]
) -> frozenset[Key]:
    """Return the pinned keys, and the most popular others that still fit."""
    others = [key for key in popularity if key not in pinned]
    others.sort(key=lambda key: (-popularity[key], key))
    return pinned | frozenset(others[: max(0, capacity - len(pinned))])


def count_hits(cache: Cache, touches: Iterable[Key]) -> int:
    """Return how many of the touches find their key.

    >>> count_hits(make_cache("lru", 2), "abcabb")
    1
    """
    return sum(cache.touch(key).hit for key in touches)
