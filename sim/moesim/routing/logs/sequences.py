"""Routed experts as servers return them with a response: one array a request.

Rows of prefix-cached tokens are -1; rows of dense layers are all 0 where a server counts
every decoder layer. A token cannot have expert 0 twice, so those layers are known.

Axes: ``t`` tokens of a request, ``L`` layers, ``k`` experts of a token.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.source import Source
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

CACHED = -1


class Sequences:
    """Collects one array ``(t, L, k)`` a request, and finds out which layers are dense."""

    def __init__(self, source: Source) -> None:
        self._source = source
        plain = replace(source, hints=replace(source.hints, layers=0))
        self._sink = TokenSink(plain)
        self._layers = source.hints.layers
        self._kept: Ints | None = None
        self._cached = 0

    def add(self, ids: NDArray[Any]) -> None:
        """Add a request's tokens, in order.

        Raises
        ------
        InputError
            Another shape than earlier requests, or ids that `TokenSink` refuses.
        """
        if ids.ndim != 3 or ids.dtype.kind not in "iu":
            what = f"routed experts are {ids.dtype} of shape {list(ids.shape)}"
            raise InputError(f"{what}; whole numbers [tokens, layers, k] are expected")
        self._layers = self._layers or ids.shape[1]
        if ids.shape[1] != self._layers:
            message = f"a request has {ids.shape[1]} layers"
            raise InputError(f"{message}; {self._layers} are expected")
        cached = (ids == CACHED).all(axis=(1, 2))
        routed = ids[~cached]
        self._cached += int(cached.sum())
        if not routed.size:
            return
        kept = self._routed_layers(routed)
        self._sink.add(routed[:, kept], [len(routed)])

    def finish(self, form: str) -> RoutingLog:
        """Return the log; what was left out is said."""
        if self._cached:
            self._source.note(
                f"dropped {self._cached} tokens without routes (-1): prefix-cached"
            )
        if self._kept is not None and len(self._kept) == self._layers:
            self._source.note(
                "layers are numbered as in the file, which may count the MoE layers only"
            )
        return self._sink.finish(form)

    def _routed_layers(self, ids: NDArray[Any]) -> Ints:
        dense = ~ids.any(axis=(0, 2)) & (ids.shape[2] > 1)
        if self._kept is None:
            self._kept = np.flatnonzero(~dense)
            self._sink.layers = tuple(map(str, self._kept.tolist()))
            if dense.any():
                self._source.note(f"dropped {int(dense.sum())} dense layers (all 0)")
        if not dense[np.setdiff1d(np.arange(ids.shape[1]), self._kept)].all():
            raise InputError("a layer is routed in one request and all 0 in another")
        return self._kept
