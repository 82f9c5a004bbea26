"""From keys of tokens to their experts, by a law and a row of weights for each cell.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``N`` rows of weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.errors import Problem
from moesim.routing.bend import Bend
from moesim.routing.checks import check_choice, check_count, refuse
from moesim.routing.counter import Bits, root, step, token_keys
from moesim.routing.grouped import GroupLimited
from moesim.routing.source import TokenKeys
from moesim.routing.topk import LAYER_STRIDE, Cells, Law, PlackettLuce, distinct
from moesim.types import Floats, Ids, Ints

CHUNK = 1 << 20
"""Random numbers drawn together: what keeps the work in the cache."""
MOST_EXPERTS = 1 << 16
"""Ids are 16 bits wide."""


@dataclass(frozen=True)
class Sizes:
    """What the model and the seed say about a routing source.

    Parameters
    ----------
    layers, experts, top_k : int
        MoE layers, experts of each, experts of a token in each.
    groups, top_groups : int
        Equal groups of experts, and how many of them a token may use.
    seed : int
        Everything random follows from it.
    draw : {"tokens", "counts"}
        Every token has a route of its own; or a large pass draws how many tokens each
        expert gets (`routing.pass_counts`), where all tokens are drawn alike.
    bend : Bend, optional
        What a policy's gate does to the weights.
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    seed: int = 0
    draw: str = "tokens"
    bend: Bend | None = None

    def __post_init__(self) -> None:
        refuse(_size_problems(self) or _draw_problems(self) or self.problems())

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario; sizes are right."""
        return []

    @property
    def reachable(self) -> int:
        """How many experts of a layer a token may choose among."""
        return self.top_groups * (self.experts // self.groups)

    def law(self, weights: Floats) -> Law:
        """Return the law of ``(N, E)`` weights, limited to groups if the model is."""
        if self.bend is not None:
            weights = self.bend.weights(weights)
        if self.groups in (1, self.top_groups):
            return PlackettLuce.of(weights)
        return GroupLimited.of(weights, self.groups, self.top_groups)


def _size_problems(sizes: Sizes) -> list[Problem]:
    problems = check_count("layers", sizes.layers, 1, 1 << 16)
    problems += check_count("experts", sizes.experts, 1, MOST_EXPERTS)
    problems += check_count("seed", sizes.seed, 0, 2**63 - 1)
    if problems:
        return problems
    problems += check_count("groups", sizes.groups, 1, sizes.experts)
    if problems:
        return problems
    if sizes.experts % sizes.groups:
        message = f"found {sizes.groups}, expected a divisor of {sizes.experts} experts"
        return [Problem(message, key="groups")]
    problems += check_count("top_groups", sizes.top_groups, 1, sizes.groups)
    if not problems:
        reach = sizes.top_groups * (sizes.experts // sizes.groups)
        problems += check_count("top_k", sizes.top_k, 1, reach)
    return problems


def _draw_problems(sizes: Sizes) -> list[Problem]:
    problems = check_choice("draw", sizes.draw, ("tokens", "counts"))
    if not problems and sizes.draw == "counts" and not hasattr(sizes, "pass_counts"):
        message = (
            "counts need tokens that are all drawn alike: uniform, zipf, lognormal"
        )
        problems = [Problem(message, key="draw")]
    return problems


def draw_experts(
    sizes: Sizes,
    law: Law,
    keys: TokenKeys,
    row: Callable[[TokenKeys], Ints],
    forced: Callable[[TokenKeys, Ints], NDArray[np.integer]] | None = None,
) -> Ids:
    """Return ``(T, L, k)`` distinct experts of each token in each layer.

    Parameters
    ----------
    row : callable
        From ``T`` keys to ``(T, L)`` rows of the law's weights.
    forced : callable, optional
        From ``T`` keys and their rows to ``(h, T, L)`` experts of the first slots, -1
        where free.
    """
    origin = root(sizes.seed, "routing")
    layer = np.array([step(number * LAYER_STRIDE) for number in range(sizes.layers)])
    ids = np.empty((sizes.top_k, sizes.layers, len(keys)), np.uint16)
    pace = max(1, CHUNK // (sizes.layers * max(sizes.top_k, 8)))
    for first in range(0, len(keys), pace):
        part = cut(keys, first, first + pace)
        start: Bits = token_keys(origin, part.request, part.position)
        rows = row(part)
        cells = Cells(
            (layer[:, None] + start).ravel(), rows.T.astype(np.uint64).ravel()
        )
        held = None
        if forced is not None:
            held = forced(part, rows).swapaxes(1, 2).reshape(-1, len(cells))
        drawn = distinct(law, cells, sizes.top_k, held)
        ids[:, :, first : first + pace] = drawn.reshape(ids.shape[0], ids.shape[1], -1)
    return ids.T


def cut(keys: TokenKeys, first: int, last: int) -> TokenKeys:
    """Return the keys of the tokens from `first` up to, not including, `last`."""
    return TokenKeys(
        keys.request[first:last], keys.klass[first:last], keys.position[first:last]
    )
