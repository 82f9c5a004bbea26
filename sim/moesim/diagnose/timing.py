"""How traffic changes as it goes on: drift, bursts, reuse, and what neighbours share.

Axes: ``T`` sampled tokens, ``W`` windows, ``L`` MoE layers, ``E`` experts.
"""

from typing import Any

import numpy as np

from moesim.diagnose.traffic import Traffic
from moesim.routing import stats
from moesim.routing.source import count
from moesim.streams import stream
from moesim.types import Floats

SHUFFLES = 40
"""Random orders of the windows that drift is compared with."""
BURST_TOKENS = 64
"""Neighbouring tokens counted together to tell bursts."""
REUSE_TOKENS = 1 << 13
"""Tokens whose gaps between uses of an expert are told."""
HELD = (0.25, 0.5)
"""Shares of the experts that a cache might hold."""
Record = dict[str, Any]


def timing(traffic: Traffic, seed: int = 0, *, one_log: bool = True) -> Record:
    """Return drift from the windows; and from the tokens, where there are any, the rest.

    Two logs one after the other do not drift: they differ.
    """
    found: Record = {"drift": drift(traffic.windows, seed) if one_log else None}
    if traffic.ids is not None and len(traffic.ids) > 1:
        overlap = stats.next_token_overlap(traffic.ids, traffic.runs)
        alone = stats.independent_overlap(
            count(traffic.ids, traffic.experts), len(traffic.ids), traffic.top_k
        )
        found |= {
            "next_token_overlap": float(np.nanmean(overlap)),
            "next_token_overlap_layers": overlap.tolist(),
            "independent_overlap": float(np.nanmedian(alone)),
            "sequences_known": traffic.known_runs,
            "burst": burst(traffic),
            "reuse": reuse(traffic),
        }
    return found


def drift(windows: Floats, seed: int = 0) -> Record | None:
    """Return how far the second half of a log lies from the first.

    ``distance`` is half the sum of differences of the experts' shares (0: the same; 1:
    no expert in common), the median over layers; ``by_chance`` and ``by_chance_p95``
    are its mean and 95th percentile when the windows come in random order.
    ``hot_overlap`` is the share of the first quarter's top tenth that is in the last's.
    None with fewer than 8 windows.
    """
    count = len(windows)
    if count < 8:
        return None
    half, quarter = count // 2, count // 4
    rng = stream(seed, "diagnose drift")
    chance = np.array(
        [_halves(windows[rng.permutation(count)], half) for _ in range(SHUFFLES)]
    )
    start, end = (part.sum(axis=0) for part in (windows[:quarter], windows[-quarter:]))
    step = [
        float(np.nanmedian(_distance(windows[at], windows[at + 1])))
        for at in range(count - 1)
    ]
    return {
        "windows": count,
        "distance": _halves(windows, half),
        "by_chance": float(chance.mean()),
        "by_chance_p95": float(np.quantile(chance, 0.95)),
        "hot_overlap": _hot_overlap(start, end),
        "neighbours": step,
    }


def _halves(windows: Floats, half: int) -> float:
    first, second = windows[:half].sum(axis=0), windows[half:].sum(axis=0)
    return float(np.nanmedian(_distance(first, second)))


def _distance(one: Floats, other: Floats) -> Floats:
    """Return ``(L,)``: total variation of the shares of two ``(L, E)`` counts."""
    total = np.stack([one.sum(axis=1), other.sum(axis=1)])
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = one / total[0][:, None] - other / total[1][:, None]
    distance: Floats = np.abs(gap).sum(axis=1) / 2
    return distance


def _hot_overlap(one: Floats, other: Floats) -> float:
    top = max(1, -(-one.shape[1] // 10))
    a, b = (np.argsort(-part, axis=1, kind="stable")[:, :top] for part in (one, other))
    shared = (a[:, :, None] == b[:, None, :]).any(axis=2)
    return float(shared.mean())


def burst(traffic: Traffic) -> Record | None:
    """Return how much more an expert's tokens vary than independent tokens' would.

    ``dispersion`` is the variance over the binomial variance of the tokens an expert
    gets of `BURST_TOKENS` neighbours, averaged over experts by load; 1: no bursts.
    """
    assert traffic.ids is not None
    parts = len(traffic.ids) // BURST_TOKENS
    if parts < 8:
        return None
    total = square = np.zeros(traffic.totals.shape)
    for at in range(parts):
        some = traffic.ids[at * BURST_TOKENS : (at + 1) * BURST_TOKENS]
        counts = count(some, traffic.experts).astype(float)
        total, square = total + counts, square + counts * counts
    mean = total / parts
    variance = (square / parts - mean * mean) * parts / (parts - 1)
    chance = mean * (1 - mean / BURST_TOKENS)
    seen = chance > 0
    return {
        "tokens": BURST_TOKENS,
        "dispersion": float(variance[seen].sum() / chance[seen].sum()),
    }


def reuse(traffic: Traffic) -> Record:
    """Return after how many tokens an expert is used again: by use, over all layers.

    ``independent_p50`` is the median if tokens were independent; ``held`` the share of
    uses that the most popular share of each layer's experts serves.
    """
    assert traffic.ids is not None
    ids = traffic.ids[:REUSE_TOKENS]
    gaps = [_gaps(ids[:, layer], traffic.experts) for layer in range(ids.shape[1])]
    found = np.concatenate(gaps)
    rng = stream(0, "diagnose reuse")
    mixed = ids[rng.permutation(len(ids))]
    alone = np.concatenate(
        [_gaps(mixed[:, layer], traffic.experts) for layer in range(ids.shape[1])]
    )
    if not len(found):
        return {"p50": None, "p90": None, "independent_p50": None, "held": {}}
    hot = {
        str(share): float(np.nanmedian(stats.top_share(traffic.totals, share)))
        for share in HELD
    }
    return {
        "p50": float(np.quantile(found, 0.5)),
        "p90": float(np.quantile(found, 0.9)),
        "independent_p50": float(np.quantile(alone, 0.5)),
        "held": hot,
    }


def _gaps(ids: Any, experts: int) -> Any:
    """Return the tokens between two uses of one expert, of ``(T, k)`` ids."""
    time = np.repeat(np.arange(len(ids)), ids.shape[1])
    expert = ids.ravel()
    order = np.argsort(expert, kind="stable")
    same = np.diff(expert[order].astype(np.int64)) == 0
    return np.diff(time[order])[same]
