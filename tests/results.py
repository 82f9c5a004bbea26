"""Results made up for tests: skewed experts, heavy tails, and no simulation."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moesim.measure.result import Comparison, Result
from moesim.measure.tables import COLUMNS, Tables
from moesim.plot.figures import ComparisonPlots, Plots


@dataclass(frozen=True)
class Size:
    layers: int = 26
    experts: int = 64
    gpus: int = 16
    requests: int = 2000
    passes: int = 400
    gaps: int = 40_000


SMALL = Size(layers=3, experts=8, gpus=4, requests=40, passes=10, gaps=200)
PARTS = {
    "attention_s": 3.1,
    "experts_s": 5.2,
    "lm_head_s": 0.08,
    "queue_s": 2.4,
    "straggler_s": 4.9,
    "dispatch_s": 0.9,
    "combine_s": 1.4,
}


def frame(name, columns):
    """Return one of the tables with these columns, the others filled with zeros."""
    rows = max(len(np.atleast_1d(column)) for column in columns.values())
    filled = {
        column: pd.Series(columns.get(column, np.zeros(rows)), dtype=kind)
        for column, kind in COLUMNS[name].items()
    }
    return pd.DataFrame(filled)


def requests_table(rng, size, slower):
    count = size.requests
    arrival = np.cumsum(rng.exponential(0.08, count))
    queue = slower * rng.gamma(0.6, 120.0, count)
    ttft = queue + rng.lognormal(4.6, 0.5, count)
    outputs = rng.geometric(1 / 150, count)
    tpot = np.where(outputs > 1, slower * rng.lognormal(3.3, 0.35, count), np.nan)
    total = ttft + np.nan_to_num(tpot) * (outputs - 1)
    return frame(
        "requests",
        {
            "replication": np.zeros(count),
            "request_id": np.arange(count),
            "class": ["default"] * count,
            "status": ["finished"] * count,
            "arrival_s": arrival,
            "admitted_s": arrival + queue / 1e3,
            "first_token_s": arrival + ttft / 1e3,
            "finish_s": arrival + total / 1e3,
            "input_tokens": rng.integers(1, 4000, count),
            "output_tokens": outputs,
            "queue_ms": queue,
            "ttft_ms": ttft,
            "tpot_ms": tpot,
            "e2el_ms": total,
            "slo_ok": np.ones(count),
        },
    )


def experts_table(rng, size, slower):
    layers, experts = size.layers, size.experts
    popularity = rng.lognormal(0, 0.75, (layers, experts))
    popularity[layers // 8, experts // 4] *= 6
    popularity[rng.random((layers, experts)) < 0.004] = 0
    share = popularity / popularity.mean(axis=1, keepdims=True)
    tokens = rng.poisson(12_000 * share)
    jobs = np.minimum(tokens, size.passes)
    p99 = slower * 180 * share**1.4 * rng.lognormal(0, 0.3, share.shape)
    waits = {"p50": 0.08, "p90": 0.45, "p99": 1.0, "mean": 0.15, "max": 2.2}
    layer, expert = np.indices(share.shape)
    return frame(
        "experts",
        {
            "replication": np.zeros(share.size),
            "layer": layer.ravel(),
            "expert": expert.ravel(),
            "tokens": tokens.ravel(),
            "jobs": jobs.ravel(),
            "service_s": tokens.ravel() * 1e-6,
        }
        | {
            f"wait_{name}_us": np.where(jobs > 0, p99 * part, np.nan).ravel()
            for name, part in waits.items()
        },
    )


def passes_table(rng, size, slower):
    count = size.passes
    spread = rng.gamma(20, 1 / 20, count)
    parts = {name: ms * 1e-3 * spread for name, ms in PARTS.items()}
    parts["queue_s"] = parts["queue_s"] * slower
    return frame(
        "passes",
        {
            "pass_id": np.arange(count),
            "admitted_s": np.arange(count) * 0.02,
            "done_s": np.arange(count) * 0.02 + sum(parts.values()),
            "tokens": np.full(count, 900),
            **parts,
        },
    )


def gaps_table(rng, size, slower):
    return frame(
        "gaps",
        {
            "replication": np.zeros(size.gaps),
            "request_id": np.arange(size.gaps) % size.requests,
            "gap_ms": slower * rng.lognormal(3.2, 0.4, size.gaps),
        },
    )


def links_table(size):
    return frame(
        "links",
        {
            "gpu": np.arange(size.gpus),
            "port": ["nvlink"] * size.gpus,
            "direction": ["tx"] * size.gpus,
            "phase": ["dispatch"] * size.gpus,
        },
    )


def made_tables(rng, size, slower):
    node = np.arange(size.gpus) // (size.gpus // 2)
    return Tables(
        requests=requests_table(rng, size, slower),
        gaps=gaps_table(rng, size, slower),
        passes=passes_table(rng, size, slower),
        experts=experts_table(rng, size, slower),
        gpus=frame("gpus", {"gpu": np.arange(size.gpus), "node": node}),
        links=links_table(size),
    )


def make_result(seed=0, slower=1.0, size=Size(), figures=Plots):
    """Return a result with the skew of a real model, under a policy that is `slower`."""
    tables = made_tables(np.random.default_rng(seed), size, slower)
    load = tables.experts["tokens"].to_numpy()
    load = load.reshape(size.layers, size.gpus, -1).sum(axis=2)
    node = tables.gpus["node"].to_numpy()
    near = np.where(node[:, None] == node, 6e9, 2e9)
    sent = near * load.sum(axis=0) / load.sum(axis=0).mean()
    np.fill_diagonal(sent, 0)
    return Result(
        tables=tables,
        summaries=[
            {
                "completed": size.requests,
                "label": "made up",
                "p99_ttft_ms": 100.0 * slower,
                "request_rate": float("inf"),
                "slo": None,
            }
        ],
        manifest={"scenario": "made up", "date": "2026-11-29T10:44:55"},
        scenario_text="name: made up\n",
        traffic=np.stack([sent, 2 * sent.T])[None],
        rank_load=load[None],
        figures=figures,
    )


def empty_result():
    """Return a result of a run in which nothing happened."""
    return Result(
        tables=Tables.empty(),
        summaries=[{"completed": 0}],
        manifest={"scenario": "nothing"},
        scenario_text="name: nothing\n",
        traffic=np.zeros((1, 2, 4, 4)),
        rank_load=np.zeros((1, 3, 4), np.int64),
        figures=Plots,
    )


def row(policy, metric, baseline, difference, reach):
    """Return one row of a comparison, with the verdict that its interval gives."""
    low, high = difference - reach, difference + reach
    worse = low > 0 if metric.endswith("_ms") else high < 0
    sure = low > 0 or high < 0
    return {
        "policy": policy,
        "metric": metric,
        "baseline": baseline,
        "value": baseline + difference,
        "difference": difference,
        "relative": difference / baseline if baseline else None,
        "low": low,
        "high": high,
        "p_value": 0.01,
        "verdict": ("worse" if worse else "better") if sure else "no difference",
        "needed": 8,
    }


ROWS = [
    row("oldest", "p99_ttft_ms", 2311.0, -207.0, 49.0),
    row("per_layer", "p99_ttft_ms", 2311.0, -40.0, 90.0),
    row("cross_layer", "p99_ttft_ms", 2311.0, -418.0, 60.0),
    row("oldest", "mean_tpot_ms", 57.0, -1.8, 0.7),
    row("per_layer", "mean_tpot_ms", 57.0, -0.4, 0.6),
    row("cross_layer", "mean_tpot_ms", 57.0, 0.5, 0.8),
    row("oldest", "p99_tpot_ms", 96.3, -3.2, 1.1),
    row("per_layer", "p99_tpot_ms", 96.3, 4.1, 1.0),
    row("cross_layer", "p99_tpot_ms", 96.3, 0.8, 1.5),
    row("oldest", "request_throughput", 19.7, 1.2, 0.4),
    row("per_layer", "request_throughput", 19.7, 0.1, 0.3),
    row("cross_layer", "request_throughput", 19.7, 2.1, 0.45),
]


def make_comparison(size=Size(), figures=ComparisonPlots):
    slower = {"fifo": 1.0, "oldest": 0.9, "per_layer": 1.1, "cross_layer": 0.75}
    return Comparison(
        rows=ROWS,
        policies=list(slower),
        baseline="fifo",
        replications=8,
        results={name: make_result(0, factor, size) for name, factor in slower.items()},
        figures=figures,
    )
