"""What the command line shows of results: pure functions from numbers to text."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any

from moesim.cli.advice import percent, uneven, why_rejected
from moesim.cli.memory_lines import (
    failed_rows,
    failures,
    memory_rows,
    residency_rows,
)

WIDTH, LABEL = 78, 40
LATENCIES = (
    ("TTFT (ms)", "ttft"),
    ("TPOT (ms)", "tpot"),
    ("ITL  (ms)", "itl"),
    ("E2EL (ms)", "e2el"),
)
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
PARTS = ("attention", "experts", "lm_head", "queue", "straggler", "dispatch", "combine")
NAMES = {"lm_head": "LM head", "straggler": "straggler wait", "queue": "queueing"}
Record = Mapping[str, Any]


def number(value: Any, places: int = 1) -> str:
    """Return a number for a table, or a dash where there is none.

    >>> number(1234.5678), number(None), number(3)
    ('1234.6', '-', '3')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if value and abs(value) < 10 ** (1 - places):
        return f"{value:.3g}"
    return f"{value:.{places}f}"


def banner(title: str = "", fill: str = "=") -> str:
    """Return a line with a title in the middle."""
    return (f" {title} " if title else "").center(WIDTH, fill)


def row(label: str, value: str, note: str = "") -> str:
    """Return one ``label: value`` line, the value at a fixed column."""
    return f"{label + ':':<{LABEL}} {value}{'   ' + note if note else ''}".rstrip()


def heading(record: Record, seed: int, replications: int) -> str:
    """Return the line that says what was simulated."""
    runs = f"{replications} replications from seed {seed}"
    once = f"seed {seed}"
    return " · ".join(
        [
            str(record["label"]),
            str(record["model_id"]),
            f"{record['num_gpus']}x {record['gpu']} ({nodes(record['nodes'])})",
            f"EP{record['expert_parallel_size']} DP{record['data_parallel_size']}",
            f"policy {record['policy']}",
            once if replications == 1 else runs,
        ]
    )


def nodes(count: int) -> str:
    """Return how many nodes there are.

    >>> nodes(1), nodes(4)
    ('1 node', '4 nodes')
    """
    return "1 node" if count == 1 else f"{count} nodes"


def run_screen(record: Record, ci95: Record, seed: int, replications: int) -> str:
    """Return the screen of a finished run: vLLM's labels and order, then ours."""
    lines = [
        heading(record, seed, replications),
        "",
        banner("Serving Simulation Result"),
    ]
    lines += _counts(record)
    lines += _latencies(record, ci95)
    lines += [banner("Experts and devices", "-"), *_devices(record)]
    lines += [*outputs(record), *failures(record), banner()]
    return "\n".join([*lines, finding(record)])


def _counts(record: Record) -> list[str]:
    lines = [
        row("Successful requests", number(record["completed"])),
        row("Rejected requests", number(record["rejected"]), why_rejected(record)),
        *(row(*line) for line in failed_rows(record)),
        row("Simulated duration (s)", number(record["duration"], 2)),
        row("Total input tokens", number(record["total_input_tokens"])),
        row("Total generated tokens", number(record["total_output_tokens"])),
        row("Request throughput (req/s)", number(record["request_throughput"], 2)),
    ]
    if record["slo"]:
        good = number(record["request_goodput"], 2)
        lines.append(row("Request goodput (req/s)", good, f"({record['slo']} ms)"))
    lines += [
        row("Output token throughput (tok/s)", number(record["output_throughput"])),
        row("Total token throughput (tok/s)", number(record["total_token_throughput"])),
        row("  per GPU (tok/s/gpu)", number(record["tput_per_gpu"])),
    ]
    return lines


def _latencies(record: Record, ci95: Record) -> list[str]:
    head = "".join(f"{name:>10}" for name in STATISTICS)
    lines = [f"{'':<12}{head}   95 % interval of p99"]
    for label, key in LATENCIES:
        cells = "".join(
            f"{number(record.get(f'{s}_{key}_ms')):>10}" for s in STATISTICS
        )
        lines.append(f"{label:<12}{cells}   {interval(ci95.get(f'p99_{key}_ms'))}")
    if not ci95:
        lines.append("(one replication has no interval: use --replications 5 or more)")
    return lines


def interval(ends: Sequence[float] | None) -> str:
    """Return an interval's ends, or a dash when there is none.

    >>> interval((1.0, 2.5)), interval(None)
    ('[1.0, 2.5]', '-')
    """
    if ends is None or not all(isfinite(end) for end in ends):
        return "-"
    return f"[{number(float(ends[0]))}, {number(float(ends[1]))}]"


def _devices(record: Record) -> list[str]:
    share = record["top10pct_expert_share"]
    hot = uneven(share, record.get("top10pct_by_chance"))
    busy, useful = record["gpu_busy_frac"], record["gpu_useful_frac"]
    parts = ", ".join(
        f"{NAMES.get(part, part)} {percent(record[f'{part}_frac'])}" for part in PARTS
    )
    return [
        row("Balancedness of ranks (mean/max)", number(record["balancedness_vllm"], 2)),
        row("Top 10 % of experts' share of tokens", percent(share), hot),
        row("GPU busy / doing useful work", f"{percent(busy)} / {percent(useful)}"),
        *_binding(record),
        row("KV cache peak", percent(record["kv_peak_frac"])),
        row("Preemptions", number(record["preemptions"])),
        *(row(*line) for line in (*memory_rows(record), *residency_rows(record))),
        "Time of a pass:",
        f"  {parts}",
    ]


def _binding(record: Record) -> list[str]:
    """Return the line of the resource that was busiest; runs of old have none."""
    name = record.get("binding")
    share = f"({percent(record.get('binding_frac'))} of the time)"
    return [row("Busiest resource", name, share)] if name else []


def outputs(record: Record) -> list[str]:
    """Return what the policy does to what models answer; nothing if it does nothing."""
    if record.get("model_outputs") != "changed":
        return []
    dropped, rerouted = (
        percent(record[f"{name}_frac"]) for name in ("dropped", "rerouted")
    )
    return [
        row("Choices dropped / rerouted", f"{dropped} / {rerouted}"),
        f"Policy {record['policy']} changes what the model answers: not the same service.",
    ]


def finding(record: Record) -> str:
    """Return one sentence: where most of the time of a pass goes, if any passed."""
    shares = {part: record[f"{part}_frac"] or 0.0 for part in PARTS}
    shares["load"] = record.get("load_stall_frac") or 0.0
    shares["queue"] -= shares["load"]
    most = max(shares, key=lambda part: shares[part])
    meaning = {
        "attention": "computing attention",
        "experts": "computing experts",
        "lm_head": "the LM head",
        "queue": "waiting in GPU queues for other micro-batches",
        "load": "waiting for experts to be loaded",
        "straggler": "waiting for the slowest rank",
        "dispatch": "dispatching tokens to experts",
        "combine": "combining experts' results",
    }
    if not shares[most]:
        return "No pass was run."
    return f"Where the time goes: {percent(shares[most])} of a pass is {meaning[most]}."


ORDERS = ("fifo", "oldest", "per_layer", "cross_layer")
"""Orders of service that answer most: what is there, and what looks how far ahead."""


def suggestion(scenario: str, policy: str, known: Sequence[str]) -> str:
    """Return the command that tells whether another policy would be better.

    >>> suggestion("a.yaml", "oldest", ["fifo", "oldest"])
    'Try: moesim compare a.yaml --policies oldest,fifo'
    """
    others = [name for name in known if name != policy]
    return f"Try: moesim compare {quote(scenario)} --policies {','.join([policy, *others])}"


def compare_screen(comparison: Mapping[str, Any], name: str) -> str:
    """Return the screen of a comparison: differences, intervals, verdicts."""
    rows: Sequence[Record] = comparison["rows"]
    policies = [p for p in comparison["policies"] if p != comparison["baseline"]]
    count = comparison["replications"]
    head = (
        f"{name} · {len(policies) + 1} policies x {count} paired runs · "
        f"baseline {comparison['baseline']}"
    )
    width = max([18, *(len(policy) for policy in policies)])
    lines = [head, "", _titles(comparison["baseline"])]
    for metric in dict.fromkeys(item["metric"] for item in rows):
        mine = (item for item in rows if item["metric"] == metric)
        lines += [_difference(item, width) for item in mine]
    lines += [
        "",
        *(verdict(policy, rows, comparison["baseline"]) for policy in policies),
    ]
    if comparison.get("empty"):
        lines.append(
            f"Without a value in these runs: {', '.join(comparison['empty'])}."
        )
    changing = [
        name
        for name, record in comparison.get("summaries", {}).items()
        if record.get("model_outputs") == "changed"
    ]
    if changing:
        lines.append(f"Changes what the model answers: {', '.join(changing)}.")
    lines += [
        "Values are means over runs; ± is the half width of the paired interval, 95 %,",
        "Holm-corrected over all rows. Narrowing it to ±2 % would need that many runs.",
    ]
    return "\n".join(lines)


def _titles(baseline: str) -> str:
    return f"{'metric':<20}{baseline:>12}  {'policy':<18}{'value':>12}   difference"


def _difference(item: Record, width: int) -> str:
    base = abs(item["baseline"]) or 1.0
    reach = (item["high"] - item["low"]) / 2 / base
    relative = f"{100 * item['difference'] / base:+.2f} % ± {100 * reach:.2f}"
    label = item["metric"].removesuffix("_ms") + (
        " (ms)" if item["metric"].endswith("_ms") else ""
    )
    needed = item.get("needed")
    more = f"  (±2 %: {needed} runs)" if needed and reach > 0.02 else ""
    return (
        f"{label:<20}{number(item['baseline'], 2):>12}  {item['policy']:<{width}}"
        f"{number(item['value'], 2):>12}   {relative:<18} {item['verdict']}{more}"
    )


def verdict(policy: str, rows: Sequence[Record], baseline: str) -> str:
    """Return one sentence on a policy: what is certainly better and worse."""
    mine = [item for item in rows if item["policy"] == policy]
    said = []
    for word in ("better", "worse"):
        metrics = [item["metric"] for item in mine if item["verdict"] == word]
        if metrics:
            said.append(f"{word} in {', '.join(metrics)}")
    if not any(item["difference"] or item["low"] or item["high"] for item in mine):
        return f"{policy}: the same figures as {baseline} in every run."
    if not said:
        return f"{policy}: no difference from {baseline} that these runs can show."
    return f"{policy} against {baseline}: {'; '.join(said)}."


def saved(where: Path | None, files: str) -> str:
    """Return where results lie, or nothing."""
    return f"Saved: {where}/   ({files})" if where else ""
