"""How unevenly experts are loaded, in every definition in use, layer by layer.

Axes: ``L`` MoE layers, ``E`` experts.
"""

from math import ceil
from typing import Any

import numpy as np

from moesim.diagnose.traffic import Traffic
from moesim.routing import stats

MILD, SEVERE = 0.3, 0.5
"""Coefficients of variation over which practitioners call a layer imbalanced."""
HOT_SHARE = 0.3
"""Share of the top tenth of experts over which they do."""
Record = dict[str, Any]
KEYS = ("cv", "max_over_mean", "top10_share", "entropy")


def imbalance(traffic: Traffic) -> Record:
    """Return figures of each layer, and their medians and worst over layers.

    ``cv_floor`` is the coefficient of variation that chance alone would give uniform
    routing of as many tokens. A tenth of the experts is rounded up (``top10_experts``)
    and, as others do, down (``top10_share_down``).
    """
    totals = traffic.totals
    top = max(1, ceil(round(0.1 * traffic.experts, 9)))
    down = max(1, traffic.experts // 10)
    columns = {
        "cv": stats.variation(totals),
        "cv_floor": _floor(traffic),
        "max_over_mean": stats.max_over_mean(totals),
        "top10_share": stats.top_share(totals, top / traffic.experts),
        "top10_share_down": stats.top_share(totals, down / traffic.experts),
        "entropy": stats.normalised_entropy(totals),
        "dead": stats.dead_experts(totals),
        "hottest": totals.argmax(axis=1),
        "tokens": totals.sum(axis=1),
    }
    rows = [
        {"layer": name, **{key: column[at].item() for key, column in columns.items()}}
        for at, name in enumerate(traffic.layers)
    ]
    return {
        "layers": rows,
        "top10_experts": top,
        "top10_experts_down": down,
        "overall": _overall(columns, traffic.layers),
    }


def _overall(columns: dict[str, Any], names: tuple[str, ...]) -> Record:
    """Return medians over layers, and the worst layer in each definition."""
    found: Record = {}
    for key, column in columns.items():
        if key not in ("hottest", "tokens", "dead"):
            found[f"{key}_median"] = float(np.nanmedian(column))
    for key in KEYS:
        worst = np.nanargmin if key == "entropy" else np.nanargmax
        at = int(worst(columns[key]))
        found[f"{key}_worst"] = float(columns[key][at])
        found[f"{key}_worst_layer"] = names[at]
    cv, floor = columns["cv"], columns["cv_floor"]
    found["layers_mild"] = int((cv > MILD).sum())
    found["layers_severe"] = int((cv > SEVERE).sum())
    found["layers_by_chance"] = int((cv < 2 * floor).sum())
    found["layers_hot_share"] = int((columns["top10_share"] > HOT_SHARE).sum())
    found["dead"] = int(columns["dead"].sum())
    return found


def _floor(traffic: Traffic) -> Any:
    """Return ``(L,)``: what chance gives; as of single choices where k is not known."""
    choices, k = traffic.totals.sum(axis=1), traffic.top_k or 1
    k = k if k < traffic.experts else 1
    floors = [
        stats.variation_floor(max(1, round(n / k)), traffic.experts, k) for n in choices
    ]
    return np.where(choices > 0, floors, np.nan)
