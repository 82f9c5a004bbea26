"""What is shown of results: pure functions of numbers, in vLLM's labels and order."""

import pytest

from moesim.cli.screens import (
    PARTS,
    compare_screen,
    finding,
    heading,
    run_screen,
    saved,
    suggestion,
    verdict,
)

SHARES = dict.fromkeys((f"{part}_frac" for part in PARTS), 0.1)
LATENCIES = {
    f"{statistic}_{name}_ms": value
    for name, value in (
        ("ttft", 612.4),
        ("tpot", 57.5),
        ("itl", 57.4),
        ("e2el", 30104.0),
    )
    for statistic in ("mean", "p50", "p90", "p95", "p99")
}
RECORD = {
    "label": "hotspot",
    "model_id": "deepseek-v3",
    "num_gpus": 32,
    "gpu": "h800",
    "nodes": 4,
    "expert_parallel_size": 32,
    "data_parallel_size": 32,
    "policy": "fifo",
    "completed": 4985,
    "rejected": 15,
    "duration": 208.0,
    "total_input_tokens": 100,
    "total_output_tokens": 50,
    "request_throughput": 23.94,
    "request_goodput": 19.7,
    "slo": "ttft<=2000 tpot<=80",
    "output_throughput": 12241.7,
    "total_token_throughput": 20000.0,
    "tput_per_gpu": 625.0,
    "balancedness_vllm": 0.61,
    "top10pct_expert_share": 0.341,
    "gpu_busy_frac": 0.94,
    "gpu_useful_frac": 0.58,
    "kv_peak_frac": 0.83,
    "preemptions": 0,
    **LATENCIES,
    **SHARES,
}


def row(screen, label):
    (line,) = [line for line in screen.splitlines() if line.startswith(label)]
    return line


def difference(metric, policy, said, *, value=-10.0, reach=2.0, needed=None):
    return {
        "metric": metric,
        "policy": policy,
        "baseline": 100.0,
        "value": 100.0 + value,
        "difference": value,
        "low": value - reach,
        "high": value + reach,
        "verdict": said,
        "needed": needed,
    }


def test_the_heading_says_what_was_simulated():
    assert heading(RECORD, 0, 1) == (
        "hotspot · deepseek-v3 · 32x h800 (4 nodes) · EP32 DP32 · policy fifo · seed 0"
    )
    assert heading(RECORD | {"nodes": 1}, 3, 5).endswith("5 replications from seed 3")
    assert "(1 node)" in heading(RECORD | {"nodes": 1}, 3, 5)


def test_labels_are_those_of_vllm_in_its_order():
    """Who knows `vllm bench serve` finds every number where it was."""
    screen = run_screen(RECORD, {}, 0, 1)
    labels = [
        "Successful requests:",
        "Total input tokens:",
        "Total generated tokens:",
        "Request throughput (req/s):",
        "Request goodput (req/s):",
        "Output token throughput (tok/s):",
        "Total token throughput (tok/s):",
        "TTFT (ms)",
        "TPOT (ms)",
        "ITL  (ms)",
        "E2EL (ms)",
    ]
    places = [screen.index(label) for label in labels]

    assert places == sorted(places)
    assert row(screen, "Successful requests:").split()[-1] == "4985"
    assert row(screen, "TTFT (ms)").split()[2:7] == ["612.4"] * 5


def test_goodput_is_shown_only_against_limits():
    assert "(ttft<=2000 tpot<=80 ms)" in run_screen(RECORD, {}, 0, 1)
    assert "goodput" not in run_screen(RECORD | {"slo": ""}, {}, 0, 1)


def test_one_replication_claims_no_interval():
    once = run_screen(RECORD, {}, 0, 1)
    often = run_screen(RECORD, {"p99_ttft_ms": (600.0, 625.5)}, 0, 5)

    assert "one replication has no interval" in once
    assert row(often, "TTFT (ms)").endswith("[600.0, 625.5]")
    assert row(often, "TPOT (ms)").endswith("-")
    assert "no interval" not in often


def test_what_was_not_measured_is_a_dash():
    """One-token requests have no time per output token."""
    screen = run_screen(RECORD | {"p99_tpot_ms": None}, {}, 0, 1)

    assert row(screen, "TPOT (ms)").split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(("share", "said"), [(0.31, True), (0.3, False), (None, False)])
def test_uneven_experts_are_pointed_out(share, said):
    screen = run_screen(RECORD | {"top10pct_expert_share": share}, {}, 0, 1)

    assert ("imbalanced" in screen) == said


@pytest.mark.parametrize(
    ("share", "chance", "said"),
    [(0.41, 0.12, True), (0.41, 0.38, False), (0.7, 0.38, True), (0.29, 0.1, False)],
)
def test_chance_alone_is_not_called_imbalance(share, chance, said):
    """A few tokens are uneven however they are routed."""
    given = {"top10pct_expert_share": share, "top10pct_by_chance": chance}
    line = row(run_screen(RECORD | given, {}, 0, 1), "Top 10 % of experts'")

    assert ("imbalanced" in line) == said
    assert f"({100 * chance:.1f} % by chance)" in line


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("straggler", "the slowest rank"),
        ("dispatch", "dispatching"),
        ("queue", "queues"),
    ],
)
def test_the_last_line_names_the_largest_part(part, words):
    said = finding(RECORD | {f"{part}_frac": 0.4})

    assert said.startswith("Where the time goes: 40.0 %")
    assert words in said


def test_a_run_without_a_pass_has_no_finding():
    assert finding(dict.fromkeys(SHARES)) == "No pass was run."


def test_the_next_command_can_be_pasted():
    assert suggestion("my file.yaml", "mine:Class", ["fifo"]) == (
        "Try: moesim compare 'my file.yaml' --policies mine:Class,fifo"
    )


def test_a_comparison_shows_relative_differences_with_their_reach():
    rows = [
        difference("p99_ttft_ms", "oldest", "better"),
        difference("request_goodput", "oldest", "no diff.", value=1.0, needed=14),
    ]
    table = {
        "baseline": "fifo",
        "policies": ["fifo", "oldest"],
        "replications": 8,
        "rows": rows,
    }
    screen = compare_screen(table, "hotspot")

    assert screen.startswith("hotspot · 2 policies x 8 paired runs · baseline fifo")
    assert "-10.00 % ± 2.00" in row(screen, "p99_ttft (ms)")
    assert row(screen, "p99_ttft (ms)").endswith("better")
    assert "the paired interval, 95 %" in screen


def test_more_runs_are_asked_for_only_where_they_help():
    table = {"baseline": "fifo", "policies": ["fifo", "oldest"], "replications": 8}
    wide = difference("duration", "oldest", "no diff.", reach=3.0, needed=14)
    narrow = difference("duration", "oldest", "no diff.", reach=1.0, needed=14)

    assert "14 runs" in compare_screen(table | {"rows": [wide]}, "x")
    assert "14 runs" not in compare_screen(table | {"rows": [narrow]}, "x")


def test_a_verdict_says_better_and_worse_or_nothing():
    rows = [
        difference("p99_ttft_ms", "oldest", "better"),
        difference("duration", "oldest", "worse"),
        difference("duration", "per_layer", "no diff."),
    ]

    said = verdict("oldest", rows, "fifo")

    assert said == "oldest against fifo: better in p99_ttft_ms; worse in duration."
    assert verdict("per_layer", rows, "fifo").startswith("per_layer: no difference")


def test_nothing_saved_says_nothing():
    assert saved(None, "x") == ""


def test_the_busiest_resource_has_a_line_where_it_is_known():
    """Runs that were saved before it was recorded have none."""
    known = {**RECORD, "binding": "expert weights", "binding_frac": 0.507}

    line = row(run_screen(known, {}, 0, 1), "Busiest resource")
    assert line.endswith("expert weights   (50.7 % of the time)")
    assert "Busiest" not in run_screen(RECORD, {}, 0, 1)
    assert "Busiest" not in run_screen({**known, "binding": None}, {}, 0, 1)


OFFLOADED = {
    "expert_hit_rate": 0.6,
    "swapped_in_experts": 3,
    "swapped_in_bytes": 3 * 2**30,
    "pcie_busy_frac": 0.5,
    "load_stall_frac": 0.35,
    "experts_on_cpu": 0,
    "prefetched_experts": 0,
}


def test_waiting_for_experts_is_told_from_waiting_for_others():
    record = RECORD | OFFLOADED | {"queue_frac": 0.4, "experts_frac": 0.2}

    screen = run_screen(record, {}, 0, 1)

    assert "Experts that were there when needed:     60.0 %" in screen
    assert "3, 3 GiB   (PCIe ports busy 50.0 %)" in screen
    assert "35.0 % of a pass is waiting for experts to be loaded" in screen
    assert "hosts" not in screen
    assert "guess" not in screen
    more = {"experts_on_cpu": 2, "cpu_busy_frac": 0.1, "prefetched_experts": 5}
    more |= {"prefetch_useful_frac": 0.6, "prefetch_late_frac": 0.3}
    more |= {"prefetch_wasted_frac": 0.1}
    screen = run_screen(record | more, {}, 0, 1)
    assert "2   (processors busy 10.0 %)" in screen
    assert "5   (there in time 60.0 %, late 30.0 %, left unused 10.0 %)" in screen
