"""How differently two logs, as of two kinds of requests, use the experts.

Axes: ``L`` MoE layers, ``E`` experts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesim.diagnose.traffic import Traffic
from moesim.types import Floats

Record = dict[str, Any]


def classes(parts: Sequence[Traffic]) -> Record | None:
    """Return the similarity of two logs' popularity; None for one log.

    ``cosine`` of the counts (median over layers; ``halves`` that of one log's own two
    halves, the lower), ``distance`` half the sum of differences of shares, and
    ``hot_overlap`` the share of the one's top tenth of experts in the other's.
    """
    if len(parts) < 2:
        return None
    one, other = parts[0].totals, parts[1].totals
    cosine = _cosine(one, other)
    share = [
        part / part.sum(axis=1, keepdims=True).clip(1e-300) for part in (one, other)
    ]
    distance = np.abs(share[0] - share[1]).sum(axis=1) / 2
    return {
        "names": [part.name for part in parts],
        "cosine": float(np.median(cosine)),
        "halves": min(_halves(part) for part in parts),
        "distance": float(np.median(distance)),
        "hot_overlap": _hot(one, other),
        "most_different": parts[0].layers[int(distance.argmax())],
        "by_layer": cosine.tolist(),
    }


def _cosine(one: Floats, other: Floats) -> Floats:
    inner = (one * other).sum(axis=1)
    size = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
    cosine: Floats = np.divide(inner, size, out=np.zeros_like(inner), where=size > 0)
    return cosine


def _halves(part: Traffic) -> float:
    half = len(part.windows) // 2
    if not half:
        return 1.0
    first, second = part.windows[:half].sum(axis=0), part.windows[half:].sum(axis=0)
    return float(np.median(_cosine(first, second)))


def _hot(one: Floats, other: Floats) -> float:
    top = max(1, -(-one.shape[1] // 10))
    a, b = (np.argsort(-part, axis=1, kind="stable")[:, :top] for part in (one, other))
    return float((a[:, :, None] == b[:, None, :]).any(axis=2).mean())
