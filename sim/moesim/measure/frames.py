"""From recorded columns to tables: units, names, and nothing but arithmetic.

Axes: ``N`` requests, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``E`` experts,
``P`` phases, ``C`` port classes, ``D`` directions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.cost.pass_ import PHASES
from moesim.measure.columns import PARTS, Recorder
from moesim.measure.memory import MemoryLog, Reserved
from moesim.measure.moves import cells_of, told
from moesim.measure.shared import routed_cells
from moesim.measure.waits import pooled_quantiles
from moesim.spec.topology import PORT_CLASSES
from moesim.types import Ints

if TYPE_CHECKING:
    import pandas as pd

PS_PER_S = 1e12
PS_PER_US = 1e6


def frame(replication: int, columns: Mapping[str, Any]) -> "pd.DataFrame":
    """Return a frame of these columns behind the number of the replication."""
    import pandas as pd

    table = pd.DataFrame(columns)
    table.insert(0, "replication", replication)
    return table


def passes(recorder: Recorder, replication: int) -> "pd.DataFrame":
    """Return one row per forward pass; seconds are means over GPUs."""
    rows = recorder.pass_rows.T
    number, admitted, done, requests, tokens, padding, *parts = rows
    gpus = recorder.parts.shape[1]
    return frame(
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


def experts(recorder: Recorder, replication: int) -> "pd.DataFrame":
    """Return one row per layer and expert: replicas count as one expert."""
    layers, experts = recorder.system.placement.replicas.shape
    cell, tokens, service = _by_expert(recorder)
    waits, size = recorder.waits, layers * experts
    if recorder.system.fuses:
        waits = waits.only(routed_cells(recorder.system))
    count, total = waits.count, np.zeros(size, np.int64)
    np.add.at(total, cell, waits.total)
    maximum = np.zeros(size, np.int64)
    np.maximum.at(maximum, cell, waits.maximum)
    jobs = np.zeros(size, np.int64)
    np.add.at(jobs, cell, count)
    shares = np.array([0.5, 0.9, 0.99])
    p50, p90, p99 = pooled_quantiles(waits, cell, size, shares).T
    seen = jobs > 0
    mean = np.divide(total, jobs, out=np.full(len(jobs), np.nan), where=seen)
    return frame(
        replication,
        {
            "layer": np.repeat(np.arange(layers), experts),
            "expert": np.tile(np.arange(experts), layers),
            "tokens": tokens,
            "dropped": recorder.dropped.ravel(),
            "rerouted": recorder.rerouted.ravel(),
            "jobs": jobs,
            "service_s": service / PS_PER_S,
            "wait_mean_us": mean / PS_PER_US,
            "wait_p50_us": p50 / PS_PER_US,
            "wait_p90_us": p90 / PS_PER_US,
            "wait_p99_us": p99 / PS_PER_US,
            "wait_max_us": np.where(seen, maximum, np.nan) / PS_PER_US,
        },
    )


def _by_expert(recorder: Recorder) -> tuple[Ints, Ints, Ints]:
    """Return the expert of each cell of waits, and experts' tokens and service.

    Experts are numbered layer by layer.
    """
    moves = recorder.moves
    if moves is not None and moves.moved:
        return np.arange(len(moves.tokens)), moves.tokens, moves.service
    cell = cells_of(recorder.system.placement)
    count = recorder.system.placement.replicas.size
    tokens, service = recorder.slot_tokens, recorder.slot_service
    return cell, told(tokens, cell, count), told(service, cell, count)


def gpus(recorder: Recorder, replication: int, kv_blocks: int) -> "pd.DataFrame":
    """Return one row per GPU; `kv_blocks` are those of a rank's pool."""
    topology, width = recorder.system.topology, recorder.system.tensor_parallel
    part = dict(zip(PARTS, recorder.parts, strict=True))
    compute = part["attention"] + part["experts"] + part["lm_head"]
    compute = compute + recorder.hidden
    return frame(
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
            **memory_log(recorder).columns(),
        },
    )


def memory_log(recorder: Recorder) -> MemoryLog:
    """Return what was written down of memory; nothing, where no instance served."""
    nothing = Reserved(0, 0, 0, 0, 0)
    return recorder.memory or MemoryLog(nothing, recorder.system.topology.gpus)


def links(recorder: Recorder, replication: int) -> "pd.DataFrame":
    """Return one row per port, direction and phase; ``weights`` if experts moved."""
    directions = ("tx", "rx")
    carried, busy = recorder.bytes, recorder.port_busy
    phases: tuple[str, ...] = PHASES
    moves = recorder.moves
    if moves is not None and moves.moved:
        carried = np.concatenate([carried, moves.bytes[:, None]], axis=1)
        busy = np.concatenate([busy, moves.busy[:, None]], axis=1)
        phases = (*PHASES, "weights")
    shape = carried.shape
    direction, phase, port, gpu = (axis.ravel() for axis in np.indices(shape))
    return frame(
        replication,
        {
            "gpu": gpu,
            "port": np.array(PORT_CLASSES, dtype=object)[port],
            "direction": np.array(directions, dtype=object)[direction],
            "phase": np.array(phases, dtype=object)[phase],
            "bytes": carried.ravel(),
            "busy_s": busy.ravel() / PS_PER_S,
        },
    )


def expert_load(experts: "pd.DataFrame") -> Ints:
    """Return ``(R, L, E)``: tokens of each expert, of the table of experts."""
    axes = ["replication", "layer", "expert"]
    index = tuple(experts[axis].to_numpy() for axis in axes)
    shape = [int(column.max(initial=-1)) + 1 for column in index]
    load = np.zeros(shape, np.int64)
    load[index] = experts["tokens"].to_numpy()
    return load
