"""The KV memory of one rank as one stretch of tokens, given out first fit.

Who gets a part keeps all of it until it leaves. Between parts lie *holes*; two holes
never touch, since they would be one.
"""

from bisect import bisect_left


class Holes:
    """Free stretches in order of place, and who holds the others.

    Parameters
    ----------
    size : int
        Tokens of the whole stretch.

    Attributes
    ----------
    held : dict of int to (int, int)
        First token and length of what each owner holds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self.held: dict[int, tuple[int, int]] = {}
        self._starts = [0] if size else []
        self._lengths = [size] if size else []

    @property
    def holes(self) -> list[tuple[int, int]]:
        """First token and length of every hole, in order."""
        return list(zip(self._starts, self._lengths, strict=True))

    @property
    def largest(self) -> int:
        """Length of the longest hole."""
        return max(self._lengths, default=0)

    def take(self, owner: int, length: int) -> bool:
        """Give an owner the beginning of the first hole that is long enough, if any is.

        Raises
        ------
        ValueError
            The owner holds something already, or asks for nothing.
        """
        if owner in self.held or length < 1:
            raise ValueError(f"{owner} holds a stretch, or asks for {length} tokens")
        for row, hole in enumerate(self._lengths):
            if hole >= length:
                self._cut(row, owner, length)
                return True
        return False

    def _cut(self, row: int, owner: int, length: int) -> None:
        self.held[owner] = self._starts[row], length
        self.free -= length
        self._starts[row] += length
        self._lengths[row] -= length
        if not self._lengths[row]:
            del self._starts[row], self._lengths[row]

    def leave(self, owner: int) -> int:
        """Take back what an owner holds; return how long it was.

        Raises
        ------
        KeyError
            The owner holds nothing.
        """
        start, length = self.held.pop(owner)
        self.free += length
        row = bisect_left(self._starts, start)
        self._starts.insert(row, start)
        self._lengths.insert(row, length)
        self._join(row)
        if row:
            self._join(row - 1)
        return length

    def _join(self, row: int) -> None:
        """Make a hole and the next one a single hole where they touch."""
        after = row + 1
        if after == len(self._starts):
            return
        if self._starts[row] + self._lengths[row] == self._starts[after]:
            self._lengths[row] += self._lengths[after]
            del self._starts[after], self._lengths[after]
