"""Recorded routing: whole sequences of a log, token by token.

The canonical log is an ``.npz`` with ``expert_ids``, ``[T, L, k]`` of a whole-number
type, and ``seq_lens``, the lengths of its sequences in order.

Axes: ``T`` tokens of the log, ``L`` MoE layers, ``k`` experts of a token.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.routing.archive import read_whole_numbers, refusal
from moesim.routing.draw import Sizes
from moesim.routing.source import TokenKeys
from moesim.types import Ids, Ints

MOST_PROBLEMS = 20
"""Bad tokens that are told of at once."""


@dataclass(frozen=True)
class Log(Sizes):
    """Request ``r`` replays sequence ``r`` (modulo their number) of a recorded log.

    A request longer than its sequence starts it again.

    Parameters
    ----------
    path : str
        An ``.npz`` with ``expert_ids``, ``[T, L, k]``, and ``seq_lens``.
    """

    path: str = ""

    def problems(self) -> list[Problem]:
        """Return nothing; raise what is wrong with the file, which is read now.

        Raises
        ------
        InputError
            The file is no such archive, its shape is not the model's, the lengths do
            not add up, or an id is out of range or twice in one token's top-k.
        """
        if not isinstance(self.path, str) or not self.path:
            message = f"found {self.path!r:.60}, expected the name of an .npz file"
            return [Problem(message, key="path")]
        _ = self._arrays
        return []

    @cached_property
    def _arrays(self) -> tuple[Ids, Ints]:
        """Ids of all tokens, and lengths."""
        path = Path(self.path)
        ids, lengths = read_whole_numbers(path, ("expert_ids", "seq_lens"))
        wrong = _shape_problem(self, ids, lengths)
        if wrong:
            raise refusal(path, wrong)
        bad = [refusal(path, text).problems[0] for text in _id_problems(self, ids)]
        if bad:
            raise InputError(bad)
        return ids.astype(np.uint16), lengths.astype(np.int64)

    @cached_property
    def _first(self) -> Ints:
        """``(n,)``: row at which each sequence begins."""
        return np.cumsum(self.sequence_lengths) - self.sequence_lengths

    @property
    def sequence_lengths(self) -> Ints:
        """``(n,)``: tokens of each recorded sequence."""
        return self._arrays[1]

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: the recorded expert ids of each token."""
        sequence = keys.request % len(self.sequence_lengths)
        place = keys.position % self.sequence_lengths[sequence]
        return self._arrays[0][self._first[sequence] + place]


def _shape_problem(log: Log, ids: NDArray[Any], lengths: NDArray[Any]) -> str:
    """Return what is wrong with shapes and lengths, or nothing."""
    if ids.ndim != 3 or ids.shape[1:] != (log.layers, log.top_k) or not len(ids):
        needed = f"[tokens, {log.layers} layers, {log.top_k} experts of a token]"
        return f"expert_ids has shape {list(ids.shape)}; the model needs {needed}"
    if lengths.ndim != 1 or ((lengths < 1) | (lengths > len(ids))).any():
        return (
            f"seq_lens of shape {list(lengths.shape)} is no list of lengths from 1 "
            f"to the {len(ids)} tokens of expert_ids"
        )
    total = int(lengths.sum(dtype=np.float64))
    if total != len(ids):
        return f"seq_lens sums to {total}; expert_ids has {len(ids)} tokens"
    return ""


def _id_problems(log: Log, ids: NDArray[Any]) -> list[str]:
    """Return the first tokens with an id out of range, or else twice in a layer."""
    bad, message = (ids < 0) | (ids >= log.experts), "the model's are 0 to {}"
    if not bad.any():
        ordered = np.sort(ids, axis=2)
        bad, message = ordered[:, :, 1:] == ordered[:, :, :-1], "an expert stands twice"
    places = np.argwhere(bad.any(axis=2))[:MOST_PROBLEMS].tolist()
    return [
        f"token {token}, layer {layer}: expert_ids {ids[token, layer].tolist()}; "
        + message.format(log.experts - 1)
        for token, layer in places
    ]
