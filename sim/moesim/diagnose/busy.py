"""GPUs that seem busy and get little done, and GPUs without room.

Axes: ``R`` replications, ``L`` MoE layers, ``G`` GPUs.
"""

import numpy as np

from moesim.diagnose.symptom import Record, symptom
from moesim.measure.result import Result

SEEN, USEFUL = 0.6, 0.65
"""Monitors show more than the first as busy; of that less than the second is of use."""
SLOWEST = "waiting for the slowest GPU"
PADDING, EXCHANGE = "padding and dummy steps", "all-to-all"
REMEDIES = {
    SLOWEST: "--variant 'contiguous: placement.name=contiguous' "
    "--variant 'eplb: placement.name=eplb'",
    PADDING: "--variant 'small: serving.max_num_batched_tokens=512' "
    "--variant 'large: serving.max_num_batched_tokens=4096'",
    EXCHANGE: "--policies fifo,oldest",
}
"""What to compare, by cause."""
FULL, LESS = 0.95, 0.8
"""A KV pool is full; the mean of all pools is less than this share of the fullest."""


def utilisation(result: Result) -> Record:
    """Look for GPUs that seem busy and get little done."""
    gpus = result.gpus
    span = float(gpus["span_s"].sum())
    part = {
        name: float(gpus[f"{name}_s"].sum()) / span if span else 0.0
        for name in ("busy", "useful", "straggler", "transfer")
    }
    waits = part["straggler"] + part["transfer"]
    # Micro-batches wait while others compute: a GPU's own idle time bounds it.
    shown = min(1.0, part["busy"] + waits)
    idle = (shown - part["busy"]) / waits if waits else 0.0
    lost = {
        SLOWEST: part["straggler"] * idle,
        PADDING: part["busy"] - part["useful"],
        EXCHANGE: part["transfer"] * idle,
    }
    name = "High mean utilisation, low throughput"
    evidence = [
        f"monitors would show {shown:.0%} (waits inside all-to-all count), GPUs compute "
        f"{part['busy']:.0%} of the time and do useful work {part['useful']:.0%}",
        *(f"{what}: {share:.1%} of GPU time" for what, share in lost.items()),
    ]
    if shown < SEEN or part["useful"] > USEFUL * shown:
        return symptom(
            name,
            found=False,
            text="What monitors show is mostly of use, or they show idle GPUs.",
            evidence=evidence,
        )
    cause = max(lost, key=lambda what: lost[what])
    why, facts = _slowest(result) if cause == SLOWEST else ("", [])
    return symptom(
        name,
        found=True,
        text=f"The cause is {cause}. {why}".rstrip(),
        evidence=[*evidence, *facts],
        next=f"moesim compare SCENARIO {REMEDIES[cause]}",
    )


def _slowest(result: Result) -> tuple[str, list[str]]:
    """Return why GPUs wait for each other, and the figures: a slow GPU, or a full one."""
    gpus = result.gpus.groupby("gpu")[["experts_s", "expert_tokens", "busy_s"]].sum()
    load = gpus["expert_tokens"].to_numpy(float)
    price = np.divide(
        gpus["experts_s"].to_numpy(float), load, out=np.zeros_like(load), where=load > 0
    )
    busiest = int(gpus["experts_s"].to_numpy().argmax())
    typical = float(np.median(price))
    ranks = result.rank_load.astype(float)
    mean = ranks.mean(axis=2)
    ratio = np.divide(ranks.max(axis=2), mean, out=np.ones_like(mean), where=mean > 0)
    facts = [
        f"GPU {busiest} spends the most time on experts; its load is "
        f"{load[busiest] / max(load.mean(), 1e-300):.2f} times the mean, a token costs it "
        f"{price[busiest] / max(typical, 1e-300):.2f} times the median",
        f"layers over the whole run: busiest GPU {np.median(ratio):.2f} times the mean "
        f"(median), {ratio.max():.2f} (worst)",
    ]
    passes = result.summary.get("balancedness_vllm")
    if passes is not None:
        facts.append(f"in single passes: {1 / passes:.2f} times the mean")
    if typical and price[busiest] > 1.15 * typical:
        return f"GPU {busiest} is slow, not overloaded.", facts
    if np.median(ratio) > 1.15:
        return "Some GPUs hold the popular experts: placement.", facts
    return "Each pass is uneven by itself; loads even out over the run.", facts


def memory(result: Result) -> Record:
    """Look for single GPUs whose KV pool is full while others have room."""
    table = result.gpus.assign(
        used=result.gpus["kv_peak_blocks"] / result.gpus["kv_blocks"]
    )
    used = table.groupby("gpu")["used"].max().to_numpy(float)
    tokens = result.gpus.groupby("gpu")["tokens"].sum().to_numpy(float)
    name = "One GPU out of memory (KV cache)"
    full, mean = float(used.max()), float(used.mean())
    evidence = [
        f"fullest pool {full:.1%} (GPU {int(used.argmax())}), mean of all {mean:.1%}",
        f"preemptions {result.summary['preemptions']}, rejected "
        f"{result.summary['rejected']}",
    ]
    if full < FULL and not result.summary["rejected"]:
        return symptom(name, found=False, text="No KV pool is full.", evidence=evidence)
    if mean > LESS * full:
        text = "All pools are about as full: the cluster is too small for its load, "
        return symptom(
            name,
            found=True,
            text=f"Not one, but every one. {text}or too many sequences run at once.",
            evidence=evidence,
            next="moesim plan SCENARIO",
        )
    share = tokens[used.argmax()] / max(tokens.mean(), 1e-300)
    evidence.append(f"that GPU was given {share:.2f} times the mean tokens")
    return symptom(
        name,
        found=True,
        text=f"GPU {int(used.argmax())} holds longer or more sequences than others: how "
        "requests are given to ranks, not the experts.",
        evidence=evidence,
        next="moesim compare SCENARIO --variant 'turns: serving.assign=round_robin' "
        "--variant 'kv: serving.assign=least_kv'",
    )
