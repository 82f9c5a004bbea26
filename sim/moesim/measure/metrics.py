"""Numbers that summarise one run, in vLLM's names where vLLM has one.

Definitions: TTFT is first token minus arrival, queueing included. TPOT is per request
``(e2el - ttft) / (output tokens - 1)``; requests of one token have none. ITL pools the
gaps between tokens of all finished requests; beyond half a million its percentiles come
from a histogram, and ``itl_percentile_error_frac`` says by what share they may be off.
Goodput counts requests that meet all limits. Numbers that do not exist (no request
finished) are None.

The warm-up is left out in two ways. Latencies are of requests that arrive after it.
Rates count requests that finish after it, whole, over the time left: in a steady state
as many tokens of earlier requests come in at its end as go out at the end of the run.
Counts and totals are of the whole run.

Axes: ``N`` requests, ``L`` MoE layers, ``E`` experts, ``G`` GPUs.
"""

from collections.abc import Mapping
from math import ceil, isfinite, sqrt
from numbers import Real
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.measure.gaps import Gaps
from moesim.measure.latencies import (
    Number,
    Watched,
    itl,
    itl_binned,
    largest,
    latencies,
    peaks,
)
from moesim.measure.tables import TableSet

if TYPE_CHECKING:
    from pandas import DataFrame

EXCHANGES = ("dispatch_s", "combine_s")
PARTS = (
    "attention_s",
    "experts_s",
    "lm_head_s",
    "queue_s",
    "straggler_s",
    "dispatch_s",
    "combine_s",
)


def summarise(tables: TableSet, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one flat record of one replication.

    Parameters
    ----------
    tables : TableSet
        The tables of that replication alone.
    facts : mapping
        ``num_gpus``, ``span_s``, ``warmup_s``, ``slo_ms`` (mapping), and everything else
        that the record should carry as it is. A ``max_concurrency`` of None becomes the
        most that were there at once. With ``gaps`` (`Gaps`) given, percentiles of ITL
        come from its histogram where the table of gaps was too long to keep.
    """
    span_s, warmup_s = float(facts["span_s"]), float(facts["warmup_s"])
    watched = Watched.since(tables, warmup_s)
    window_s = max(span_s - warmup_s, 0.0)
    gaps: Gaps | None = facts.get("gaps")
    record = {key: value for key, value in facts.items() if key not in _INSIDE}
    record |= _counts(watched)
    record |= _throughput(watched, window_s, int(facts["num_gpus"]))
    record |= {"duration": span_s, "measured_window_s": window_s}
    record |= latencies(watched)
    if gaps is None or gaps.kept:
        record |= itl(watched)
    else:
        record |= itl_binned(gaps, warmup_s)
    record |= peaks(watched, gaps, span_s)
    record |= _goodness(watched, facts["slo_ms"], window_s)
    record |= _experts(tables.experts)
    record |= _overflow(tables.experts)
    record |= _expert_waits(tables.experts)
    record |= _devices(tables)
    if not record.get("max_concurrency"):  # InferenceX and vLLM's plots divide by it
        record["max_concurrency"] = max(int(record["max_concurrent_requests"]), 1)
    return record


_INSIDE = {"span_s", "warmup_s", "slo_ms", "gaps"}


def published(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record fit for the readers of vLLM's result files.

    InferenceX (``utils/process_result.py``) turns every key that ends in ``ms`` into a
    float and divides by every one with ``tpot`` in it: keys without such a number are
    left out.

    Examples
    --------
    >>> published({"mean_tpot_ms": 5.0, "std_tpot_ms": 0.0, "p99_itl_ms": None, "x": None})
    {'mean_tpot_ms': 5.0, 'x': None}
    """
    return {key: value for key, value in record.items() if _is_readable(key, value)}


def _is_readable(key: str, value: object) -> bool:
    if not key.endswith("ms") and "tpot" not in key:
        return True
    number = isinstance(value, Real) and isfinite(value)
    return number and ("tpot" not in key or value > 0)  # type: ignore[operator]


def _counts(watched: Watched) -> dict[str, Number]:
    finished = watched.finished
    rejected = int((watched.column("status") == "rejected").sum())
    completed = int(finished.sum())
    return {
        "num_prompts": len(finished),
        "completed": completed,
        "rejected": rejected,
        "failed": len(finished) - completed - rejected,
        "total_input_tokens": watched.total("input_tokens", finished),
        "total_output_tokens": watched.total("output_tokens", finished),
        "preemptions": int(watched.column("preemptions").sum()),
    }


def _throughput(watched: Watched, window_s: float, gpus: int) -> dict[str, Number]:
    counted = watched.finished & watched.late
    output = _per(watched.total("output_tokens", counted), window_s)
    intake = _per(watched.total("input_tokens", counted), window_s)
    total = None if output is None or intake is None else output + intake
    return {
        "request_throughput": _per(int(counted.sum()), window_s),
        "output_throughput": output,
        "total_token_throughput": total,
        "output_tput_per_gpu": _per(output, gpus),
        "input_tput_per_gpu": _per(intake, gpus),
        "tput_per_gpu": _per(total, gpus),
    }


def _per(amount: Number, what: float) -> Number:
    return None if amount is None or not what else amount / what


def _goodness(
    watched: Watched, slo_ms: Mapping[str, float], window_s: float
) -> dict[str, Any]:
    """Return goodput, and the share of all that arrived which met every limit.

    Whoever was rejected or did not finish has not met them.
    """
    if not slo_ms:
        return {"slo": None, "request_goodput": None, "slo_attainment": None}
    text = " ".join(f"{name}<={limit:g}" for name, limit in slo_ms.items())
    good = watched.column("slo_ok").astype(bool)
    counted = int((good & watched.finished & watched.late).sum())
    met, arrived = int((good & watched.measured).sum()), int(watched.measured.sum())
    return {
        "slo": text,
        "request_goodput": _per(counted, window_s),
        "slo_attainment": _per(met, arrived),
    }


def _experts(experts: "DataFrame") -> dict[str, Number]:
    """Return how uneven the experts' tokens are, over the whole run."""
    load = experts.pivot_table("tokens", "layer", "expert", fill_value=0).to_numpy(
        float
    )
    load = load[load.sum(axis=1) > 0]
    keys = ("expert_cv_median", "expert_cv_max", "top10pct_expert_share")
    if not len(load):
        return dict.fromkeys((*keys, "top10pct_by_chance"))
    cv = load.std(axis=1) / load.mean(axis=1)
    top = ceil(load.shape[1] / 10)
    share = np.sort(load, axis=1)[:, -top:].sum(axis=1) / load.sum(axis=1)
    values = (np.median(cv), cv.max(), np.median(share))
    chance = top_by_chance(float(np.median(load.sum(axis=1))), load.shape[1], top)
    record: dict[str, Number] = dict(zip(keys, map(float, values), strict=True))
    return record | {"top10pct_by_chance": chance}


def top_by_chance(choices: float, experts: int, top: int) -> float:
    """Return the share of choices that the busiest experts get where all are alike.

    Counts are taken for normal and independent: by up to 0.05 wrong for few choices.

    >>> round(top_by_chance(320, 32, 4), 3), round(top_by_chance(3.2e6, 32, 4), 3)
    (0.189, 0.126)
    """
    part = top / experts
    if part >= 1:
        return 1.0
    normal = NormalDist()
    above = normal.pdf(normal.inv_cdf(1 - part)) / part
    return min(1.0, part * (1 + above * sqrt((experts - 1) / choices)))


def _overflow(experts: "DataFrame") -> dict[str, Number]:
    """Return what share of choices experts had no room for, by what became of them.

    Tokens of padding that load experts count as served.
    """
    served, dropped, rerouted = (
        int(experts[name].sum()) for name in ("tokens", "dropped", "rerouted")
    )
    wanted = served + dropped
    return {
        "dropped_frac": _per(dropped, wanted),
        "rerouted_frac": _per(rerouted, wanted),
    }


def _expert_waits(experts: "DataFrame") -> dict[str, Number]:
    """Return how long a job waited in its expert's queue: on average, and at worst.

    Percentiles of parts give no percentile of the whole, so there are none here.
    """
    seen = experts[experts["jobs"] > 0]
    waited = float((seen["wait_mean_us"] * seen["jobs"]).sum())
    return {
        "mean_expert_wait_us": _per(waited, int(seen["jobs"].sum())),
        "max_expert_wait_us": largest(seen["wait_max_us"].to_numpy(float)),
    }


def _devices(tables: TableSet) -> dict[str, Number]:
    """Return where the time of GPUs and passes went, as shares."""
    gpus, passes = tables.gpus, tables.passes
    span = float(gpus["span_s"].sum())
    parts = passes[list(PARTS)].sum()
    total = float(parts.sum())
    record = {
        f"{name.removesuffix('_s')}_frac": _per(float(parts[name]), total)
        for name in PARTS
    }
    moving = float(parts[list(EXCHANGES)].sum())
    return record | {
        "straggler_wait_frac": record["straggler_frac"],
        "a2a_frac": _per(moving, total),
        "gpu_busy_frac": _per(float(gpus["busy_s"].sum()), span),
        "gpu_useful_frac": _per(float(gpus["useful_s"].sum()), span),
        "kv_peak_frac": largest(
            (gpus["kv_peak_blocks"] / gpus["kv_blocks"]).to_numpy()
        ),
        "padding_frac": _per(
            int(gpus["padding_tokens"].sum()),
            int(gpus["padding_tokens"].sum() + gpus["tokens"].sum()),
        ),
        "passes": len(passes),
    }
