"""Which of a token's experts was its first choice, where a file says how they weigh.

A router's top-k is in no particular order. Only ``.npz`` logs with ``expert_weights``
(or ``topk_weights``) beside the ids are understood here.

Axes: ``T`` sampled tokens, ``L`` MoE layers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moesim.diagnose.traffic import WEIGHTS
from moesim.routing.logs import Hints, Limits, RoutingLog, members
from moesim.routing.logs.source import open_source
from moesim.types import Ints


def first_slots(
    path: Path, log: RoutingLog, rows: Sequence[range], limits: Limits
) -> Ints | str | None:
    """Return ``(T, L)``: the slot of the heaviest choice of the tokens in `rows`.

    None where the file has no weights that fit its ids, token by token; a text where it
    has some that nothing can be told from: why.

    Raises
    ------
    InputError
        The weights are damaged.
    """
    if log.origin.format != "arrays" or log.tokens is None:
        return None
    source = open_source(path, limits, Hints())
    found = [name for name in members.names_in(path, source) if name in WEIGHTS]
    if not found:
        return None
    wanted = np.array([number for part in rows for number in part], np.int64)
    slots = np.zeros((len(wanted), len(log.layers)), np.int64)
    done = 0
    for (block,) in members.blocks(source, found[:1], 0):
        if block.dtype.kind != "f" or block.shape[1:] != log.tokens.shape[1:]:
            return None
        if not (np.isfinite(block) & (block >= 0)).all():
            return f"not used: {found[0]} (some are negative or no number)"
        inside = (wanted >= done) & (wanted < done + len(block))
        slots[inside] = block[wanted[inside] - done].argmax(axis=2)
        done += len(block)
    return slots if done == log.steps else None
