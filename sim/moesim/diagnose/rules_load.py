"""Findings about loads: of experts, of ranks, of single passes, and of links.

Each rule returns a finding, or None where there is nothing to say.
"""

from shlex import quote

from moesim.diagnose.finding import (
    LITTLE,
    Record,
    again,
    finding,
    largest,
    two,
    variants,
)
from moesim.diagnose.imbalance import HOT_SHARE, MILD, SEVERE

NEAR_CHANCE = 1.5
"""Times the noise floor up to which unevenness is called chance."""


def experts(record: Record) -> Record | None:
    """Say how imbalanced experts are, against the noise floor."""
    overall = record["imbalance"]["overall"]
    cv, floor = overall["cv_median"], overall["cv_floor_median"]
    layers = len(record["log"]["layers"])
    evidence = [
        f"coefficient of variation: median {cv:.2f} of {layers} layers, worst "
        f"{overall['cv_worst']:.2f} (layer {overall['cv_worst_layer']})",
        f"chance alone gives {floor:.2f} at this many tokens",
        f"layers over {MILD} / {SEVERE}: {overall['layers_mild']} / "
        f"{overall['layers_severe']}",
        f"top {record['imbalance']['top10_experts']} experts (10 %, rounded up) take "
        f"{overall['top10_share_median']:.1%} of tokens",
    ]
    if cv <= NEAR_CHANCE * floor:
        return finding(
            "Experts are as even as chance lets them be",
            "What unevenness there is, uniform routing of so few tokens has, too: "
            "placement cannot remove it. Record more tokens before acting on it.",
            evidence,
            again(record, "(of a longer log)"),
            0.0,
        )
    word = "severe" if cv > SEVERE else "mild" if cv > MILD else "slight"
    _, _, gains = largest(record)
    hot = " The hottest tenth is over the 30 % line." * (
        overall["top10_share_median"] > HOT_SHARE
    )
    return finding(
        f"Imbalance of experts is {word}",
        f"The most popular expert of a layer gets {overall['max_over_mean_median']:.1f} "
        f"times its share (median over layers).{hot} What it costs depends on which "
        "experts share a GPU.",
        evidence,
        again(record, "--out DIR   # heat map, Lorenz curve"),
        gains["perfect"]["saves"],
    )


def ranks(record: Record) -> Record | None:
    """Say what waiting for the slowest rank costs, and what placement can do."""
    size, rank, gains = largest(record)
    lost = gains["perfect"]["saves"]
    placement, copies = gains["placement"], gains["replication"]
    evidence = [
        f"EP{size}, neighbouring experts together: the slowest rank has "
        f"{rank['max_over_mean_median']:.2f} times the mean (median over layers), "
        f"worst {rank['max_over_mean_worst']:.2f} (layer {rank['worst_layer']})",
        f"balancedness {two(rank['whole_log']['vllm'])} as vLLM, "
        f"{two(rank['whole_log']['sglang'])} as SGLang computes it",
    ]
    evidence += _gains("moving experts", placement)
    evidence += _gains(f"{copies['redundant']} redundant experts", copies)
    if lost < LITTLE:
        return None
    half = "half of this log" if record["classes"] is None else "log"
    text = (
        f"Up to {lost:.0%} of the experts' time at EP{size} is waiting for the slowest "
        f"rank. {_cure(gains, half)}"
    )
    return finding(
        f"GPUs wait for the slowest rank (EP{size})",
        text,
        evidence,
        variants(
            "now: placement.name=contiguous",
            "greedy: placement.name=greedy",
            f"eplb: placement.name=eplb; placement.redundant_experts={copies['redundant']}",
        ),
        lost,
    )


def _cure(gains: Record, half: str) -> str:
    """Return what placements fitted to the first half save on the second."""
    placement, copies = gains["placement"], gains["replication"]
    saved = [
        f"{item['saves']:.0%} {words}"
        for words, item in (
            ("by moving experts", placement["held_out"]),
            (f"with {copies['redundant']} redundant ones", copies["held_out"]),
        )
        if item and item["saves"] >= LITTLE
    ]
    if not saved:
        return f"No placement fitted to the first {half} helps the second."
    return f"A placement fitted to the first {half} saves {', '.join(saved)} on the second."


def _gains(what: str, bounds: Record) -> list[str]:
    lines = []
    for key, words in (("fitted", "judged by the same log"), ("held_out", "held out")):
        if bounds[key] is not None:
            item = bounds[key]
            lines.append(
                f"{what}: ratio {item['ratio']:.2f}, saves {item['saves']:.0%} ({words})"
            )
    return lines


def hot_expert(record: Record) -> Record | None:
    """Say when single experts are too hot for any placement without copies."""
    size, _, gains = largest(record)
    limit, copies = gains["placement"]["limit"], gains["replication"]["fitted"]
    if limit["ratio"] < 1.05 or copies["ratio"] > limit["ratio"] - LITTLE:
        return None
    return finding(
        "Single experts are hotter than a whole GPU's share",
        f"At EP{size} no placement without copies gets below {limit['ratio']:.2f} times "
        f"the mean; with {gains['replication']['redundant']} copies {copies['ratio']:.2f} "
        "is possible.",
        [f"bound without copies {limit['ratio']:.2f}, with them {copies['ratio']:.2f}"],
        variants(
            "one: placement.name=greedy",
            "copies: placement.name=eplb; placement.redundant_experts="
            f"{gains['replication']['redundant']}",
        ),
        max(0.0, 1 - copies["ratio"] / limit["ratio"]),
    )


def small_passes(record: Record) -> Record | None:
    """Say what is uneven in each pass only, which no fixed placement can mend."""
    size, _, gains = largest(record)
    ahead = gains["prediction"]
    if ahead is None or ahead["saves"] < LITTLE:
        return None
    return finding(
        "Each pass is uneven in its own way",
        f"With the best fixed placement, passes of {ahead['tokens']} tokens still "
        f"wait: ratio {ahead['after_placement']:.2f} at EP{size}. Who foresees each pass "
        f"and acts in time gains at most {ahead['saves']:.0%} more; larger passes need "
        "it less.",
        [
            f"{_percent(at)} of EP{size} batches of {tokens} tokens"
            for tokens, at in record["ranks"][size]["by_batch"].items()
        ],
        again(record, f"--ep {size}"),
        ahead["saves"],
    )


def _percent(ratio: float) -> str:
    return f"max/mean {ratio:.2f} (median)"


def exchange(record: Record) -> Record | None:
    """Say how uneven all-to-all is."""
    if record["traffic"] is None:
        return None
    size = max(record["traffic"], key=int)
    found = record["traffic"][size]
    if found["received_max_over_mean"] < 1.05:
        return None
    return finding(
        "All-to-all is as uneven as the ranks",
        f"GPU {found['hottest_gpu']} receives {found['received_max_over_mean']:.2f} "
        f"times the mean over all layers, and a layer's busiest GPU "
        f"{found['received_layer_median']:.2f} times (median).",
        [
            f"EP{size}, {found['nodes']} nodes: {found['copies_per_token']:.2f} copies "
            f"of a token and layer, {found['nic_copies_per_token']:.2f} of them between "
            "nodes"
        ],
        f"moesim links --nodes {found['nodes']} --gpus-per-node "
        f"{found['gpus_per_node']} --log {quote(record['log']['paths'][0])}",
        None,
    )


def dead(record: Record) -> Record | None:
    """Say which experts get nothing."""
    dead = record["imbalance"]["overall"]["dead"]
    if not dead:
        return None
    rows = [row for row in record["imbalance"]["layers"] if row["dead"]]
    few = min(row["tokens"] for row in rows) < 10 * record["log"]["experts"]
    return finding(
        f"{dead} experts get no token at all",
        "With so few tokens chance explains it."
        if few
        else "Their memory serves "
        "nobody in this traffic: they are the first to offload.",
        [f"layer {row['layer']}: {row['dead']}" for row in rows[:8]],
        again(record, "--json"),
        None,
    )
