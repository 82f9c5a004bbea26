"""What ``moesim diagnose`` shows: pure functions from its record to text."""

from math import isnan
from pathlib import Path
from textwrap import wrap
from typing import Any

from moesim.cli.advice import percent
from moesim.cli.diagnose_lines import bounds_lines, findings_lines, printable_lines
from moesim.cli.screens import WIDTH, banner, row
from moesim.units import format_bytes

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 8
"""Layers in the table: the most uneven."""
Record = dict[str, Any]


def diagnosis_screen(record: Record, where: Path | None = None) -> str:
    """Return the screen of a diagnosis: figures, bounds, and the findings last."""
    lines = [*wrap(heading(record["log"]), WIDTH), ""]
    lines += [banner("Experts"), *_experts(record["imbalance"])]
    lines += [banner("GPUs, neighbouring experts together", "-"), *_ranks(record)]
    if record["classes"] is not None:
        lines += [banner("The two logs", "-"), *_classes(record["classes"])]
    lines += [banner("Over time", "-"), *_time(record["time"])]
    lines += [banner("Across layers", "-"), *_across(record["across_layers"])]
    if record["traffic"] is not None:
        lines += [banner("Dispatch between GPUs", "-"), *_traffic(record["traffic"])]
    lines += [
        banner("What could be gained at most", "-"),
        *bounds_lines(record["bounds"]),
    ]
    lines += [banner("Findings"), *findings_lines(record["findings"])]
    if where is not None:
        files = "findings.json, report.html, plots/"
        lines.append(f"Saved: {where}/   ({files})")
    return printable_lines(lines)


def heading(log: Record) -> str:
    """Return the line that says what was read."""
    tokens = log["tokens"]
    size = (
        f"{tokens} tokens" if tokens else f"{log['choices']:.0f} choices (counts only)"
    )
    top = f", top {log['top_k']}" if log["top_k"] else ""
    parts = [
        log["name"],
        log["format"],
        size,
        f"{len(log['layers'])} layers x {log['experts']} experts{top}",
    ]
    sample = log["sampled_tokens"]
    if sample and sample != tokens:
        parts.append(f"{sample} tokens looked at singly")
    return " · ".join(parts)


def _experts(found: Record) -> list[str]:
    over, few, down = (
        found[k] for k in ("overall", "top10_experts", "top10_experts_down")
    )
    layers = len(found["layers"])
    up = f"Top 10 %, rounded up to {few}"
    lines = [
        f"{'':<34}{'median':>9}{'worst':>9}   layer",
        _pair("Coefficient of variation", over, "cv"),
        f"  {'of uniform routing, by chance':<32}{over['cv_floor_median']:>9.3f}",
        _pair("Busiest expert over mean", over, "max_over_mean"),
        _pair(up, over, "top10_share"),
        f"  {f'rounded down to {down}':<32}{over['top10_share_down_median']:>9.3f}",
        _pair("Normalised entropy", over, "entropy"),
        f"Layers over 0.3 (mild) / 0.5 (severe): {over['layers_mild']} / "
        f"{over['layers_severe']} of {layers}; as even as chance: "
        f"{over['layers_by_chance']}",
        f"Layers whose top 10 % take over 30 %: {over['layers_hot_share']} of {layers}; "
        f"experts without a token: {over['dead']}",
        "",
        f"{'layer':<10}{'CV':>7}{'chance':>8}{'max/mean':>10}{'top 10 %':>10}"
        f"{'entropy':>9}{'dead':>6}   hottest",
    ]
    worst = sorted(found["layers"], key=lambda r: -_number(r["cv"]))[:SHOWN]
    lines += [_layer(item) for item in worst]
    if layers > SHOWN:
        lines.append(f"({SHOWN} of {layers} layers, the most uneven; --json has all)")
    return lines


def _number(value: float) -> float:
    return -1.0 if isnan(value) else value


def _pair(label: str, over: Record, key: str) -> str:
    middle, worst = over[f"{key}_median"], over[f"{key}_worst"]
    return f"{label:<34}{middle:>9.3f}{worst:>9.3f}   {over[f'{key}_worst_layer']}"


def _layer(item: Record) -> str:
    return (
        f"{item['layer']:<10}{item['cv']:>7.2f}{item['cv_floor']:>8.3f}"
        f"{item['max_over_mean']:>10.2f}{item['top10_share']:>10.3f}"
        f"{item['entropy']:>9.3f}{item['dead']:>6}   {item['hottest']}"
    )


def _ranks(record: Record) -> list[str]:
    some = next(iter(record["ranks"].values()))
    sizes = list(some["by_batch"])
    titles = "".join(f"{f'at {size}':>9}" for size in sizes)
    lines = [
        f"{'max/mean':<10}{'whole log':>10}{'worst':>8}{titles}{'vLLM':>9}{'SGLang':>9}"
    ]
    for size, item in record["ranks"].items():
        cells = "".join(f"{item['by_batch'][key]:>9.2f}" for key in sizes)
        passes = item["passes"]
        lines.append(
            f"{f'EP{size}':<10}{item['max_over_mean_median']:>10.2f}"
            f"{item['max_over_mean_worst']:>8.2f}{cells}{_two(passes['vllm']):>9}"
            f"{_two(passes['sglang']):>9}"
        )
    tokens = some["passes"]["tokens"]
    what = f"batches of {tokens} tokens" if tokens else "the log's steps"
    lines.append(f"vLLM, SGLang: their balancedness (1: even), of {what}.")
    size, item = max(record["ranks"].items(), key=lambda pair: int(pair[0]))
    lines += [
        f"EP{size}, layer {item['worst_layer']}: {bars(item['worst_layer_load'])}"
        f"  max/mean {item['max_over_mean_worst']:.2f}",
        f"GPU {item['hot_rank']} is the hottest in {item['hot_rank_layers']} of "
        f"{len(item['max_over_mean'])} layers.",
    ]
    return lines


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def bars(load: list[float]) -> str:
    """Return a load as bars, the largest full; of more than 64 only the first.

    >>> bars([0.0, 1.0, 2.0])
    '▁▅█'
    """
    most = max(load) or 1.0
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in load[:64])


def _classes(found: Record) -> list[str]:
    return [
        row("Cosine of their popularity", _two(found["cosine"])),
        row("  of a log's own halves, at least", _two(found["halves"])),
        row("Tokens that go elsewhere", percent(found["distance"])),
        row("Hot experts (top 10 %) in common", percent(found["hot_overlap"])),
    ]


def _time(found: Record) -> list[str]:
    lines, drift = [], found["drift"]
    if drift is None:
        lines.append("Drift: not told (two logs, or too few steps).")
    else:
        lines += [
            row("Drift, first half to second", f"{drift['distance']:.3f}"),
            row(
                "  windows in random order",
                f"{drift['by_chance']:.3f}",
                f"(95 %: {drift['by_chance_p95']:.3f})",
            ),
            row("Hot set kept, first to last quarter", percent(drift["hot_overlap"])),
        ]
    if "next_token_overlap" not in found:
        return [*lines, "Counts only: nothing about single tokens."]
    known = "" if found["sequences_known"] else "(ends of sequences unknown)"
    burst, again = found["burst"], found["reuse"]
    shared = f"{found['next_token_overlap']:.3f}"
    lines += [
        row("Experts shared with the next token", shared, known),
        row("  independent tokens", f"{found['independent_overlap']:.3f}"),
    ]
    if burst is not None:
        label = f"Variance of {burst['tokens']} neighbours / chance"
        lines.append(row(label, _two(burst["dispersion"])))
    if again["p50"] is not None:
        value = f"{again['p50']:.0f} (p50), {again['p90']:.0f} (p90)"
        alone = f"shuffled: {again['independent_p50']:.0f}"
        lines.append(row("Tokens until an expert's next use", value, alone))
        held = ", ".join(
            f"{float(share):.0%} of them: {part:.0%}"
            for share, part in again["held"].items()
        )
        lines.append(row("Uses that the most popular serve", held))
    return lines


def _across(found: Record) -> list[str]:
    lines = []
    if found.get("information"):
        gaps = found["information"]
        how = "weights" if found["first_choice"] == "weight" else "first slot"
        lines += [
            f"{'layers apart':<34}" + "".join(f"{i['gap']:>8}" for i in gaps),
            f"{'bits known of the first choice':<34}"
            + "".join(f"{i['bits']:>8.2f}" for i in gaps)
            + f"   ({how})",
            f"{'  of them by chance (shuffled)':<34}"
            + "".join(f"{i['shuffled']:>8.2f}" for i in gaps),
        ]
    seen = found.get("prediction")
    if seen is not None:
        lines += [
            row(
                "Next layer's first choice foreseen",
                percent(seen["top1"]),
                f"(without looking {percent(seen['blind'])})",
            ),
            row(
                "  all choices, as many guesses",
                percent(seen["recall"]),
                f"(without looking {percent(seen['blind_recall'])})",
            ),
        ]
    lines.append(
        f"{'max/mean':<9}{'a layer':>9}{'summed':>9}{'if layers independent':>24}"
        f"{'corr.':>8}"
    )
    for size, item in found["complementarity"].items():
        lines.append(
            f"{f'EP{size}':<9}{item['by_layer_median']:>9.2f}{item['summed']:>9.3f}"
            f"{item['independent']:>9.3f} [{item['independent_p1']:.3f}, "
            f"{item['independent_p99']:.3f}]{_two(item['correlation']):>8}  "
            f"{item['verdict']}"
        )
    return lines


def _traffic(found: Record) -> list[str]:
    lines = [
        f"{'':<10}{'nodes':>7}{'copies':>9}{'by NIC':>9}{'busiest GPU / mean':>22}"
        f"{'in a layer':>13}"
    ]
    for size, item in found.items():
        lines.append(
            f"{f'EP{size}':<10}{item['nodes']:>7}{item['copies_per_token']:>9.2f}"
            f"{item['nic_copies_per_token']:>9.2f}"
            f"{item['received_max_over_mean']:>22.2f}"
            f"{item['received_layer_median']:>13.2f}"
        )
    size, item = max(found.items(), key=lambda pair: int(pair[0]))
    if "bytes_per_token" in item:
        whole, far = (item[f"{kind}bytes_per_token"] for kind in ("", "nic_"))
        lines.append(
            f"EP{size}: {format_bytes(whole)} a token and layer, {format_bytes(far)} "
            "of them by NIC"
        )
    if item["nodes"] > 1:
        lines += [f"EP{size}, copies from node to node, per 1000 tokens and layers:"]
        lines += _matrix(item)
    return lines


def _matrix(item: Record) -> list[str]:
    rows = item["node_to_node"]
    if len(rows) > 8:
        return ["  (more than 8 nodes: --json has it)"]
    cells = item["copies_per_token"] / max(1, sum(map(sum, item["gpu_to_gpu"])))
    return [
        f"  node {at}" + "".join(f"{1000 * cells * value:>9.1f}" for value in values)
        for at, values in enumerate(rows)
    ]
