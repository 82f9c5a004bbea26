"""What layers know of each other, and whether their hot ranks make up for each other.

Axes: ``T`` sampled tokens, ``L`` MoE layers, ``E`` experts, ``R`` ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesim.diagnose.traffic import Traffic
from moesim.routing import stats
from moesim.streams import stream
from moesim.types import Bools, Floats, Ids

GAPS = (1, 2, 4, 8)
FOLD = 64
"""Neighbouring tokens that are learnt from, or tested on, together."""
ORDERS = 1000
"""Random orders of the ranks that complementarity is compared with."""
LARGEST = 1 << 12
"""Experts of a layer for which a table of pairs is made."""
Record = dict[str, Any]


def across(traffic: Traffic, sizes: Sequence[int], seed: int = 0) -> Record:
    """Return complementarity for each EP size; with tokens, information and prediction."""
    found: Record = {
        "complementarity": {
            str(size): complementarity(stats.rank_counts(traffic.totals, size), seed)
            for size in sizes
        }
    }
    if traffic.first is not None and traffic.experts <= LARGEST:
        found["first_choice"] = "weight" if traffic.known_first else "slot"
        found["information"] = information(traffic.first, traffic.experts, seed)
        found["prediction"] = prediction(traffic)
    return found


def information(first: Ids, experts: int, seed: int = 0) -> list[Record]:
    """Return, by gap, the bits a first choice tells of the one so many layers on.

    ``bits`` is the plug-in estimate, which chance inflates; ``shuffled`` is what it
    gives when one of the layers has its tokens in random order, so that there is nothing
    to know; ``corrected`` is the difference. Means over pairs of layers.
    """
    layers = first.shape[1]
    order = stream(seed, "diagnose information").permutation(len(first))
    found = []
    for gap in (gap for gap in GAPS if gap < layers):
        bits = stats.mutual_information(first, gap, experts).mean()
        mixed = first.copy()
        other = np.arange(layers) // gap % 2 == 1  # one of each pair of layers
        mixed[:, other] = first[order][:, other]
        noise = stats.mutual_information(mixed, gap, experts).mean()
        found.append(
            {
                "gap": gap,
                "bits": float(bits),
                "shuffled": float(noise),
                "corrected": float(bits - noise),
                "pairs": layers - gap,
            }
        )
    return found


def prediction(traffic: Traffic) -> Record | None:
    """Return how often the next layer's first choice is the likeliest, given this one's.

    Learnt from every other group of neighbours and tested on the rest. ``blind`` names
    the most popular expert whatever the token. ``recall`` is the share of all ``k``
    experts of the next layer among the ``k`` most often seen after this first choice;
    ``blind_recall`` among the ``k`` most popular.
    """
    assert traffic.first is not None
    assert traffic.ids is not None
    if len(traffic.first) < 2 * FOLD or traffic.first.shape[1] < 2:
        return None
    learn = _folds(traffic)
    if learn.all() or not learn.any():
        return None
    rows = [
        _one_step(traffic, layer, learn) for layer in range(len(traffic.layers) - 1)
    ]
    names = ("top1", "blind", "recall", "blind_recall")
    means = np.mean(rows, axis=0)
    return dict(zip(names, means.tolist(), strict=True)) | {
        "by_layer": [row[0] for row in rows]
    }


def _folds(traffic: Traffic) -> Bools:
    """Return the tokens to learn from: every other sequence, or every other group."""
    sequence = np.cumsum(traffic.starts) - 1
    if traffic.known_runs and sequence[-1] >= 7:
        return sequence % 2 == 0
    return np.arange(len(sequence)) // FOLD % 2 == 0


def _one_step(traffic: Traffic, layer: int, learn: Bools) -> list[float]:
    assert traffic.first is not None
    assert traffic.ids is not None
    experts, k = traffic.experts, traffic.top_k
    here, there = traffic.first[:, layer].astype(np.int64), traffic.ids[:, layer + 1]
    wanted = traffic.first[:, layer + 1]
    test = ~learn
    seen = np.bincount(
        here[learn] * experts + wanted[learn], minlength=experts * experts
    ).reshape(experts, experts)
    keys = (here[learn][:, None] * experts + there[learn]).ravel()
    sets = np.bincount(keys, minlength=experts * experts).reshape(experts, experts)
    # Where a choice was never seen, the popular ones are named.
    some = seen + seen.sum(axis=0) / (1 + seen.sum())
    sets = sets + sets.sum(axis=0) / (1 + sets.sum())
    guess, blind = some.argmax(axis=1), int(seen.sum(axis=0).argmax())
    best = np.argsort(-sets, axis=1, kind="stable")[:, :k]
    popular = np.argsort(-sets.sum(axis=0), kind="stable")[:k]
    hits = (there[test][:, :, None] == best[here[test]][:, None, :]).any(axis=2)
    return [
        float((guess[here[test]] == wanted[test]).mean()),
        float((wanted[test] == blind).mean()),
        float(hits.mean()),
        float(np.isin(there[test], popular).mean()),
    ]


def complementarity(load: Floats, seed: int = 0) -> Record:
    """Return whether ranks that are hot in one layer are cold in others.

    ``summed`` is max over mean of the ranks' tokens summed over layers. Layers that know
    nothing of each other would average it out, too: ``independent`` is its mean when the
    ranks of each layer are renamed at random, with the 1st and 99th percentiles. Only
    below those are layers complementary.

    Parameters
    ----------
    load : (L, R) array
        Tokens of each rank in each layer.
    """
    used = load[load.sum(axis=1) > 0]
    share = used / used.mean(axis=1, keepdims=True)
    rng = stream(seed, "diagnose complementarity", load.shape[1])
    chance = np.array(
        [rng.permuted(share, axis=1).mean(axis=0).max() for _ in range(ORDERS)]
    )
    low, high = np.quantile(chance, [0.01, 0.99])
    summed = float(share.mean(axis=0).max())
    if summed < low:
        verdict = "complementary"
    else:
        verdict = "aligned" if summed > high else "independent"
    return {
        "by_layer_median": float(np.median(share.max(axis=1))),
        "summed": summed,
        "independent": float(chance.mean()),
        "independent_p1": float(low),
        "independent_p99": float(high),
        "correlation": _neighbour_correlation(share),
        "negative_pairs": _negative_pairs(share),
        "verdict": verdict,
    }


def _neighbour_correlation(share: Floats) -> float | None:
    """Return the mean correlation of the loads of neighbouring layers."""
    centred = share - 1
    size = np.sqrt((centred * centred).sum(axis=1))
    both = size[:-1] * size[1:]
    inner = (centred[:-1] * centred[1:]).sum(axis=1)
    return (
        float((inner[both > 0] / both[both > 0]).mean()) if (both > 0).any() else None
    )


def _negative_pairs(share: Floats) -> float | None:
    """Return the share of pairs of layers whose loads correlate negatively."""
    upper = np.triu_indices(len(share), 1)
    products = (share - 1) @ (share - 1).T
    return float((products[upper] < 0).mean()) if len(upper[0]) else None
