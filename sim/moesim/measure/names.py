"""Names of all that a record measures, and what has to be there for each to have a value.

The names are written down, so that one that is misspelt is told before anything is run;
a test holds them against the records of real runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

STATISTICS: Final = ("mean", "median", "std", "p50", "p90", "p95", "p99")
"""What there is of each latency."""


def _of(latency: str) -> Iterator[str]:
    yield from (f"{statistic}_{latency}_ms" for statistic in STATISTICS)


ALWAYS: Final = (
    *("nodes", "num_gpus", "tensor_parallel_size", "data_parallel_size"),
    *("expert_parallel_size", "burstiness", "max_concurrency"),
    *("balancedness_vllm", "balancedness_sglang", "rank_imbalance"),
    *("mem_peak_frac", "binding_frac"),
    *("num_prompts", "completed", "rejected", "failed", "preemptions"),
    *("total_input_tokens", "total_output_tokens"),
    *("request_throughput", "output_throughput", "total_token_throughput"),
    *("output_tput_per_gpu", "input_tput_per_gpu", "tput_per_gpu"),
    *("duration", "measured_window_s", "passes"),
    *(*_of("ttft"), *_of("e2el"), *_of("queue"), "max_queue_ms"),
    *("itl_percentile_error_frac", "max_concurrent_requests"),
    "max_output_tokens_per_s",
    *("expert_cv_median", "expert_cv_max", "top10pct_expert_share"),
    "top10pct_by_chance",
    *("dropped_frac", "rerouted_frac"),
    *("mean_expert_wait_us", "max_expert_wait_us"),
    *("attention_frac", "experts_frac", "lm_head_frac", "queue_frac"),
    *("straggler_frac", "straggler_wait_frac"),
    *("dispatch_frac", "combine_frac", "a2a_frac"),
    *("gpu_busy_frac", "gpu_useful_frac", "kv_peak_frac", "padding_frac"),
)
"""Numbers of every record. Some have no value where nothing was served."""
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "outputs of two tokens or more": (*_of("tpot"), *_of("itl"), "median_intvty"),
    "limits in slo": ("request_goodput", "slo_attainment"),
    "arrivals at a rate": ("request_rate",),
    "serving.coupling: lockstep": ("stages", "stage_imbalance"),
    "kernels.shared_experts: fused or waterfill": (
        *("shared_away_frac", "balancedness_with_shared"),
    ),
    "experts that move (placement.rebalance)": (
        *("rebalances", "moved_slots", "moved_experts", "moved_bytes"),
        *("rebalance_stall_s", "rebalance_s"),
        *("balancedness_unmoved", "balancedness_moved"),
    ),
    "a section residency": (
        *("resident_experts", "expert_hit_rate", "expert_misses", "experts_on_cpu"),
        *("swapped_in_experts", "swapped_in_bytes", "expert_evictions"),
        *("prefetched_experts", "prefetch_useful_frac", "prefetch_late_frac"),
        "prefetch_wasted_frac",
        *("pcie_busy_frac", "nvme_read_bytes", "nvme_busy_frac", "cpu_busy_frac"),
        "load_stall_frac",
    ),
    "a section memory": (
        *("kv_used_frac_mean", "kv_internal_frag_mean", "kv_external_frag_mean"),
        *("kv_used_frac_at_peak", "kv_internal_frag_at_peak"),
        "kv_external_frag_at_peak",
        *("mem_waits", "mem_wait_s", "swaps", "swapped_bytes", "swap_wait_s"),
        *("host_peak_bytes", "ooms"),
    ),
}
"""Numbers that a record has only where something else is there: what that is."""
METRICS: Final = (*ALWAYS, *(name for names in NEEDS.values() for name in names))
"""Every number that runs can be compared by."""
WORDS: Final = ("binding", "oom", "rejection")
"""What a record measures in words."""


def metric_of(name: str, known: Sequence[str] = METRICS) -> str | None:
    """Return the metric that a name means, with ``_ms`` or without; None if none.

    >>> metric_of("p99_ttft"), metric_of("duration"), metric_of("p99_tft")
    ('p99_ttft_ms', 'duration', None)
    """
    return next((key for key in (name, f"{name}_ms") if key in known), None)


def needs_of(metric: str) -> str:
    """Return what has to be there for a metric to have a value; empty for none.

    >>> needs_of("stages"), needs_of("mean_ttft_ms")
    ('serving.coupling: lockstep', '')
    """
    return next((need for need, names in NEEDS.items() if metric in names), "")
