"""The one form in which every log of routing arrives.

Axes: ``T`` tokens, ``L`` MoE layers of the log, ``k`` experts of a token, ``S`` steps
(forward passes) of a log without tokens, ``E`` logical experts, ``P`` physical slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moesim.routing.logs.store import Rows
from moesim.routing.source import count
from moesim.types import Ints


@dataclass(frozen=True, slots=True)
class Origin:
    """The file (or folder) that a log was read from.

    Parameters
    ----------
    path, format : str
        As messages name it, and the format by its name.
    files : int
        How many files were read.
    sha256 : str
        Of the file; of all files one after the other, by name, for a folder.
    """

    path: str
    format: str
    files: int = 1
    sha256: str = ""


@dataclass(frozen=True, eq=False)
class RoutingLog:
    """Which experts tokens went to: token by token, or only how many.

    Exactly one of `tokens` and `counts` is there. Ids and counts are of logical
    experts; every id was checked to be below `experts` and to stand once in its token.

    Parameters
    ----------
    origin : Origin
        Where it came from.
    layers : tuple of str
        ``(L,)`` names of the layers, as the file has them: ``"3"`` is decoder layer 3
        unless a note says that layers are numbered among the MoE layers only.
    experts : int
        Experts of each layer, ``E``.
    tokens : Rows or None
        ``(T, L, k)`` ids of the smallest unsigned type.
    lengths : (n,) array of int, or None
        Tokens of each run of neighbours of one request, in order; they sum to ``T``.
        None: the file does not tell where a sequence ends.
    counts : (S, L, E) array, or None
        Tokens of each expert in each step; whole numbers unless the file has fractions.
    phy2log : (L, P) array of int, or None
        The placement, where the file is one; `counts` are then replicas of an expert.
    unit : {"tokens", "replicas"}
        What counts count.
    notes : tuple of str
        What was dropped, mapped, summed or assumed, for people.
    """

    origin: Origin
    layers: tuple[str, ...]
    experts: int
    tokens: Rows | None = None
    lengths: Ints | None = None
    counts: NDArray[Any] | None = None
    phy2log: Ints | None = None
    unit: Literal["tokens", "replicas"] = "tokens"
    notes: tuple[str, ...] = field(default=())

    @property
    def top_k(self) -> int:
        """Experts of a token, ``k``; 0 where there are only counts."""
        return self.tokens.shape[2] if self.tokens is not None else 0

    @property
    def steps(self) -> int:
        """How many tokens there are, or else steps."""
        if self.tokens is not None:
            return len(self.tokens)
        return 0 if self.counts is None else len(self.counts)

    @property
    def ids(self) -> NDArray[Any] | None:
        """``(T, L, k)``: ids of all tokens, read-only; a map of a file if they are many.

        `blocks` reads them piece by piece, which bounds memory.
        """
        return None if self.tokens is None else self.tokens.array()

    def blocks(self, rows: int = 0) -> Iterator[NDArray[Any]]:
        """Yield ``(t, L, k)`` ids of successive tokens, `rows` (or some 4 MiB) at once.

        Nothing is yielded where there are only counts.
        """
        if self.tokens is not None:
            yield from self.tokens.blocks(rows)

    @cached_property
    def totals(self) -> NDArray[Any]:
        """``(L, E)``: tokens of each expert over the whole log."""
        if self.counts is not None:
            return self.counts.sum(axis=0)
        total = np.zeros((len(self.layers), self.experts), np.int64)
        for block in self.blocks():
            total += count(block, self.experts)
        return total
