"""Blocks of expert ids into one log: every id is looked at before anyone indexes by it.

Axes: ``t`` tokens of a block, ``L`` layers, ``k`` experts of a token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.routing.logs.limits import MOST_CHOICES, MOST_EXPERTS, MOST_LAYERS
from moesim.routing.logs.log import Origin, RoutingLog
from moesim.routing.logs.source import Source
from moesim.routing.logs.store import Rows, Spool
from moesim.types import Bools

MOST_PROBLEMS = 20
DUMMY_RUN = 1024
"""Leading tokens with the same experts in every layer that no real text can have:
engines profile memory with a batch of one token repeated."""
NOTED_RUN = 16


class TokenSink:
    """Collects the tokens of a log, block by block.

    Parameters
    ----------
    source : Source
        Whose limits, hints and notes apply.
    layers : sequence of str
        Names of the layers; empty: numbers from 0.
    """

    def __init__(self, source: Source, layers: Sequence[str] = ()) -> None:
        self.layers = tuple(layers)
        self._source = source
        self._spool: Spool | None = None
        self._lengths: list[int] | None = []
        self._first: NDArray[Any] | None = None
        self._run = 0
        self._largest = -1

    @property
    def tokens(self) -> int:
        """How many tokens have come."""
        return self._spool.rows if self._spool else 0

    @property
    def top_k(self) -> int:
        """Experts of a token; 0 before the first block."""
        return self._spool.inner[1] if self._spool else 0

    def add(self, block: NDArray[Any], lengths: Sequence[int] | None = None) -> None:
        """Add ``(t, L, k)`` ids; `lengths` of the runs of neighbours in it, if known.

        Raises
        ------
        InputError
            No whole numbers, another shape than before, an id out of range or twice in
            a token; with the token, counted from 0, and the layer.
        """
        self._source.meter.tick()
        spool = self._spool or self._begin(block)
        if block.shape[1:] != spool.inner:
            message = (
                f"token {self.tokens}: {block.shape[1]} layers with "
                f"{block.shape[2]} experts; before there were {list(spool.inner)}"
            )
            raise InputError(message)
        if not len(block):
            return
        self._check(block)
        self._watch(block)
        spool.append(block)
        if lengths is None:
            self._lengths = None
        elif self._lengths is not None:
            self._lengths.extend(lengths)

    def sequences(self, lengths: NDArray[Any] | None) -> None:
        """Say how long the sequences are, once all tokens have come; None: unknown."""
        self._lengths = None if lengths is None else lengths.tolist()

    def finish(self, form: str) -> RoutingLog:
        """Return the log, less its warm-up.

        Raises
        ------
        InputError
            There are no tokens, or fewer than the warm-up.
        """
        if self._spool is None or not self.tokens:
            raise InputError("holds no routed tokens; at least one is expected")
        rows = self._spool.finish()
        dropped = self._warmup(rows)
        lengths = _trimmed(self._lengths, dropped)
        return RoutingLog(
            origin=Origin("", form),
            layers=self.layers,
            experts=self._experts(),
            tokens=rows.after(dropped),
            lengths=lengths,
            notes=tuple(self._source.notes),
        )

    def _begin(self, block: NDArray[Any]) -> Spool:
        layers, choices = block.shape[1:]
        hints = self._source.hints
        self.layers = self.layers or tuple(map(str, range(layers)))
        for found, told, most, what in (
            (layers, hints.layers, MOST_LAYERS, "layers"),
            (choices, hints.top_k, MOST_CHOICES, "experts of a token (top_k)"),
        ):
            if not 1 <= found <= most:
                raise InputError(f"has {found} {what}; 1 to {most} are expected")
            if told and told != found:
                raise InputError(f"has {found} {what}; the hint says {told}")
        if len(self.layers) != layers:
            message = f"names {len(self.layers)} layers; the ids have {layers}"
            raise InputError(message)
        memory = self._source.meter.limits.memory_bytes
        self._spool = Spool((layers, choices), memory)
        return self._spool

    def _check(self, block: NDArray[Any]) -> None:
        if block.dtype.kind not in "iu":
            raise InputError(f"ids are {block.dtype}; whole numbers are expected")
        most = self._source.hints.experts or MOST_EXPERTS
        if block.min() < 0 or block.max() >= most:
            outside = np.asarray(((block < 0) | (block >= most)).any(axis=2))
            raise self._problems(block, outside, f"ids from 0 to {most - 1} are valid")
        twice = repeated(block)
        if twice.any():
            raise self._problems(block, twice, "an expert stands twice")

    def _problems(self, block: NDArray[Any], bad: Bools, why: str) -> InputError:
        found = np.argwhere(bad)[:MOST_PROBLEMS].tolist()
        return InputError(
            [
                Problem(
                    f"token {self.tokens + token}, layer {self.layers[layer]}: "
                    f"experts {shown(block[token, layer])}; {why}"
                )
                for token, layer in found
            ]
        )

    def _watch(self, block: NDArray[Any]) -> None:
        """Follow the largest id, and how far all tokens equal the first."""
        self._largest = max(self._largest, int(block.max()))
        if self._first is None:
            self._first = block[0].copy()
        if self._run == self.tokens:
            other = (block != self._first).any(axis=(1, 2))
            self._run += int(other.argmax()) if other.any() else len(block)

    def _experts(self) -> int:
        told = self._source.hints.experts
        if not told:
            self._source.note(
                f"the number of experts is taken from the largest id, {self._largest}"
            )
        return told or self._largest + 1

    def _warmup(self, rows: Rows) -> int:
        """Return how many leading tokens to drop, and say so."""
        asked, note = self._source.hints.warmup, self._source.note
        if asked is None:
            dropped = self._run if DUMMY_RUN <= self._run < len(rows) else 0
            if dropped:
                note(
                    f"dropped the first {dropped} tokens, all routed alike in every "
                    "layer: an engine's profiling pass (warmup=0 keeps them)"
                )
            elif self._run >= NOTED_RUN:
                note(
                    f"the first {self._run} tokens are all routed alike; if they are "
                    f"warm-up, drop them with warmup={self._run}"
                )
            return dropped
        if asked >= len(rows):
            message = f"has {len(rows)} tokens; a warm-up of {asked} leaves none"
            raise InputError(message)
        if asked:
            note(f"dropped the first {asked} tokens, as asked")
        return asked


def repeated(block: NDArray[Any]) -> Bools:
    """Return ``(t, L)``: whether an expert stands twice among a token's.

    Choices are laid out one after the other, so that each comparison runs over
    neighbours in memory; sorting every token is some ten times slower.
    """
    tokens, layers, choices = block.shape
    flat = block.reshape(tokens * layers, choices)
    if choices > 16:
        ordered = np.sort(flat, axis=1)
        found = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        return found.reshape(tokens, layers)
    columns = np.ascontiguousarray(flat.T)
    found = np.zeros(tokens * layers, bool)
    for later in range(1, choices):
        for earlier in range(later):
            found |= columns[later] == columns[earlier]
    return found.reshape(tokens, layers)


def shown(row: NDArray[Any]) -> str:
    """Return the first few ids of a token."""
    head = ", ".join(map(str, row[:16].tolist()))
    return f"[{head}{', ...' if len(row) > 16 else ''}]"


def _trimmed(lengths: list[int] | None, dropped: int) -> NDArray[np.int64] | None:
    """Return the lengths of sequences once the first `dropped` tokens are gone."""
    if lengths is None:
        return None
    ends = np.cumsum(np.array(lengths, np.int64)) - dropped
    ends = ends[ends > 0]
    return np.diff(ends, prepend=0)
