"""From recorded columns to tables: units, names, and nothing but arithmetic.

Axes: ``N`` requests, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``E`` experts,
``P`` phases, ``C`` port classes, ``D`` directions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.cost.pass_ import PHASES
from moesim.measure.columns import PARTS, STATUSES, Recorder
from moesim.measure.tables import Tables
from moesim.measure.waits import quantiles
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

PS_PER_S = 1e12
PS_PER_MS = 1e9
PS_PER_US = 1e6


def tabulate(
    recorder: Recorder, replication: int, slo_ms: Mapping[str, float], kv_blocks: int
) -> Tables:
    """Return the tables of one run.

    Parameters
    ----------
    recorder : Recorder
        What the run wrote down.
    replication : int
        Its number, the first column of every table.
    slo_ms : mapping
        Limits in milliseconds of any of ``ttft``, ``tpot``, ``e2el``.
    kv_blocks : int
        Blocks of a rank's KV pool.
    """
    return Tables(
        requests=_requests(recorder, replication, slo_ms),
        gaps=_gaps(recorder, replication),
        passes=_passes(recorder, replication),
        experts=_experts(recorder, replication),
        gpus=_gpus(recorder, replication, kv_blocks),
        links=_links(recorder, replication),
    )


def rank_load(recorder: Recorder) -> Ints:
    """Return ``(L, G)``: tokens that the experts of each GPU received."""
    return recorder.slot_tokens.sum(axis=1)


def _frame(replication: int, columns: Mapping[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(columns)
    frame.insert(0, "replication", replication)
    return frame


def _requests(
    recorder: Recorder, replication: int, slo_ms: Mapping[str, float]
) -> "pd.DataFrame":
    rows = recorder.requests
    names = np.array(rows.requests.class_names, dtype=object)
    status = np.array(STATUSES, dtype=object)[rows.status]
    finished = status == "finished"
    first, finish = _happened(rows.first), _happened(rows.finish)
    gaps = np.maximum(rows.generated - 1, 1)
    several = finished & (rows.generated > 1)
    latency = {
        "ttft": np.where(finished, (first - rows.arrival) / PS_PER_MS, np.nan),
        "tpot": np.where(several, (finish - first) / gaps / PS_PER_MS, np.nan),
        "e2el": np.where(finished, (finish - rows.arrival) / PS_PER_MS, np.nan),
    }
    return _frame(
        replication,
        {
            "request_id": np.arange(len(rows.requests)),
            "class": names[rows.requests.klass],
            "rank": rows.rank,
            "status": status,
            "arrival_s": _happened(rows.arrival) / PS_PER_S,
            "admitted_s": _happened(rows.admitted) / PS_PER_S,
            "first_token_s": first / PS_PER_S,
            "finish_s": finish / PS_PER_S,
            "input_tokens": rows.requests.input_tokens,
            "output_tokens": rows.generated,
            "queue_ms": (_happened(rows.admitted) - rows.arrival) / PS_PER_MS,
            "ttft_ms": latency["ttft"],
            "tpot_ms": latency["tpot"],
            "e2el_ms": latency["e2el"],
            "preemptions": rows.preemptions,
            "slo_ok": _meets(latency, finished, slo_ms),
        },
    )


def _happened(times: Ints) -> Floats:
    return np.where(times >= 0, times, np.nan)


def _meets(
    latency: Mapping[str, Floats], finished: Any, slo_ms: Mapping[str, float]
) -> Any:
    """Return which requests finished within every limit; one token has a TPOT of 0."""
    good = finished.copy()
    for metric, limit in slo_ms.items():
        good &= np.nan_to_num(latency[metric], nan=0.0) <= limit
    return good


def _gaps(recorder: Recorder, replication: int) -> "pd.DataFrame":
    rows = recorder.requests
    owner = np.array(rows.gap_owner, np.int64)
    gap_ms = np.array(rows.gap, np.int64) / PS_PER_MS
    return _frame(replication, {"request_id": owner, "gap_ms": gap_ms})


def _passes(recorder: Recorder, replication: int) -> "pd.DataFrame":
    head = ["pass_id", "admitted", "done", "requests", "tokens", "padding"]
    table = np.array(recorder.passes, np.int64).reshape(-1, len(head) + len(PARTS))
    number, admitted, done, requests, tokens, padding, *parts = table.T
    gpus = recorder.parts.shape[1]
    return _frame(
        replication,
        {
            "pass_id": number,
            "admitted_s": admitted / PS_PER_S,
            "done_s": done / PS_PER_S,
            "requests": requests,
            "tokens": tokens,
            "padding_tokens": padding,
        }
        | {
            f"{part}_s": spent / PS_PER_S / gpus
            for part, spent in zip(PARTS, parts, strict=True)
        },
    )


def _experts(recorder: Recorder, replication: int) -> "pd.DataFrame":
    """Sum the slots of each expert: replicas count as one expert."""
    layers, slots, gpus = recorder.slot_tokens.shape
    phy2log = recorder.system.placement.phy2log
    experts = int(phy2log.max()) + 1
    cell = (np.arange(layers)[:, None] * experts + phy2log).ravel()
    order = (layers, slots, gpus)

    def by_expert(values: Ints) -> Ints:
        total = np.zeros(layers * experts, np.int64)
        np.add.at(total, cell, _gpu_major(values, order))
        return total

    waits = recorder.waits
    histogram = np.zeros((layers * experts, waits.histogram.shape[1]), np.int64)
    count, total = waits.count, np.zeros(layers * experts, np.int64)
    np.add.at(histogram, cell, waits.histogram)
    np.add.at(total, cell, waits.total)
    maximum = np.zeros(layers * experts, np.int64)
    np.maximum.at(maximum, cell, waits.maximum)
    jobs = np.zeros(layers * experts, np.int64)
    np.add.at(jobs, cell, count)
    p50, p90, p99 = quantiles(histogram, maximum, np.array([0.5, 0.9, 0.99])).T
    seen = jobs > 0
    mean = np.divide(total, jobs, out=np.full(len(jobs), np.nan), where=seen)
    return _frame(
        replication,
        {
            "layer": np.repeat(np.arange(layers), experts),
            "expert": np.tile(np.arange(experts), layers),
            "tokens": by_expert(recorder.slot_tokens),
            "jobs": jobs,
            "service_s": by_expert(recorder.slot_service) / PS_PER_S,
            "wait_mean_us": mean / PS_PER_US,
            "wait_p50_us": p50 / PS_PER_US,
            "wait_p90_us": p90 / PS_PER_US,
            "wait_p99_us": p99 / PS_PER_US,
            "wait_max_us": np.where(seen, maximum, np.nan) / PS_PER_US,
        },
    )


def _gpu_major(values: Ints, order: tuple[int, int, int]) -> Ints:
    return values.reshape(order).transpose(0, 2, 1).ravel()


def _gpus(recorder: Recorder, replication: int, kv_blocks: int) -> "pd.DataFrame":
    topology, width = recorder.system.topology, recorder.system.tensor_parallel
    part = dict(zip(PARTS, recorder.parts, strict=True))
    compute = part["attention"] + part["experts"] + part["lm_head"]
    return _frame(
        replication,
        {
            "gpu": np.arange(topology.gpus),
            "node": topology.node,
            "span_s": recorder.span / PS_PER_S,
            "busy_s": compute / PS_PER_S,
            "useful_s": recorder.useful / PS_PER_S,
            "attention_s": part["attention"] / PS_PER_S,
            "experts_s": part["experts"] / PS_PER_S,
            "lm_head_s": part["lm_head"] / PS_PER_S,
            "straggler_s": part["straggler"] / PS_PER_S,
            "transfer_s": (part["dispatch"] + part["combine"]) / PS_PER_S,
            "tokens": recorder.source_tokens,
            "padding_tokens": recorder.source_padding,
            "expert_tokens": recorder.slot_tokens.sum(axis=(0, 1)),
            "kv_peak_blocks": np.repeat(recorder.kv_peak, width),
            "kv_blocks": kv_blocks,
        },
    )


def _links(recorder: Recorder, replication: int) -> "pd.DataFrame":
    directions = ("tx", "rx")
    shape = recorder.bytes.shape
    direction, phase, port, gpu = (axis.ravel() for axis in np.indices(shape))
    return _frame(
        replication,
        {
            "gpu": gpu,
            "port": np.array(PORT_CLASSES, dtype=object)[port],
            "direction": np.array(directions, dtype=object)[direction],
            "phase": np.array(PHASES, dtype=object)[phase],
            "bytes": recorder.bytes.ravel(),
            "busy_s": recorder.port_busy.ravel() / PS_PER_S,
        },
    )
