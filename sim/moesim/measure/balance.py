"""How evenly the ranks of each pass were loaded, in the two ways engines report it.

Axes: ``L`` MoE layers, ``G`` GPUs.
"""

from moesim.types import Floats, Ints


class Balance:
    """Sums over passes, from which both balancednesses follow; 1 is perfect."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._maximum = 0.0
        self._ratio = 0.0
        self._layers = 0

    def add(self, rank_tokens: Ints | Floats) -> None:
        """Take in one pass: ``(L, G)`` tokens its experts on each GPU received."""
        largest = rank_tokens.max(axis=1)
        used = largest > 0
        mean = rank_tokens.mean(axis=1)[used]
        self._mean += float(mean.sum())
        self._maximum += float(largest.sum())
        self._ratio += float((mean / largest[used]).sum())
        self._layers += int(used.sum())

    @property
    def vllm(self) -> float | None:
        """Sum of means over sum of maxima: layers and passes weigh by their time."""
        return self._mean / self._maximum if self._maximum else None

    @property
    def sglang(self) -> float | None:
        """Mean over layers and passes of mean over maximum: all weigh the same."""
        return self._ratio / self._layers if self._layers else None
