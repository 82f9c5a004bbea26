"""How well KV memory is used: shares of it over time, and when most is given out.

Axis: ``R`` ranks.
"""

import numpy as np

from moesim.types import Bools, Ints

SHARES = ("kv_used_frac", "kv_internal_frag", "kv_external_frag")


class KvTimes:
    """Sums over time of what KV memory holds.

    *Used* is what holds a computed token. *Internal* fragmentation is what somebody
    holds beyond that: the rest of a block, or of a stretch set aside for answers to
    come. *External* is what nobody holds while somebody waits who would fit into it, if
    it were in one piece.

    Parameters
    ----------
    ranks, tokens : int
        ``R``, and what each rank holds.
    """

    def __init__(self, ranks: int, tokens: int) -> None:
        self.tokens = tokens
        self.now = 0
        self._level: Ints = np.zeros(3, np.int64)
        self._sums = [0, 0, 0]
        self._most = 0, 0
        self._peak: Ints = np.zeros(3, np.int64)
        self._whole = ranks * tokens

    def set(self, now: int, held: Ints, used: Ints, blocked: Bools) -> None:
        """Let these levels hold from now on.

        Parameters
        ----------
        held, used : (R,) arrays of int
            Tokens given out, and those of them that are computed.
        blocked : (R,) array of bool
            Whether somebody waits for whom there is room, but no hole.
        """
        self._last_until(now)
        total = int(held.sum())
        lost = int(((self.tokens - held) * blocked).sum())
        self._level[:] = int(used.sum()), total - int(used.sum()), lost
        if (total, int(used.sum())) > self._most:
            self._most = total, int(used.sum())
            self._peak[:] = self._level

    def _last_until(self, now: int) -> None:
        spent, self.now = now - self.now, now
        for row, level in enumerate(self._level.tolist()):
            self._sums[row] += level * spent

    def finish(self, now: int) -> None:
        """Let the last levels hold until the end."""
        self._last_until(now)

    def facts(self) -> dict[str, float | None]:
        """Return shares of all KV memory: means over the run, and at the peak.

        The peak is when most was given out; of such instants, the first at which most
        of that held computed tokens.
        """
        span = self.now * self._whole
        mean = [part / span if span else None for part in self._sums]
        peak = (self._peak / self._whole).tolist()
        return {
            **{f"{name}_mean": x for name, x in zip(SHARES, mean, strict=True)},
            **{f"{name}_at_peak": x for name, x in zip(SHARES, peak, strict=True)},
        }
