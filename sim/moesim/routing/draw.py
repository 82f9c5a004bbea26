"""From keys of tokens to their experts, by a law and a row of weights for each cell.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``N`` rows of weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moesim.errors import InputError, Problem
from moesim.routing.counter import Bits, root, step, token_keys
from moesim.routing.grouped import GroupLimited
from moesim.routing.source import TokenKeys
from moesim.routing.topk import LAYER_STRIDE, Cells, Law, PlackettLuce, distinct
from moesim.types import Floats, Ids, Ints

CHUNK = 1 << 15
"""(Token, layer) cells drawn together: what keeps the work in the cache."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the model and the seed say about a routing source."""

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0

    def law(self, weights: Floats) -> Law:
        """Return the law of ``(N, E)`` weights, limited to groups if the model is."""
        if self.groups in (1, self.top_groups):
            return PlackettLuce.of(weights)
        return GroupLimited.of(weights, self.groups, self.top_groups)


def draw_experts(
    sizes: Sizes,
    law: Law,
    keys: TokenKeys,
    row: Callable[[TokenKeys], Ints],
    forced: Callable[[TokenKeys], Ints | None] = lambda _: None,
) -> Ids:
    """Return ``(T, L, k)`` distinct experts of each token in each layer.

    Parameters
    ----------
    row : callable
        From ``T`` keys to ``(T, L)`` rows of the law's weights.
    forced : callable
        From ``T`` keys to ``(T, L)`` experts that must be used, -1 where free.
    """
    origin = root(sizes.seed, "routing")
    layer = np.array([step(number * LAYER_STRIDE) for number in range(sizes.layers)])
    ids = np.empty((len(keys), sizes.layers, sizes.top_k), np.uint16)
    pace = max(1, CHUNK // sizes.layers)
    for first in range(0, len(keys), pace):
        part = cut(keys, first, first + pace)
        start: Bits = token_keys(origin, part.request, part.position)
        cells = Cells(
            (start[:, None] + layer).ravel(), row(part).astype(np.uint64).ravel()
        )
        fixed = forced(part)
        held = None if fixed is None else fixed.reshape(1, -1)
        drawn = distinct(law, cells, sizes.top_k, held)
        ids[first : first + pace] = drawn.T.reshape(len(part), sizes.layers, -1)
    return ids


def cut(keys: TokenKeys, first: int, last: int) -> TokenKeys:
    """Return the keys of the tokens from `first` up to, not including, `last`."""
    return TokenKeys(
        keys.request[first:last], keys.klass[first:last], keys.position[first:last]
    )


def check_range(key: str, value: object, low: float, high: float) -> list[Problem]:
    """Return a problem if a parameter is no number in a range."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and low <= float(value) <= high:  # type: ignore[arg-type]
        return []
    return [
        Problem(
            f"a number from {low:g} to {high:g} is expected; got {value!r}", key=key
        )
    ]


def refuse(problems: list[Problem]) -> None:
    """Raise what was found, if anything was."""
    if problems:
        raise InputError(problems)
