"""Numbers that summarise one run, in vLLM's names where vLLM has one.

Definitions: TTFT is first token minus arrival, queueing included. TPOT is per request
``(e2el - ttft) / (output tokens - 1)``; requests of one token have none. ITL pools the
gaps between tokens of all finished requests. Goodput counts requests that meet all
limits. Numbers that do not exist (no request finished) are None.

The warm-up is left out in two ways. Latencies are of requests that arrive after it.
Rates count requests that finish after it, whole, over the time left: in a steady state
as many tokens of earlier requests come in at its end as go out at the end of the run.
Counts and totals are of the whole run.

Axes: ``N`` requests, ``L`` MoE layers, ``E`` experts, ``G`` GPUs.
"""

from collections.abc import Mapping
from math import ceil, isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.measure.tables import Tables
from moesim.types import Floats

if TYPE_CHECKING:
    from pandas import DataFrame

LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}
PERCENTILES = (50, 90, 95, 99)
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
Number = float | int | None


def summarise(tables: Tables, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one flat record of one replication.

    Parameters
    ----------
    tables : Tables
        The tables of that replication alone.
    facts : mapping
        ``num_gpus``, ``span_s``, ``warmup_s``, ``slo_ms`` (mapping), and everything else
        that the record should carry as it is. A ``max_concurrency`` of None becomes the
        most that were there at once.
    """
    span_s, warmup_s = float(facts["span_s"]), float(facts["warmup_s"])
    requests = tables.requests
    measured = requests[requests["arrival_s"] >= warmup_s]
    ended = requests[requests["finish_s"] >= warmup_s]
    finished = ended[ended["status"] == "finished"]
    window_s = max(span_s - warmup_s, 0.0)
    record = {key: value for key, value in facts.items() if key not in _INSIDE}
    record |= _counts(requests)
    record |= _throughput(finished, window_s, int(facts["num_gpus"]))
    record |= {"duration": span_s, "measured_window_s": window_s}
    record |= _latencies(measured, tables.gaps)
    record |= _peaks(requests, tables.gaps, span_s)
    record |= _goodness(measured, finished, facts["slo_ms"], window_s)
    record |= _experts(tables.experts)
    record |= _expert_waits(tables.experts)
    record |= _devices(tables)
    if not record.get("max_concurrency"):  # InferenceX and vLLM's plots divide by it
        record["max_concurrency"] = max(int(record["max_concurrent_requests"]), 1)
    return record


_INSIDE = {"span_s", "warmup_s", "slo_ms"}


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


def distribution(values: Floats, name: str) -> dict[str, Number]:
    """Return mean, median, std and percentiles of milliseconds; None for no values."""
    values = values[np.isfinite(values)]
    keys = ["mean", "median", "std", *(f"p{share}" for share in PERCENTILES)]
    if not len(values):
        return {f"{key}_{name}_ms": None for key in keys}
    spread = [values.mean(), np.median(values), values.std()]
    found = [*spread, *np.percentile(values, PERCENTILES)]
    return {f"{key}_{name}_ms": float(v) for key, v in zip(keys, found, strict=True)}


def _counts(requests: "DataFrame") -> dict[str, Number]:
    status = requests["status"]
    finished = requests[status == "finished"]
    return {
        "num_prompts": len(requests),
        "completed": len(finished),
        "rejected": int((status == "rejected").sum()),
        "failed": int((status == "unfinished").sum()),
        "total_input_tokens": int(finished["input_tokens"].sum()),
        "total_output_tokens": int(finished["output_tokens"].sum()),
        "preemptions": int(requests["preemptions"].sum()),
    }


def _throughput(finished: "DataFrame", window_s: float, gpus: int) -> dict[str, Number]:
    output = _per(int(finished["output_tokens"].sum()), window_s)
    intake = _per(int(finished["input_tokens"].sum()), window_s)
    total = None if output is None or intake is None else output + intake
    return {
        "request_throughput": _per(len(finished), window_s),
        "output_throughput": output,
        "total_token_throughput": total,
        "output_tput_per_gpu": _per(output, gpus),
        "input_tput_per_gpu": _per(intake, gpus),
        "tput_per_gpu": _per(total, gpus),
    }


def _per(amount: Number, what: float) -> Number:
    return None if amount is None or not what else amount / what


def _latencies(measured: "DataFrame", gaps: "DataFrame") -> dict[str, Number]:
    record: dict[str, Number] = {}
    for name, column in LATENCIES.items():
        record |= distribution(measured[column].to_numpy(float), name)
    finished = measured.loc[measured["status"] == "finished", "request_id"]
    mine = gaps["request_id"].isin(finished)
    record |= distribution(gaps.loc[mine, "gap_ms"].to_numpy(float), "itl")
    tpot = measured["tpot_ms"].to_numpy(float)
    slow = tpot[np.isfinite(tpot)]
    record["median_intvty"] = float(np.median(1e3 / slow)) if len(slow) else None
    queue = measured["queue_ms"].to_numpy(float)
    return record | distribution(queue, "queue") | {"max_queue_ms": _largest(queue)}


def _largest(values: Floats) -> Number:
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None


def _peaks(
    requests: "DataFrame", gaps: "DataFrame", span_s: float
) -> dict[str, Number]:
    """Return the most requests inside at once, and the most tokens made in a second.

    A request that leaves at the instant another comes makes room for it.
    """
    here = (requests["status"] != "rejected") & requests["arrival_s"].notna()
    inside = requests[here]
    times = np.concatenate([inside["arrival_s"], inside["finish_s"].fillna(span_s)])
    steps = np.repeat([1, -1], len(inside))
    order = np.lexsort((steps, times))
    most = int(steps[order].cumsum().max(initial=0))
    tokens = token_times(inside[inside["first_token_s"].notna()], gaps)
    busiest = np.bincount(tokens.astype(np.int64)).max(initial=0) if len(tokens) else 0
    return {"max_concurrent_requests": most, "max_output_tokens_per_s": int(busiest)}


def token_times(requests: "DataFrame", gaps: "DataFrame") -> Floats:
    """Return the seconds at which the tokens of these requests were made, any order."""
    first = requests.set_index("request_id")["first_token_s"]
    mine = gaps[gaps["request_id"].isin(first.index)]
    since = mine.groupby("request_id", sort=False)["gap_ms"].cumsum().to_numpy() / 1e3
    later = first.loc[mine["request_id"]].to_numpy() + since
    return np.concatenate([first.to_numpy(), later])


def _goodness(
    measured: "DataFrame",
    finished: "DataFrame",
    slo_ms: Mapping[str, float],
    window_s: float,
) -> dict[str, Any]:
    """Return goodput, and the share of all that arrived which met every limit.

    Whoever was rejected or did not finish has not met them.
    """
    if not slo_ms:
        return {"slo": None, "request_goodput": None, "slo_attainment": None}
    text = " ".join(f"{name}<={limit:g}" for name, limit in slo_ms.items())
    return {
        "slo": text,
        "request_goodput": _per(int(finished["slo_ok"].sum()), window_s),
        "slo_attainment": _per(int(measured["slo_ok"].sum()), len(measured)),
    }


def _experts(experts: "DataFrame") -> dict[str, Number]:
    """Return how uneven the experts' tokens are, over the whole run."""
    load = experts.pivot_table("tokens", "layer", "expert", fill_value=0).to_numpy(
        float
    )
    load = load[load.sum(axis=1) > 0]
    keys = ("expert_cv_median", "expert_cv_max", "top10pct_expert_share")
    if not len(load):
        return dict.fromkeys(keys)
    cv = load.std(axis=1) / load.mean(axis=1)
    top = ceil(load.shape[1] / 10)
    share = np.sort(load, axis=1)[:, -top:].sum(axis=1) / load.sum(axis=1)
    values = (np.median(cv), cv.max(), np.median(share))
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def _expert_waits(experts: "DataFrame") -> dict[str, Number]:
    """Return how long a job waited in its expert's queue: on average, and at worst.

    Percentiles of parts give no percentile of the whole, so there are none here.
    """
    seen = experts[experts["jobs"] > 0]
    waited = float((seen["wait_mean_us"] * seen["jobs"]).sum())
    return {
        "mean_expert_wait_us": _per(waited, int(seen["jobs"].sum())),
        "max_expert_wait_us": _largest(seen["wait_max_us"].to_numpy(float)),
    }


def _devices(tables: Tables) -> dict[str, Number]:
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
        "kv_peak_frac": _largest(
            (gpus["kv_peak_blocks"] / gpus["kv_blocks"]).to_numpy()
        ),
        "padding_frac": _per(
            int(gpus["padding_tokens"].sum()),
            int(gpus["padding_tokens"].sum() + gpus["tokens"].sum()),
        ),
        "passes": len(passes),
    }
