"""Placements as logs: how many slots an expert was given says how hot it was thought.

Axes: ``L`` layers, ``P`` physical slots, ``E`` logical experts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.counts import Counted, counts_log
from moesim.routing.logs.limits import MOST_EXPERTS
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.source import Source


def placement_log(
    source: Source, form: str, phy2log: NDArray[Any], layers: Sequence[str] = ()
) -> RoutingLog:
    """Return the log of a placement ``(L, P)``: replicas of each expert, no tokens.

    Raises
    ------
    InputError
        An id is out of range, or an expert has no slot in some layer.
    """
    if phy2log.ndim != 2 or not phy2log.size:
        shape = list(phy2log.shape)
        raise InputError(f"a placement is [layers, slots]; found shape {shape}")
    most = source.hints.experts or MOST_EXPERTS
    if phy2log.min() < 0 or phy2log.max() >= most:
        layer, slot = np.argwhere((phy2log < 0) | (phy2log >= most))[0].tolist()
        found = f"layer {layer}, slot {slot}: expert {phy2log[layer, slot]}"
        raise InputError(f"{found}; 0 to {most - 1} are valid")
    experts = source.hints.experts or int(phy2log.max()) + 1
    source.meter.hold(16 * len(phy2log) * experts, "a table of replicas")
    replicas = np.stack([np.bincount(row, minlength=experts) for row in phy2log])
    if not replicas.all():
        layer, expert = np.argwhere(replicas == 0)[0].tolist()
        raise InputError(f"layer {layer}: expert {expert} has no slot")
    source.note(
        "a placement: counts are replicas of an expert, which only rank its load"
    )
    hot = Counted(replicas[None], layers, phy2log.astype(np.int64), "replicas")
    return counts_log(source, form, hot)
