"""Orders of a log's tokens, and made-up logs of which it is known what caches do.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from moesim.types import Ints

REPEATED, WITHIN, REACH = 0.45, 0.80, 8
"""Sticky tokens: shares of choices that the last token, and that one of the last eight,
has made too. Measured on Qwen3-30B-A3B (kekzl/imp, pull request 1359)."""


def interleaved(lengths: Sequence[int] | Ints, width: int) -> Ints:
    """Return tokens in the order in which `width` sequences decode side by side.

    A sequence that ends makes room for the next. Once fewer than `width` are left the
    rest is left out, so every run of `width` tokens is of as many sequences.

    >>> interleaved([3, 1, 2], 2).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    starts = np.cumsum(lengths) - np.asarray(lengths)
    waiting = [[int(a), int(a + n)] for a, n in zip(starts, lengths, strict=True)]
    running, waiting = waiting[:width], waiting[width:]
    order: list[int] = []
    while len(running) == width:
        order += [place for place, _ in running]
        ahead = [[place + 1, end] for place, end in running if place + 1 < end]
        running = ahead + waiting[: width - len(ahead)]
        waiting = waiting[width - len(ahead) :]
    return np.array(order, np.int64)


def shuffled(ids: NDArray[Any], _: int, rng: Generator) -> NDArray[Any]:
    """Return the same tokens in random order: as popular, no locality."""
    return ids[rng.permutation(len(ids))]


def independent(ids: NDArray[Any], experts: int, rng: Generator) -> NDArray[Any]:
    """Return as many tokens whose experts are all equally likely."""
    chance = rng.random((*ids.shape[:2], experts))
    return np.argpartition(chance, ids.shape[2], axis=2)[:, :, : ids.shape[2]]


def sticky(ids: NDArray[Any], experts: int, rng: Generator) -> NDArray[Any]:
    """Return as many tokens that repeat experts of their predecessors, none popular.

    Of a token's choices `REPEATED` are of the last token's experts, `WITHIN` of those
    of the last `REACH` tokens, the rest of all others; each alike among its kind.
    """
    tokens, layers, top_k = ids.shape
    made = np.zeros((tokens, layers, top_k), np.int64)
    age = np.full((layers, experts), tokens + REACH)
    lanes = np.arange(layers)[:, None]
    for now in range(tokens):
        kind = np.where(age == 1, 0, np.where(age <= REACH, 1, 2))
        chance = rng.random((layers, top_k))
        wanted = np.where(chance < REPEATED, 0, np.where(chance < WITHIN, 1, 2))
        made[now] = _picked(kind, wanted, rng)
        age += 1
        age[lanes, made[now]] = 1
    return made


def _picked(kind: Ints, wanted: Ints, rng: Generator) -> Ints:
    """Return ``(L, k)`` different experts, as many of each kind as is wanted.

    Where there are not enough of a kind, the next one fills in.
    """
    order = rng.random(kind.shape)
    places = [np.argsort(np.where(kind == k, order, 2.0), axis=1) for k in range(3)]
    sizes = [(kind == k).sum(axis=1) for k in range(3)]
    picked = np.zeros(wanted.shape, np.int64)
    for lane in range(len(kind)):
        short, found = 0, []
        for number in range(3):
            want = int((wanted[lane] == number).sum()) + short
            take = min(want, int(sizes[number][lane]))
            short = want - take
            found += places[number][lane, :take].tolist()
        spare = [e for e in np.argsort(order[lane]).tolist() if e not in found]
        picked[lane] = [*found, *spare[:short]]
    return picked


Control = Callable[[NDArray[Any], int, Generator], NDArray[Any]]
CONTROLS: Mapping[str, Control] = {
    "shuffled": shuffled,
    "independent": independent,
    "sticky": sticky,
}
"""What takes a log's place, by name: of the same size, made of its ids or none."""
