"""Counts where counts suffice: tokens of each expert, for whole stretches of requests.

Counts are those of the tokens themselves, in bounded memory, at the price of routing
them (`RoutingSource.route`). So they add up over any way of cutting a request, and a
pass that is priced from counts meets the same load as one that is priced token by token.

Axes: ``R`` stretches, ``L`` MoE layers, ``E`` experts.
"""

from dataclasses import dataclass

import numpy as np

from moesim.errors import InputError, Problem
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.types import Ints

TOKENS, COUNTERS = 1 << 13, 1 << 23
"""Tokens routed and counters held at once, beside the result."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Runs of consecutive tokens: of a request of a class, ``start`` up to ``stop``."""

    request: Ints
    klass: Ints
    start: Ints
    stop: Ints

    def __post_init__(self) -> None:
        bad = np.flatnonzero((self.stop < self.start) | (self.start < 0))
        if len(bad):
            place = f"{self.start[bad[0]]} to {self.stop[bad[0]]}"
            message = f"found positions {place}, expected 0 <= start <= stop"
            raise InputError([Problem(message, key=f"stretches.{bad[0]}")])

    def __len__(self) -> int:
        """Return how many stretches there are, ``R``."""
        return len(self.request)


def count_stretches(source: RoutingSource, stretches: Stretches) -> Ints:
    """Return ``(R, L, E)``: how many tokens of each stretch use each expert.

    Over a layer they sum to the stretch's tokens times k.
    """
    width = source.layers * source.experts
    result = np.zeros((len(stretches), width), np.int64)
    ends: Ints = np.cumsum(stretches.stop - stretches.start)
    pace = max(1, min(TOKENS, COUNTERS // width))
    for first in range(0, int(ends[-1]) if len(ends) else 0, pace):
        token = np.arange(first, min(first + pace, int(ends[-1])))
        run = np.searchsorted(ends, token, side="right")
        position = stretches.stop[run] - (ends[run] - token)
        keys = TokenKeys(stretches.request[run], stretches.klass[run], position)
        low, high = int(run[0]), int(run[-1]) + 1
        cell = np.arange(source.layers) * source.experts + (run - low)[:, None] * width
        flat = source.route(keys) + cell[:, :, None]
        counted = np.bincount(flat.ravel(), minlength=(high - low) * width)
        result[low:high] += counted.reshape(high - low, width)
    return result.reshape(len(stretches), source.layers, source.experts)
