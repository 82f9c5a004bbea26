"""Contiguous KV memory: each request holds one stretch of its rank from the start.

Axis: ``R`` ranks.
"""

from collections.abc import Sequence

import numpy as np

from moesim.engine.memory.holes import Holes
from moesim.spec.memory import MemorySpec
from moesim.types import Bools


class Reservations:
    """The stretches of all ranks.

    Parameters
    ----------
    spec : MemorySpec
        How long a stretch is.
    ranks, tokens : int
        ``R``, and the tokens that a rank's KV memory holds.

    Attributes
    ----------
    blocked : (R,) array of bool
        Whether somebody waits for whom there are tokens enough, but no hole.
    """

    def __init__(self, spec: MemorySpec, ranks: int, tokens: int) -> None:
        self.spec = spec
        self.ranks = [Holes(tokens) for _ in range(ranks)]
        self.blocked: Bools = np.zeros(ranks, bool)

    def length(self, prompt: int, output: int) -> int:
        """Return how many tokens are set aside for a request.

        The last token of an answer is never cached. ``pow2`` rounds the answer up to a
        power of two, as Orca (Pow2) of the vLLM paper does: 32 tokens for 25.
        """
        if self.spec.reserve == "exact":
            return prompt + output - 1
        if self.spec.reserve == "pow2":
            return prompt + (1 << (output - 1).bit_length())
        return self.spec.max_model_len

    def refusal(self, prompt: int, output: int) -> str:
        """Return why a request can never have a stretch, or nothing."""
        most, whole = self.spec.max_model_len, self.ranks[0].size
        if self.spec.reserve == "max_model_len" and prompt + output - 1 > most:
            return f"is longer than memory.max_model_len, {most} tokens"
        length = self.length(prompt, output)
        if length > whole:
            return f"needs {length} KV tokens in a row, a rank holds {whole}"
        return ""

    def take(self, rank: int, request: int, length: int) -> bool:
        """Give a request its stretch; return whether there was a hole for it."""
        holes = self.ranks[rank]
        found = holes.take(request, length)
        self.blocked[rank] = not found and holes.free >= length
        return found

    def leave(self, ranks: Sequence[int], requests: Sequence[int]) -> None:
        """Take back the stretches of requests that have ended."""
        for rank, request in zip(ranks, requests, strict=True):
            self.ranks[rank].leave(request)
