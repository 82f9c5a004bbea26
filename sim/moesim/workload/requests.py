"""Requests as columns; nothing about how they are served.

Axis: ``N`` requests, in order of arrival.
"""

from dataclasses import dataclass

from moesim.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Requests:
    """What arrives: ``(N,)`` columns.

    Parameters
    ----------
    arrival_s : (N,) array of float
        Earliest instant of arrival, ascending; all 0 for a closed loop or a batch.
    input_tokens, output_tokens : (N,) arrays of int
        Prompt length and tokens to generate, each at least 1.
    klass : (N,) array of int
        Class (domain) of each request: an index into `class_names`.
    max_concurrency : int
        A request enters only when fewer than this many are unfinished; 0: no limit.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    klass: Ints
    class_names: tuple[str, ...] = ("default",)
    max_concurrency: int = 0

    def __len__(self) -> int:
        """Return how many requests there are, ``N``."""
        return len(self.arrival_s)
