"""What the screen of a run says of memory."""

from collections.abc import Mapping
from typing import Any

from moesim.units import format_binary_bytes, format_seconds

Record = Mapping[str, Any]
Rows = list[tuple[str, str, str]]
"""Labels, values and notes."""


def memory_rows(record: Record) -> Rows:
    """Return the lines of memory; runs of old have none.

    >>> memory_rows({"mem_peak_frac": 0.9})
    [('Memory peak of the fullest GPU', '90.0 %', '')]
    """
    peak = record.get("mem_peak_frac")
    if peak is None:
        return []
    full = "more than there is: see memory.over_capacity" if peak > 1 else ""
    rows = [("Memory peak of the fullest GPU", _percent(peak), full)]
    used = record.get("kv_used_frac_mean")
    if used is not None:
        lost = [record[f"kv_{kind}_frag_mean"] for kind in ("internal", "external")]
        note = f"(lost inside {_percent(lost[0])}, between {_percent(lost[1])})"
        rows.append(("KV memory that holds tokens, mean", _percent(used), note))
    if record.get("swaps"):
        moved = format_binary_bytes(record["swapped_bytes"])
        waited = format_seconds(record["swap_wait_s"])
        note = f"({moved} moved, passes waited {waited})"
        rows.append(("Preemptions by swapping", f"{record['swaps']:g}", note))
    if record.get("mem_waits"):
        waited = format_seconds(record["mem_wait_s"])
        note = f"(in all {waited})"
        rows.append(
            ("Micro-batches that waited for memory", f"{record['mem_waits']:g}", note)
        )
    return rows


def residency_rows(record: Record) -> Rows:
    """Return the lines of experts that do not all fit; none where all are there."""
    if record.get("expert_hit_rate") is None:
        return []
    moved = format_binary_bytes(record["swapped_in_bytes"])
    busy = f"(PCIe ports busy {_percent(record['pcie_busy_frac'])})"
    rows = [
        (
            "Experts that were there when needed",
            _percent(record["expert_hit_rate"]),
            "",
        ),
        ("Experts loaded", f"{record['swapped_in_experts']:g}, {moved}", busy),
        ("Queueing that waits for experts", _percent(record["load_stall_frac"]), ""),
    ]
    if record["experts_on_cpu"]:
        busy = f"(processors busy {_percent(record['cpu_busy_frac'])})"
        rows.append(
            ("Experts computed by hosts", f"{record['experts_on_cpu']:g}", busy)
        )
    if record["prefetched_experts"]:
        kinds = ("useful", "late", "wasted")
        used, late, wasted = (record[f"prefetch_{kind}_frac"] for kind in kinds)
        note = f"(there in time {_percent(used)}, late {_percent(late)}, "
        note += f"left unused {_percent(wasted)})"
        rows.append(("Loaded on a guess", f"{record['prefetched_experts']:g}", note))
    return rows


def failed_rows(record: Record) -> Rows:
    """Return the line of requests that an instance took with it, if it did.

    >>> failed_rows({"failed": 3}), failed_rows({"failed": 0})
    ([('Failed requests', '3', '')], [])
    """
    count = record.get("failed")
    return [("Failed requests", f"{count:g}", "")] if count else []


def failures(record: Record) -> list[str]:
    """Return the sentence that says that an instance ran out of memory, if one did.

    >>> failures({"oom": None, "ooms": 0})
    []
    """
    text = record.get("oom")
    if not text:
        return []
    share = record["ooms"]
    runs = (
        "The instance" if share == 1 else f"In {_percent(share)} of runs the instance"
    )
    return [f"{runs} stopped serving: {text}."]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
