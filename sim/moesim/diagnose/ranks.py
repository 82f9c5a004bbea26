"""How unevenly GPUs are loaded when neighbouring experts share one, by EP size.

Axes: ``B`` batches, ``L`` MoE layers, ``E`` experts, ``R`` ranks (GPUs).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesim.diagnose.traffic import Traffic
from moesim.measure.balance import Balance
from moesim.routing import stats
from moesim.routing.source import count
from moesim.streams import stream
from moesim.types import Floats

BATCHES = 60
SIZES = (64, 256, 1024)
PASS = 256
"""Tokens of the batches by which balancedness is told."""
LARGEST = 1 << 27
"""Bytes of the counts of all batches of one size, at most."""
Record = dict[str, Any]
Batches = dict[int, Floats]


def draw_batches(traffic: Traffic, seed: int = 0) -> Batches:
    """Return ``(B, L, E)`` counts of batches of random tokens of the log, by size.

    Batches mix the whole log, as a server mixes the requests it has. Sizes that the
    log does not have are left out.
    """
    if traffic.ids is None:
        return {}
    layers, experts = traffic.totals.shape
    most = min(BATCHES, LARGEST // (8 * layers * experts))
    found: Batches = {}
    for size in SIZES:
        if size > len(traffic.ids) or most < 1:
            continue
        rng = stream(seed, "diagnose batches", size)
        chosen = [
            np.sort(rng.choice(len(traffic.ids), size, replace=False))
            for _ in range(most)
        ]
        counts = [count(traffic.ids[rows], experts) for rows in chosen]
        found[size] = np.array(counts, np.float64)
    return found


def ranks(traffic: Traffic, batches: Batches, sizes: Sequence[int]) -> Record:
    """Return figures of the ranks for each EP size, neighbouring experts together."""
    return {str(size): _of_size(traffic, batches, size) for size in sizes}


def _of_size(traffic: Traffic, batches: Batches, size: int) -> Record:
    whole = stats.rank_counts(traffic.totals, size)
    ratio = stats.max_over_mean(whole)
    by_batch = {
        str(tokens): float(
            np.nanmedian(stats.max_over_mean(stats.rank_counts(counts, size)))
        )
        for tokens, counts in batches.items()
    }
    passes = batches.get(PASS, traffic.windows)
    worst = int(np.nanargmax(ratio))
    hottest = whole.argmax(axis=1)
    often = np.bincount(hottest, minlength=size)
    return {
        "max_over_mean": ratio.tolist(),
        "max_over_mean_median": float(np.nanmedian(ratio)),
        "max_over_mean_worst": float(ratio[worst]),
        "worst_layer": traffic.layers[worst],
        "worst_layer_load": whole[worst].tolist(),
        "by_batch": by_batch,
        "whole_log": _balanced(whole[None]),
        "passes": _balanced(stats.rank_counts(passes, size))
        | {"count": len(passes), "tokens": PASS if PASS in batches else None},
        "hot_rank": int(often.argmax()),
        "hot_rank_layers": int(often.max()),
        "mean_load": (whole / whole.mean(axis=1, keepdims=True).clip(1e-300)).tolist(),
    }


def _balanced(passes: Floats) -> Record:
    """Return balancedness of ``(B, L, R)`` passes, as two engines compute it."""
    balance = Balance()
    for one in passes:
        balance.add(one)
    return {
        "vllm": balance.vllm,
        "sglang": balance.sglang,
        "imbalance": balance.imbalance,
    }
