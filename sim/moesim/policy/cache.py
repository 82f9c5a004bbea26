"""Which experts stay in fast memory: caches as pure, deterministic objects.

A cache is touched with a key, such as ``(layer, expert)``, and tells whether it was
there and what had to leave. It knows no clock, no bytes and no cluster. Of keys that a
rule ranks alike the smallest leaves, so the keys of a cache have to be comparable.
"""

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from moesim.errors import InputError, Problem, meant
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


STALE = 8
"""Entries of a heap for each key that is there before the outdated ones are dropped."""
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

    `touch` does all that a touch does at once. Who needs time to bring a key in, and may
    not evict what is in use, takes the steps one by one: `use`, `victim`, `evict` and
    `admit`.

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
    _noted: dict[Key, Rank] = field(default_factory=dict, init=False)
    _heap: list[tuple[Rank, Key]] = field(default_factory=list, init=False)
    _touches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if len(self.pinned) > self.capacity:
            found = f"{len(self.pinned)} pinned experts do not fit"
            message = f"{found} into a cache of {self.capacity}"
            raise InputError([Problem(message, key="capacity")])

    def __contains__(self, key: Key) -> bool:
        """Return whether a key is there."""
        return key in self._ranks or key in self.pinned

    @property
    def resident(self) -> list[Key]:
        """The keys that are there, pinned ones included, in ascending order."""
        return sorted((*self.pinned, *self._ranks))

    @property
    def free(self) -> int:
        """How many more keys fit."""
        return self.capacity - len(self.pinned) - len(self._ranks)

    def touch(self, key: Key) -> Touch:
        """Use a key, bring it in if it is not there, and tell what happened."""
        if self.use(key):
            return HIT
        if self.free:
            self.admit(key)
            return ADDED
        victim = self.victim()
        if victim is None or (self.rule.bypass and not self.outranks(key, victim)):
            self._noted.pop(key)
            return PASSED
        self.evict(victim)
        self.admit(key)
        return Touch(hit=False, evicted=victim)

    def use(self, key: Key) -> bool:
        """Note a use of a key; return whether it is there."""
        held = self._ranks.get(key)
        rank = self.rule.rank(key, self._touches, held)
        self._touches += 1
        if key in self.pinned:
            return True
        if held is None:
            self._noted[key] = rank
            return False
        if rank != held:
            self._rank(key, rank)
        return True

    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """Return who would leave first of all that are not `kept`, if anybody would."""
        heap, aside = self._heap, []
        found = None
        while heap and found is None:
            rank, key = heap[0]
            if self._ranks.get(key) != rank:
                heappop(heap)
            elif key in kept:
                aside.append(heappop(heap))
            else:
                found = key
        for entry in aside:
            heappush(heap, entry)
        return found

    def outranks(self, key: Key, victim: Key) -> bool:
        """Return whether a key that is not there would leave after one that is."""
        return (self._rank_to_be(key), key) > (self._ranks[victim], victim)

    def evict(self, key: Key) -> None:
        """Let a key go that is there and not pinned."""
        del self._ranks[key]

    def admit(self, key: Key) -> None:
        """Bring in a key that is not there: as of its last use, if that brings it in."""
        if not self.free:
            raise ValueError(f"there is no room for {key!r}")
        rank = self._rank_to_be(key)
        self._noted.pop(key, None)
        self._rank(key, rank)

    def forget(self, key: Key) -> None:
        """Note that the last use of a key will not bring it in."""
        self._noted.pop(key, None)

    def _rank_to_be(self, key: Key) -> Rank:
        return self._noted.get(key) or self.rule.enter(key, self._touches)

    def _rank(self, key: Key, rank: Rank) -> None:
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > STALE * len(self._ranks) + STALE:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)


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
    message = f"{name!r} is not one of {', '.join(CACHES)}{meant(name, CACHES)}"
    raise InputError([Problem(message, key="cache")])


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
