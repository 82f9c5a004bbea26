"""Requests as columns; nothing about how they are served.

Axis: ``N`` requests, in order of arrival.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats

Whole = NDArray[np.integer[Any]]
"""Whole numbers of any width: requests are many, and their columns are narrow."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What arrives: ``(N,)`` columns.

    `generate` makes them narrow: 8 B for the arrival, 4 B for each length, 1 B for the
    class (2 B where there are more than 256), 17 B a request.

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
    input_tokens: Whole
    output_tokens: Whole
    klass: Whole
    class_names: tuple[str, ...] = ("default",)
    max_concurrency: int = 0

    def __len__(self) -> int:
        """Return how many requests there are, ``N``."""
        return len(self.arrival_s)
