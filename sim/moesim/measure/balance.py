"""How evenly the ranks of each pass were loaded, in the ways engines report it.

Axes: ``L`` MoE layers, ``G`` GPUs.
"""

from moesim.types import Floats, Ints


class Balance:
    """Sums over passes, from which the ratios follow; a balancedness of 1 is perfect."""

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
    def count(self) -> int:
        """How many layers of passes, or joint stages, had tokens."""
        return self._layers

    @property
    def vllm(self) -> float | None:
        """Sum of means over sum of maxima: layers and passes weigh by their time."""
        return self._mean / self._maximum if self._maximum else None

    @property
    def imbalance(self) -> float | None:
        """Return (max - mean) / mean over layers and passes, each weighing by its mean.

        With as many tokens in every pass it is the mean of the ratios, as TensorRT-LLM
        reports it (``docs/source/blogs/tech_blog/blog04``).
        """
        return self._maximum / self._mean - 1 if self._mean else None

    @property
    def sglang(self) -> float | None:
        """Mean over layers and passes of mean over maximum: all weigh the same."""
        return self._ratio / self._layers if self._layers else None
